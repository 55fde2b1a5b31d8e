"""Places that cannot be written, with real folders, real users and a disk that is really full."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training import DEADLINE, PROJECT
from trainer import task
from trainer.evaluator import __main__ as evaluator
from trainer.vertex import writable
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage, Trial, from_env

USER = os.geteuid() or 65534  # root may write everywhere, and becomes nobody
OUTPUTS = {"AIP_MODEL_DIR": "run/model", "AIP_CHECKPOINT_DIR": "run/checkpoints", "AIP_TENSORBOARD_LOG_DIR": "run/logs"}
# All imports come first, those of the first parsing, too: their files may be out of that user's reach.
AS_USER = f"""
import os, sys
from trainer import task
from trainer.parallel import choice
from trainer.samples import shards
from trainer.vertex.log import exit_code
choice.parse([])
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({USER}), os.setuid({USER})
sys.exit(exit_code(task.run, sys.argv[1:], os.environ))
"""
OPEN = (Path("/tmp"), Path("/var/tmp"))  # to all users, on most systems
FULL_DISK = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"')

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may read; pytest's own are closed to others, and those above TMPDIR may be."""
    if not (above := next((path for path in OPEN if path.stat().st_mode & stat.S_IXOTH), None)):
        pytest.skip(f"another user may enter none of {', '.join(map(str, OPEN))}")
    folder = Path(tempfile.mkdtemp(dir=above))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def storage(folder: Path, trial: Trial | None = None) -> Storage:
    return Storage(folder / "run/model", folder / "run/checkpoints", folder / "run/logs", folder, trial)


def contents(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def run(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    paths = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    outputs = {name: str(folder / path) for name, path in OUTPUTS.items()}
    return subprocess.run(
        words, env={**paths, **outputs, **env}, cwd=folder, capture_output=True, text=True, timeout=DEADLINE
    )


def test_what_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "run/logs").mkdir(parents=True)
    (tmp_path / "metrics").write_text("earlier")
    for trial in (None, Trial("1", tmp_path / "metrics"), Trial("1", tmp_path / "new/metrics")):
        before = contents(tmp_path)
        writable.require_writable(storage(tmp_path, trial), writable.CHIEF)
        assert contents(tmp_path) == before
    assert (tmp_path / "metrics").read_text() == "earlier"


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(TrainerError) as told:
        writable.require_writable(storage(tmp_path), ("model",))
    assert str(told.value) == (
        f"model: {tmp_path}/run/model can't be written (Not a directory: {tmp_path}/run); "
        "a file is in the way; remove it, or choose another output folder"
    )


def test_a_bucket_that_is_not_mounted_is_no_folder_to_make() -> None:
    with pytest.raises(TrainerError, match="No such file or directory: /gcs/no-such-bucket-0"):
        writable.require_writable(from_env({"AIP_CHECKPOINT_DIR": "gs://no-such-bucket-0/run"}), writable.WORKER)


def test_a_replica_answers_only_for_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model").write_text("not a folder")
    writable.require_writable(storage(tmp_path), writable.WORKER)
    writable.require_writable(storage(tmp_path), ("checkpoints", "logs"))
    with pytest.raises(TrainerError, match=r"^model: .*/run/model can't be written"):
        writable.require_writable(storage(tmp_path), writable.CHIEF)


@pytest.mark.parametrize(
    ("program", "pool", "words"),
    [
        (task, 0, "^model: .*/run/model can't be written"),
        (task, 1, "^--data none: "),
        (evaluator, 3, "^--data none: "),
    ],
)
def test_only_the_chief_writes_the_model(program: Any, pool: int, words: str, tmp_path: Path) -> None:
    """The others come as far as their data, which is not there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model").write_text("not a folder")
    pools = {f"workerpool{number}": [f"host:{number + 1}"] for number in (0, 1, 3)}
    spec = {"cluster": pools, "task": {"type": f"workerpool{pool}", "index": 0}}
    outputs = {name: str(tmp_path / path) for name, path in OUTPUTS.items()}
    with pytest.raises(TrainerError, match=words):
        program.run(["--data", "none"], {"CLUSTER_SPEC": json.dumps(spec), **outputs})


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(TrainerError, match=f"^{tmp_path} can't be written .No space left on device.; free some space"),
        writable.writing(tmp_path),
        open("/dev/full", "w") as file,
    ):
        file.write("x")


def test_before_it_waits_for_anybody_the_chief_names_every_place_that_is_not_its_users(place: Path) -> None:
    cluster = {"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}, "task": {"type": "workerpool0", "index": 0}}
    place.chmod(0o555)
    tuning = {"CLOUD_ML_TRIAL_ID": "1", "CLOUD_ML_HP_METRIC_FILE": str(place / "metrics")}
    done = run(place, sys.executable, "-c", AS_USER, CLUSTER_SPEC=json.dumps(cluster), **tuning)
    lines = [json.loads(line)["message"] for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, contents(place)) == (1, "", [])
    why = f"can't be written (Permission denied: {place}, as user {USER}); run as root, as the image does, or"
    kinds = {"model": "run/model", "checkpoints": "run/checkpoints", "logs": "run/logs", "metric file": "metrics"}
    assert [line.partition(why)[0] for line in lines] == [f"{kind}: {place / path} " for kind, path in kinds.items()]


def test_a_trial_whose_metric_file_is_anothers_ends_before_it_trains(place: Path) -> None:
    (place / "run").mkdir(mode=0o777)
    (place / "run").chmod(0o777)
    (place / "metrics").touch(0o444)
    metrics = str(place / "metrics")
    done = run(place, sys.executable, "-c", AS_USER, CLOUD_ML_HP_METRIC_FILE=metrics)
    assert json.loads(done.stdout)["message"] == (
        f"metric file: {metrics} can't be written (Permission denied: {metrics}, as user {USER}); "
        "run as root, as the image does, or give this user write permission"
    )
    assert (done.returncode, done.stderr, contents(place / "run")) == (1, "", [])


@as_root
@pytest.mark.proof
def test_a_disk_that_fills_up_during_the_training_is_one_sentence(place: Path) -> None:
    (place / "run").mkdir()
    if subprocess.run([*FULL_DISK, str(place / "run"), "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    train = (sys.executable, "-m", "trainer.task", "--steps", "2", "--warmup", "1")
    done = run(place, *FULL_DISK, str(place / "run"), *train)
    said = [json.loads(line)["message"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 1, done.stderr
    assert any(
        f"{place}/run/checkpoints can't be written (" in line and "free some space on this disk" in line
        for line in said
    )
    assert "Traceback" not in done.stdout + done.stderr
