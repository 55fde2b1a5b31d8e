import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.emulator.engine import Ending, Execution, Outcome, Phase, Policy, Status
from launch.emulator.isolation import Isolation
from launch.replicas import Replica
from tests.test_engine import CRASH, FOREVER, ISOLATIONS, deadline, replica
from tests.training import eventually

# Counts its starts in a file of its own.
COUNTED = """
import pathlib, sys, time
path = pathlib.Path({path!r})
count = int(path.read_text()) + 1 if path.exists() else 1
path.write_text(str(count))
"""
SERVICE = Policy(replica_restarts=5, job_retries=3, grace=1)


def counted(path: Path, then: str, index: int | None = None) -> Replica:
    return replica(COUNTED.format(path=str(path)) + then, index)


class Running:
    """A job that runs in a thread, as in the service."""

    def __init__(self, folder: Path, *replicas: Replica, policy: Policy, isolated: Isolation | None = None) -> None:
        self.phases: list[Phase] = []
        self.lines: list[str] = []
        self.outcome: Outcome | None = None

        def show(one: Replica, line: str) -> None:
            self.lines.append(f"{one.name}: {line}")

        self.execution = Execution(replicas, folder / "logs", show, policy, self.phases.append, isolated)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.outcome = self.execution.run()

    def end(self, seconds: float = 30) -> Outcome:
        self._thread.join(seconds)
        assert self.outcome is not None, f"still running after {seconds:g} s: {self.lines}"
        return self.outcome

    def status(self, name: str) -> Status:
        return next(one for one in self.execution.statuses if one.name == name)

    def said(self, line: str) -> bool:
        return eventually(lambda: line in self.lines, 20)


def run(folder: Path, *replicas: Replica, policy: Policy = SERVICE, isolated: Isolation | None = None) -> Outcome:
    with deadline(60):
        return Running(folder, *replicas, policy=policy, isolated=isolated).end(60)


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_replica_that_fails_twice_and_then_succeeds_costs_two_restarts(tmp_path: Path, isolated: Isolation) -> None:
    fails_twice = counted(tmp_path / "count", "exit(0 if count == 3 else 7)")
    running = Running(tmp_path, fails_twice, policy=SERVICE, isolated=isolated)
    assert running.end().succeeded
    assert (tmp_path / "count").read_text() == "3"
    assert running.lines == [
        "workerpool0-0: workerpool0-0 exited with code 7; it starts again, restart 1 of 5",
        "workerpool0-0: workerpool0-0 exited with code 7; it starts again, restart 2 of 5",
    ]
    assert running.status("workerpool0-0") == Status("workerpool0-0", "ended", 2, 0)


def test_one_that_always_fails_starts_six_times_in_each_of_four_attempts(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica(FOREVER), counted(tmp_path / "count", "exit(3)", 0))
    assert outcome.ending is Ending.FAILED
    assert (tmp_path / "count").read_text() == "24"
    assert outcome.message == "workerpool1-0 exited with code 3 after 5 restarts; the job was retried 3 times"


def test_the_others_go_on_while_one_restarts(tmp_path: Path) -> None:
    chief = counted(tmp_path / "chief", "time.sleep(2)")
    assert run(tmp_path, chief, counted(tmp_path / "worker", "exit(0 if count == 2 else 1)", 0)).succeeded
    assert (tmp_path / "chief").read_text() == "1"
    assert (tmp_path / "worker").read_text() == "2"


def test_all_restart_together_where_the_job_wants_it(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=5, job_retries=3, grace=0.2, together=True)
    chief = counted(tmp_path / "chief", "time.sleep(1)")
    assert run(
        tmp_path, chief, counted(tmp_path / "worker", "exit(0 if count == 3 else 1)", 0), policy=policy
    ).succeeded
    assert (tmp_path / "chief").read_text() == "3"


def test_without_restarts_the_first_failure_is_the_end(tmp_path: Path) -> None:
    outcome = run(tmp_path, counted(tmp_path / "count", "exit(3)"), policy=Policy())
    assert outcome.message == "workerpool0-0 exited with code 3"
    assert (tmp_path / "count").read_text() == "1"


@pytest.mark.parametrize("end", [CRASH, "exit(6)", "exit(134)"])
def test_after_a_crash_the_job_is_retried_and_not_the_replica(tmp_path: Path, end: str) -> None:
    outcome = run(tmp_path, counted(tmp_path / "chief", "time.sleep(60)"), counted(tmp_path / "count", end, 0))
    assert outcome.ending is Ending.FAILED
    assert (tmp_path / "count").read_text() == (tmp_path / "chief").read_text() == "4"
    assert "after" not in outcome.message
    assert outcome.message.endswith("the job was retried 3 times")


def test_a_worker_that_is_done_is_not_started_again(tmp_path: Path) -> None:
    assert run(tmp_path, replica("import time; time.sleep(1)"), counted(tmp_path / "count", "", 0)).succeeded
    assert (tmp_path / "count").read_text() == "1"


def test_a_log_has_the_lines_of_all_starts(tmp_path: Path) -> None:
    run(tmp_path, counted(tmp_path / "count", "print('start', count); exit(0 if count == 3 else 1)"))
    log = (tmp_path / "logs/workerpool0-0.log").read_text().splitlines()
    assert [line for line in log if line.startswith("start")] == ["start 1", "start 2", "start 3"]


SAVES = """
import signal
def save(*_):
    print("saved", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("start", count, flush=True)
time.sleep(60 if count == 1 else 0)
"""


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_preempted_machine_may_save_and_the_job_starts_again(tmp_path: Path, isolated: Isolation) -> None:
    with deadline(60):
        policy = Policy(preemptions=6, grace=5)
        running = Running(tmp_path, counted(tmp_path / "count", SAVES), policy=policy, isolated=isolated)
        assert running.said("workerpool0-0: start 1")
        running.execution.preempt("workerpool0-0")
        assert running.end().succeeded
    assert running.lines == [
        "workerpool0-0: start 1",
        "workerpool0-0: saved",
        "workerpool0-0: workerpool0-0 was preempted; the job starts again, restart 1 of 6",
        "workerpool0-0: start 2",
    ]
    assert running.phases == [Phase.PENDING, Phase.RUNNING, Phase.PENDING, Phase.RUNNING]


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_preempted_machine_that_ignores_it_is_gone_after_the_grace(tmp_path: Path, isolated: Isolation) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('start', count, flush=True)\n"
    worker = counted(tmp_path / "count", f"{stubborn}time.sleep(60 if count == 1 else 0)")
    with deadline(60):
        running = Running(tmp_path, worker, policy=Policy(preemptions=1, grace=1), isolated=isolated)
        assert running.said("workerpool0-0: start 1")
        began = time.monotonic()
        running.execution.preempt("workerpool0-0")
        assert running.end().succeeded
        assert time.monotonic() - began > 1


def test_one_preemption_too_many_is_the_end(tmp_path: Path) -> None:
    with deadline(60):
        running = Running(
            tmp_path, replica("print('up', flush=True)\n" + FOREVER), policy=Policy(preemptions=1, grace=0)
        )
        for number in (1, 2):
            assert eventually(lambda count=number: running.lines.count("workerpool0-0: up") == count, 20)  # type: ignore[misc]
            running.execution.preempt("workerpool0-0")
        outcome = running.end()
    assert outcome.ending is Ending.PREEMPTED
    assert outcome.message == "the job was preempted too often"


def test_a_timeout_counts_over_all_restarts(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=1000, timeout=1.5, grace=0)
    began = time.monotonic()
    outcome = run(tmp_path, counted(tmp_path / "count", "time.sleep(0.3); exit(1)"), policy=policy)
    assert outcome.ending is Ending.TIMED_OUT
    assert outcome.message == "the job ran longer than its timeout"
    assert 1.5 < time.monotonic() - began < 10
    assert int((tmp_path / "count").read_text()) > 1


def test_a_job_can_be_cancelled_before_its_first_start(tmp_path: Path) -> None:
    running = Running(tmp_path, counted(tmp_path / "count", ""), policy=SERVICE)
    running.execution.delay("workerpool0-0", 60)
    running.execution.cancel()
    assert running.end().ending in (Ending.CANCELLED, Ending.SUCCEEDED)


def test_a_cancelled_job_ends_at_once(tmp_path: Path) -> None:
    running = Running(tmp_path, replica("print('up', flush=True)\n" + FOREVER), policy=Policy(grace=0))
    assert running.said("workerpool0-0: up")
    began = time.monotonic()
    running.execution.cancel()
    assert running.end().message == "the job was cancelled"
    assert time.monotonic() - began < 5


def test_a_delayed_replica_comes_so_much_later(tmp_path: Path) -> None:
    with deadline(60):
        policy = Policy(stagger=0.5)
        running = Running(
            tmp_path, replica("import time; time.sleep(2)"), counted(tmp_path / "n", "", 0), policy=policy
        )
        running.execution.delay("workerpool1-0", 1)
        assert eventually(lambda: running.phases == [Phase.PENDING])
        assert running.status("workerpool1-0").state == "waiting"
        assert eventually(lambda: running.phases == [Phase.PENDING, Phase.RUNNING])
        assert running.end().succeeded


TICKS = "import time\nfor i in range(10_000): print(i, flush=True); time.sleep(0.05)"


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_frozen_replica_stands_still_and_goes_on(tmp_path: Path, isolated: Isolation) -> None:
    with deadline(60):
        running = Running(tmp_path, replica(TICKS), policy=Policy(grace=0), isolated=isolated)
        assert running.said("workerpool0-0: 2")
        running.execution.freeze("workerpool0-0", 1.5)
        assert eventually(lambda: running.status("workerpool0-0").state == "frozen")
        time.sleep(0.3)
        stood = len(running.lines)
        time.sleep(0.6)
        assert len(running.lines) == stood
        assert eventually(lambda: len(running.lines) > stood + 2)
        running.execution.cancel()
        running.end()


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_killed_replica_restarts_like_any_that_fails(tmp_path: Path, isolated: Isolation) -> None:
    chief = counted(tmp_path / "count", "print('up', flush=True); time.sleep(60 if count == 1 else 0)")
    with deadline(60):
        running = Running(tmp_path, chief, policy=SERVICE, isolated=isolated)
        assert running.said("workerpool0-0: up")
        running.execution.kill("workerpool0-0")
        assert running.end().succeeded
    said = "workerpool0-0 was ended by SIGKILL (exit code 137); it starts again, restart 1 of 5"
    assert running.lines == ["workerpool0-0: up", f"workerpool0-0: {said}", "workerpool0-0: up"]


def test_an_unknown_replica_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    execution = Execution([replica("")], tmp_path, lambda *_: None, Policy())
    calls: list[Callable[[], None]] = [
        lambda: execution.kill("workerpool9-0"),
        lambda: execution.delay("workerpool9-0", 1),
    ]
    for call in calls:
        with pytest.raises(KeyError):
            call()


def test_many_jobs_run_at_once(tmp_path: Path) -> None:
    with deadline(60):
        folders = [tmp_path / str(number) for number in range(8)]
        jobs = [Running(folder, replica(""), replica("", 0), policy=SERVICE) for folder in folders]
        assert all(job.end().succeeded for job in jobs)
