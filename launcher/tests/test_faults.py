"""--fault: faults that a user orders, in jobs of any program."""

import re
import subprocess
from pathlib import Path

import pytest

from launcher.tests.running import deadline, eventually
from launcher.tests.test_engine import FOREVER, replica
from launcher.tests.test_restarts import Running, counted, gaps
from launcher.tests.test_run import command, environment, launch, pool, project, write
from vertex_launch.errors import FaultError
from vertex_launch.local.running import faults
from vertex_launch.local.running.faults import Fault
from vertex_launch.local.running.restart_policy import Policy

assert project  # a fixture
STEPS = "import time\nfor i in range(1, 4000): print(f'step {i}/4000  loss 0.1', flush=True); time.sleep(0.05)"


@pytest.mark.parametrize(
    ("word", "fault", "sentence"),
    [
        ("workerpool1-0:kill", Fault("workerpool1-0", "kill"), "workerpool1-0 is killed"),
        ("workerpool1-0:kill@step=20", Fault("workerpool1-0", "kill", step=20), "workerpool1-0 is killed at step 20"),
        (
            "workerpool0-0:freeze=1.5@after=12s",
            Fault("workerpool0-0", "freeze", 1.5, after=12),
            "workerpool0-0 is frozen for 1.5 s 12 s after its start",
        ),
        ("workerpool1-1:late=20", Fault("workerpool1-1", "late", 20), "workerpool1-1 starts 20 s late"),
    ],
)
def test_a_fault_is_written_in_a_word_and_told_in_a_sentence(word: str, fault: Fault, sentence: str) -> None:
    assert faults.parsed([word]) == (fault,)
    assert str(fault) == sentence


@pytest.mark.parametrize(
    "word",
    ["kill", "workerpool1-0:explode", "workerpool1-0:late", "workerpool1-0:kill=3", "workerpool1-0:kill@20", "w:raise"],
)
def test_a_word_that_is_no_fault_is_refused_with_those_that_are(word: str) -> None:
    with pytest.raises(
        FaultError, match=f'^--fault "{re.escape(word)}": this fault is unknown; use a form such as .* faults are kill,'
    ):
        faults.parsed([word])


@pytest.mark.parametrize(("word", "reason"), [("workerpool1-0:cut@step=3", "network"), ("workerpool1-0:full", "disk")])
def test_a_fault_that_is_not_possible_here_is_refused_with_the_reason(word: str, reason: str) -> None:
    with pytest.raises(FaultError, match=f"all replicas share this machine's {reason}"):
        faults.parsed([word])


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 20/100  loss 0.3", 20),
        ("Step: 7", 7),
        ("epoch 1, global_step=12", 12),
        ('{"message": "loss 0.3", "step": 40}', 40),
        ('{"message": "step 15 done"}', 15),
        ("3 steps to go", 0),
        ("saved /gcs/b/try@step=50/checkpoints/step-000000020", 0),
    ],
)
def test_a_line_names_its_step_in_its_text_or_in_a_field(line: str, step: int) -> None:
    assert faults.step_of(line) == step


def test_a_worker_is_killed_once_the_chief_has_reached_the_step_and_once_only(tmp_path: Path) -> None:
    worker = counted(tmp_path / "count", "time.sleep(600)", 0)
    with deadline():
        policy, ordered = Policy(replica_restarts=5, grace=0), faults.parsed(["workerpool1-0:kill@step=20"])
        running = Running(tmp_path, replica(STEPS), worker, policy=policy, ordered=ordered)
        restart = "workerpool1-0 was killed by SIGKILL (exit code 137). Restarting this replica (restart 1 of 5)"
        assert running.said(f"workerpool1-0: {restart}")
        assert running.said("workerpool0-0: step 80/4000  loss 0.1")
        running.execution.cancel()
        running.end()
    told = running.lines.index("workerpool1-0: simulated fault: workerpool1-0 is killed at step 20")
    assert running.lines.index("workerpool0-0: step 20/4000  loss 0.1") < told
    assert len([line for line in running.lines if line.startswith("workerpool1-0: ")]) == 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("workerpool0-0:kill", "exited with a non-zero status of 137(SIGKILL)"),
        ("workerpool0-0:kill@after=1s", "exited with a non-zero status of 137(SIGKILL)"),
    ],
)
def test_a_fault_happens_at_the_start_or_so_long_after_it(tmp_path: Path, word: str, message: str) -> None:
    with deadline():
        running = Running(tmp_path, replica(FOREVER), policy=Policy(), ordered=faults.parsed([word]))
        assert message in running.end().message


def test_a_replica_starts_late(tmp_path: Path) -> None:
    with deadline():
        ordered = faults.parsed(["workerpool1-0:late=600"])
        running = Running(tmp_path, replica(STEPS), replica(STEPS, 0), policy=Policy(grace=0), ordered=ordered)
        assert running.said("workerpool0-0: step 9/4000  loss 0.1")
        assert running.lines[0] == "workerpool1-0: simulated fault: workerpool1-0 starts 600 s late"
        assert running.status("workerpool1-0").state == "waiting"
        running.execution.cancel()
        running.end()


def test_one_that_has_not_started_is_named_before_those_who_waited_for_it(tmp_path: Path) -> None:
    with deadline():
        ordered = faults.parsed(["workerpool1-0:late=600"])
        waited = replica("print('rollcall: workerpool1-0 is absent', flush=True); exit(75)")
        outcome = Running(tmp_path, waited, replica(STEPS, 0), policy=Policy(grace=0), ordered=ordered).end()
        assert str(outcome.failures[0]) == "workerpool1-0 hasn't started yet"
        assert [*outcome.others] == ["After that, workerpool0-0 exited with code 75"]


def test_a_slow_replica_stands_still_most_of_the_time_and_goes_on(tmp_path: Path) -> None:
    clock = "import time\nfor _ in range(10_000): print('at', time.monotonic(), flush=True); time.sleep(0.01)"
    with deadline():
        ordered = faults.parsed(["workerpool0-0:slow=6"])
        running = Running(tmp_path, replica(clock), policy=Policy(grace=0), ordered=ordered)
        assert running.said("workerpool0-0: simulated fault: workerpool0-0 is 6 times slower")
        assert eventually(lambda: len([gap for gap in gaps(printed(running)) if gap > 0.3]) >= 3)
        running.execution.cancel()
        running.end()


def printed(running: Running) -> list[str]:
    return [line for line in running.lines if ": at " in line]


def test_a_fault_that_never_came_is_told(tmp_path: Path) -> None:
    ordered = faults.parsed(["workerpool0-0:kill@step=20"])
    running = Running(tmp_path, replica("print('step 1')"), policy=Policy(), ordered=ordered)
    assert running.end().succeeded
    told = "workerpool0-0: the job ended before this simulated fault: workerpool0-0 is killed at step 20"
    assert running.lines[-1] == told


def test_the_process_that_computes_exits_with_0_or_raises_an_exception(project: Path) -> None:
    computes = "i = 0\nwhile True:\n    i += 1\n    i % 10**6 or print('step', i // 10**6, flush=True)"
    parent = f"import subprocess, sys; code = subprocess.run([sys.executable, '-c', {computes!r}]).returncode"
    job = write(project, pool(f"{parent}; print('its process ended with', code, flush=True); sys.exit(code)"))
    left = launch(project, "run", job, "--fault", "workerpool0-0:exit0@step=5")
    assert "fault: workerpool0-0 exits with code 0 at step 5" in left.stdout
    assert "its process ended with 0" in left.stdout
    raised = run_with_traceback(project, job, "workerpool0-0:raise@step=5")
    assert "RuntimeError: simulated by --fault" in raised
    assert "Job failed: workerpool0-0 exited with code 1" in raised


def run_with_traceback(project: Path, job: str, fault: str) -> str:
    """Return what `run` prints, where a traceback is the replica's."""
    done = subprocess.run(
        command("run", job, "--fault", fault),
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


CHECKPOINTS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["GCS_MOUNT"], os.environ["AIP_CHECKPOINT_DIR"].removeprefix("gs://"))
for name in ("1", "2"):
    (folder / name).mkdir(parents=True)
    (folder / name / "small").write_bytes(bytes(10))
    (folder / name / "large").write_bytes(bytes(1000))
    time.sleep(0.05)
print("step 2", flush=True)
while (folder / "2" / "large").read_bytes() == bytes(1000): time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("word", "sentence", "content"),
    [
        ("flip", "has flipped bytes in its latest checkpoint", bytes(500) + b"\xff" * 64 + bytes(436)),
        ("truncate", "has a truncated file in its latest checkpoint", bytes(500)),
    ],
)
def test_the_largest_file_of_the_newest_checkpoint_is_damaged(
    project: Path, word: str, sentence: str, content: bytes
) -> None:
    done = launch(project, "run", write(project, pool(CHECKPOINTS)), "--fault", f"workerpool0-0:{word}@step=2")
    assert f"fault: workerpool0-0 {sentence} at step 2" in done.stdout
    assert "Job succeeded" in done.stdout
    files = [file for file in (project / ".vertex/gcs/b/run").rglob("*") if file.is_file()]
    contents = {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}
    assert contents.pop("2/large") == content
    assert not any(map(any, contents.values()))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("workerpool7-0:kill", "--fault: workerpool7-0 doesn't run on this machine; use one of workerpool0-0\n"),
        ("workerpool0-0:preempt", "--fault: job.yaml doesn't use SPOT, so no machine can be preempted; use kill\n"),
    ],
)
def test_a_fault_that_the_job_cannot_have_is_one_sentence_and_nothing_starts(
    project: Path, word: str, sentence: str
) -> None:
    done = launch(project, "run", write(project, pool("print('up')")), "--fault", word)
    assert (done.returncode, done.stderr.replace("\n", " ").strip()) == (1, sentence.strip())
    assert "up" not in done.stdout.splitlines()
