"""The lease of an output folder, among processes that are real, killed and late."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks import ONCE
from tests.training import DEADLINE, PROJECT, eventually, signal_trainer, started
from trainer.vertex import lease
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

# A job's chief, which prints a line once it has the folder, and leaves it when its input ends.
CHIEF = """
import os, select, signal, sys
from pathlib import Path
from trainer.vertex import lease
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage
if sys.argv[4]:  # as a trainer of TensorFlow, which lets nothing unwind
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
lease.RENEW_SECONDS, lease.EXPIRE_SECONDS = 0.2, float(sys.argv[3])
root = Path(sys.argv[1])
try:
    with lease.held(Storage(checkpoints=root, mount=root.parent, job=sys.argv[2]), is_chief=True):
        print("holds", flush=True)
        while not select.select([0], [], [], 0.1)[0]: pass
except TrainerError as error:
    print(error, flush=True)
"""


@contextlib.contextmanager
def chief(root: Path, job: str, expire: float = DEADLINE, leaps: bool = False) -> Iterator["subprocess.Popen[str]"]:
    """Yield the process of a job that takes the folder; nothing outlives the block."""
    words = [sys.executable, "-c", CHIEF, str(root), job, str(expire), "leaps" * leaps]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=PROJECT, text=True, stdin=pipe, stdout=pipe) as process:
        guard = threading.Timer(DEADLINE, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


def says(process: "subprocess.Popen[str]") -> str:
    """Return the next line of a chief."""
    assert process.stdout
    return process.stdout.readline().strip()


def leave(process: "subprocess.Popen[str]") -> int:
    """Let a chief end; returns its exit code."""
    process.communicate(timeout=DEADLINE)
    return process.returncode


def storage(root: Path, job: str) -> Storage:
    return Storage(checkpoints=root, mount=root.parent, job=job)


def foreign(root: Path, job: str = "far", since: str = "2026-01-01T08:31:02+00:00", host: str = "elsewhere") -> Path:
    """Write the claim of a job of another machine; returns the folder."""
    folder = root / lease.FOLDER
    folder.mkdir(parents=True)
    claim = {"job": job, "host": host, "since": since, "lock": "another boot:1"}
    (folder / f"{job}.json").write_text(json.dumps(claim))
    return folder


def test_a_second_job_refuses_with_the_first_ones_name_and_the_first_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    with chief(root, "first") as first:
        assert says(first) == "holds"
        with chief(root, "second") as second:
            told = says(second)
        assert told.startswith(f"{root} has been in use by job first on ")
        assert " UTC (renewed " in told
        assert told.endswith(" s ago); choose another output folder, or wait until that job ends")
        assert leave(first) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_job_is_free_at_once(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    with chief(root, "first") as first:
        assert says(first) == "holds"
        first.kill()
        first.wait()
        assert list(root.rglob("first.json"))
        with chief(root, "second") as second:  # it would look for longer than this test may take
            assert says(second) == "holds"
            assert not list(root.rglob("first.*"))


def test_a_job_that_starts_again_does_not_wait_for_itself(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "checkpoints", "same")
    with chief(folder.parent, "same") as again:
        assert says(again) == "holds"
        assert leave(again) == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("number", "code", "leaps"), [(signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True), (signal.SIGINT, -2, False)]
)
def test_a_signal_that_ends_the_job_frees_the_folder(
    tmp_path: Path, number: signal.Signals, code: int, leaps: bool
) -> None:
    with chief(tmp_path / "checkpoints", "first", leaps=leaps) as first:
        assert says(first) == "holds"
        first.send_signal(number)
        assert first.wait(DEADLINE) == code
    assert list(tmp_path.iterdir()) == []


def test_an_exception_frees_the_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lease.held(storage(tmp_path / "checkpoints", "first"), is_chief=True):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_claim_of_another_machine_expires_unless_it_is_renewed(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "checkpoints")
    with chief(folder.parent, "second", expire=1) as second:
        assert "checking for up to 1 s whether job far on elsewhere still writes to this folder" in says(second)
        assert says(second) == "holds"
        assert not list(folder.glob("far.*"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names a boot")
def test_a_claim_from_before_this_machine_was_booted_expires_at_once_unless_it_was_renewed_since(
    tmp_path: Path,
) -> None:
    folder = foreign(tmp_path / "checkpoints", host=platform.node())
    (folder / "far.7").touch()
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    with chief(folder.parent, "second") as second:  # it would look for longer than this test may take
        assert says(second) == "holds"
        assert leave(second) == 0
    folder = foreign(tmp_path / "checkpoints", host=platform.node())
    with chief(folder.parent, "second", expire=1) as second:
        assert f"checking for up to 1 s whether job far on {platform.node()} still writes to this folder" in says(
            second
        )


def test_a_claim_of_another_machine_that_is_renewed_counts_whatever_its_clock_says(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "checkpoints", since="2099-01-01T00:00:00+00:00")
    with chief(folder.parent, "second") as second:
        assert "whether job far on elsewhere still" in says(second)
        (folder / "far.1").touch()
        assert "has been in use by job far on elsewhere since 2099-01-01 00:00 UTC" in says(second)
    assert [file.name for file in sorted(folder.iterdir())] == ["far.1", "far.json"]


def test_of_jobs_that_start_together_one_gets_the_folder(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(chief(tmp_path / "checkpoints", f"job-{number}")) for number in range(5)]
        told = [says(process) for process in started]
        assert told.count("holds") == 1
        assert all("has been in use by job " in line for line in told if line != "holds")


def test_a_job_whose_folder_another_one_has_taken_meanwhile_ends(tmp_path: Path) -> None:
    with chief(tmp_path / "checkpoints", "first") as first:
        assert says(first) == "holds"
        (tmp_path / "checkpoints/lease/first.json").rename(tmp_path / "first.json")
        claim = json.loads((tmp_path / "first.json").read_text()) | {"job": "second"}
        (tmp_path / "checkpoints/lease/second.json").write_text(json.dumps(claim))
        assert "job second has taken over the folder" in says(first)
        assert first.wait(DEADLINE) == 1


def test_a_renewal_is_a_new_name_and_the_one_before_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/lease"
    with chief(folder.parent, "first") as first:
        assert says(first) == "holds"
        assert eventually(lambda: any(int(file.suffix[1:]) > 2 for file in folder.glob("first.[0-9]*")))
        assert len(list(folder.glob("first.[0-9]*"))) <= 2


def test_a_file_that_is_no_claim_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/lease"
    folder.mkdir(parents=True)
    for name, text in {"a": "", "b": "[]", "c": '{"job": "c"}', "d": "[" * 4_000}.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "e.json").mkdir()
    claim = {"job": "../../kept", "host": "", "since": "", "lock": ""}
    (folder / "f.json").write_text(json.dumps(claim))
    (tmp_path / "kept.json").touch()
    with lease.held(storage(folder.parent, "first"), is_chief=True):
        assert (folder / "first.1").is_file()
    assert (tmp_path / "kept.json").exists()


def test_a_claim_that_is_named_like_a_pattern_takes_no_other_file_with_it(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "checkpoints", "*")
    (folder / "other").touch()
    with chief(folder.parent, "first", expire=0) as first:
        assert "whether job * on elsewhere still writes to this folder" in says(first)
        assert says(first) == "holds"
        assert sorted(path.name for path in folder.iterdir() if path.stem != "first") == ["other"]


@ONCE
def test_the_trainer_refuses_a_folder_in_use_before_anything_is_there(tmp_path: Path) -> None:
    folders = {"AIP_MODEL_DIR": "model", "AIP_CHECKPOINT_DIR": "checkpoints", "AIP_TENSORBOARD_LOG_DIR": "logs"}
    environ = os.environ | {name: str(tmp_path / folder) for name, folder in folders.items()}
    with lease.held(storage(tmp_path / "checkpoints", "first"), is_chief=True):
        command = [sys.executable, "-m", "trainer.task", "--steps", "1", "--warmup", "1"]
        done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=DEADLINE)
        assert [*tmp_path.iterdir(), *(tmp_path / "checkpoints").iterdir()] == [
            tmp_path / "checkpoints",
            tmp_path / "checkpoints/lease",
        ]
    (told,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert told["message"].startswith(f"{tmp_path}/checkpoints has been in use by job first on ")
    assert (done.returncode, told["severity"]) == (1, "ERROR")


@pytest.mark.proof
def test_a_run_that_begins_anew_leaves_that_of_a_running_job_alone_which_ends_well(tmp_path: Path) -> None:
    with started(tmp_path, 1, "--steps", "20", "--checkpoint-every", "10") as (first, show):
        assert eventually(lambda: any(tmp_path.glob(".vertex/gcs/b/run/checkpoints/lease/*.1")))
        assert signal_trainer(tmp_path, "workerpool0-0", signal.SIGSTOP)  # so that it still runs, however busy this is
        command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--fresh"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
        assert signal_trainer(tmp_path, "workerpool0-0", signal.SIGCONT)
        assert first.wait(DEADLINE) == 0, show.read_text()
    assert done.returncode == 1
    assert ".vertex/gcs/b/run/checkpoints has been in use by job " in done.stderr
    assert {path.name for path in tmp_path.glob(".vertex/gcs/b/run/*")} == {"checkpoints", "logs", "model"}
    assert not list(tmp_path.glob(".vertex/gcs/b/run/checkpoints/lease"))


def test_only_the_chief_takes_the_lease(tmp_path: Path) -> None:
    with lease.held(storage(tmp_path / "checkpoints", "first"), is_chief=False):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    held = lease.held(storage(tmp_path / "checkpoints", "first"), is_chief=True)
    with pytest.raises(TrainerError, match="can't be written"), held:
        pass


def test_without_a_job_id_the_machine_and_the_process_stand_for_it(tmp_path: Path) -> None:
    with lease.held(storage(tmp_path / "checkpoints", ""), is_chief=True):
        (file,) = (tmp_path / "checkpoints/lease").glob("*.json")
        assert json.loads(file.read_text())["job"] == file.stem
