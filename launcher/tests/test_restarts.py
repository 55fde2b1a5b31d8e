import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, deadline, eventually, processes, until
from launcher.tests.test_engine import CRASH, FOREVER, ISOLATIONS, replica
from vertex_launch.job.contract import Replica
from vertex_launch.local.running.engine import Execution
from vertex_launch.local.running.faults import Fault
from vertex_launch.local.running.namespaces import Isolation, isolation
from vertex_launch.local.running.outcome import Ending, Outcome, Phase
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.replica_state import Status
from vertex_launch.local.running.restart_policy import Policy

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


def together_with(path: Path) -> str:
    """Lines that wait until another, which counts its starts in this file, has started as often as this one.

    It might be stopped before it has counted: a Python takes seconds to start where the machine is busy.
    """
    return f"""
other = pathlib.Path({str(path)!r})
while not other.exists() or other.read_text() != str(count): time.sleep(0.05)
"""


class Running:
    """A job that runs in a thread, as in the service."""

    def __init__(
        self,
        folder: Path,
        *replicas: Replica,
        policy: Policy,
        isolated: Isolation | None = None,
        ordered: Sequence[Fault] = (),
    ) -> None:
        self.phases: list[Phase] = []
        self.lines: list[str] = []
        self.outcome: Outcome | None = None

        def show(one: Replica, line: str, _: str) -> None:
            self.lines.append(f"{one.name}: {line}")

        job = PreparedJob(replicas, folder / "logs", policy, isolated or isolation(), ordered)
        self.execution = Execution(job, show, self.phases.append)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.outcome = self.execution.run()

    def end(self) -> Outcome:
        self._thread.join(DEADLINE)
        assert self.outcome is not None, f"still running after {DEADLINE:g} s: {self.lines}"
        return self.outcome

    def status(self, name: str) -> Status:
        return next(one for one in self.execution.statuses if one.name == name)

    def said(self, line: str) -> bool:
        return eventually(lambda: line in self.lines)


def run(folder: Path, *replicas: Replica, policy: Policy = SERVICE, isolated: Isolation | None = None) -> Outcome:
    with deadline():
        return Running(folder, *replicas, policy=policy, isolated=isolated).end()


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_replica_that_fails_twice_and_then_succeeds_costs_two_restarts(tmp_path: Path, isolated: Isolation) -> None:
    fails_twice = counted(tmp_path / "count", "exit(0 if count == 3 else 7)")
    running = Running(tmp_path, fails_twice, policy=SERVICE, isolated=isolated)
    assert running.end().succeeded
    assert (tmp_path / "count").read_text() == "3"
    assert running.lines == [
        "workerpool0-0: workerpool0-0 exited with code 7. Restarting this replica (restart 1 of 5)",
        "workerpool0-0: workerpool0-0 exited with code 7. Restarting this replica (restart 2 of 5)",
    ]
    assert running.status("workerpool0-0") == Status("workerpool0-0", "ended", 2, 0)


@pytest.mark.proof
def test_one_that_always_fails_starts_six_times_in_each_of_four_attempts(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=5, job_retries=3, grace=0.1)
    outcome = run(tmp_path, replica(FOREVER), counted(tmp_path / "count", "exit(3)", 0), policy=policy)
    assert outcome.ending is Ending.FAILED
    assert (tmp_path / "count").read_text() == "24"
    assert outcome.message.splitlines() == [
        "The replica workerpool1-0 exited with a non-zero status of 3. Termination reason: Error. ",
        "workerpool1-0 was restarted 5 times",
        "The job was retried 3 times",
    ]


def test_the_others_go_on_while_one_restarts(tmp_path: Path) -> None:
    chief = counted(tmp_path / "chief", until(tmp_path / "worker", "2"))
    assert run(tmp_path, chief, counted(tmp_path / "worker", "exit(0 if count == 2 else 3)", 0)).succeeded
    assert (tmp_path / "chief").read_text() == "1"
    assert (tmp_path / "worker").read_text() == "2"


def test_all_restart_together_where_the_job_wants_it(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=5, job_retries=3, grace=0.2, together=True)
    chief = counted(tmp_path / "chief", until(tmp_path / "worker", "3"))
    fails = f"{together_with(tmp_path / 'chief')}exit(0 if count == 3 else 3)"
    assert run(tmp_path, chief, counted(tmp_path / "worker", fails, 0), policy=policy).succeeded
    assert (tmp_path / "chief").read_text() == "3"


def test_without_restarts_the_first_failure_is_the_end(tmp_path: Path) -> None:
    outcome = run(tmp_path, counted(tmp_path / "count", "exit(3)"), policy=Policy())
    assert [str(ended) for ended in outcome.failures] == ["workerpool0-0 exited with code 3"]
    assert "retried" not in outcome.message
    assert (tmp_path / "count").read_text() == "1"


@pytest.mark.parametrize("end", [CRASH, "exit(6)", "exit(11)", "exit(134)", "exit(139)"])
def test_after_a_crash_the_job_is_retried_and_not_the_replica(tmp_path: Path, end: str) -> None:
    outcome = run(tmp_path, counted(tmp_path / "count", end))
    assert outcome.ending is Ending.FAILED
    assert (tmp_path / "count").read_text() == "4"
    assert "restarted" not in outcome.message
    assert outcome.message.endswith("The job was retried 3 times")


def test_a_retried_job_starts_all_its_replicas_again(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=5, job_retries=1, grace=0.1)
    chief = counted(tmp_path / "chief", "time.sleep(600)")
    crashes = f"{together_with(tmp_path / 'chief')}exit(6)"
    outcome = run(tmp_path, chief, counted(tmp_path / "count", crashes, 0), policy=policy)
    assert (tmp_path / "count").read_text() == (tmp_path / "chief").read_text() == "2"
    assert str(outcome.failures[0]) == "workerpool1-0 exited with code 6"
    assert outcome.message.endswith("The job was retried 1 time")


def test_a_worker_that_is_done_is_not_started_again(tmp_path: Path) -> None:
    chief = replica(f"{until(tmp_path / 'count', '1')}\ntime.sleep(1)")
    assert run(tmp_path, chief, counted(tmp_path / "count", "", 0)).succeeded
    assert (tmp_path / "count").read_text() == "1"


def test_a_log_has_the_lines_of_all_starts(tmp_path: Path) -> None:
    run(tmp_path, counted(tmp_path / "count", "print('start', count); exit(0 if count == 3 else 3)"))
    assert (tmp_path / "logs/workerpool0-0.log").read_text().splitlines() == [
        "start 1",
        "workerpool0-0 exited with code 3. Restarting this replica (restart 1 of 5)",
        "start 2",
        "workerpool0-0 exited with code 3. Restarting this replica (restart 2 of 5)",
        "start 3",
    ]


def test_a_restart_that_cannot_be_shown_happens_all_the_same(tmp_path: Path) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    with deadline():
        one = counted(tmp_path / "count", "exit(0 if count == 2 else 3)")
        assert Execution(PreparedJob((one,), tmp_path / "logs", SERVICE), gone).run().succeeded


def test_once_the_job_fails_nothing_starts_any_more(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica("exit(3)"), counted(tmp_path / "count", "", 0), policy=Policy(stagger=600))
    assert outcome.ending is Ending.FAILED
    assert not (tmp_path / "count").exists()


SAVES = """
import os, signal
def save(*_):
    os.write(1, b"saved\\n")  # print may be what the signal has interrupted
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("start", count, flush=True)
while count == 1: time.sleep(0.1)
"""


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_preempted_machine_may_save_and_the_job_starts_again(tmp_path: Path, isolated: Isolation) -> None:
    with deadline():
        policy = Policy(preemptions=6, grace=60)
        running = Running(tmp_path, counted(tmp_path / "count", SAVES), policy=policy, isolated=isolated)
        assert running.said("workerpool0-0: start 1")
        running.execution.disturb("preempt", "workerpool0-0")
        assert running.end().succeeded
    assert running.lines == [
        "workerpool0-0: start 1",
        "workerpool0-0: saved",
        "workerpool0-0: workerpool0-0 was preempted. Restarting the job (restart 1 of 6)",
        "workerpool0-0: start 2",
    ]
    assert running.phases == ["PENDING", "RUNNING", "PENDING", "RUNNING"]


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_preempted_machine_that_ignores_it_is_gone_after_the_grace(tmp_path: Path, isolated: Isolation) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('start', count, flush=True)\n"
    worker = counted(tmp_path / "count", f"{stubborn}time.sleep(600 if count == 1 else 0)")
    with deadline():
        running = Running(tmp_path, worker, policy=Policy(preemptions=1, grace=1), isolated=isolated)
        assert running.said("workerpool0-0: start 1")
        began = time.monotonic()
        running.execution.disturb("preempt", "workerpool0-0")
        assert running.end().succeeded
        assert time.monotonic() - began > 1


def test_the_seventh_preemption_is_the_end(tmp_path: Path) -> None:
    with deadline():
        running = Running(
            tmp_path, replica("print('up', flush=True)\n" + FOREVER), policy=Policy(preemptions=6, grace=0)
        )
        for number in range(1, 8):
            assert eventually(lambda count=number: running.lines.count("workerpool0-0: up") == count)  # type: ignore[misc]
            running.execution.disturb("preempt", "workerpool0-0")
        outcome = running.end()
    assert outcome.ending is Ending.PREEMPTED
    assert outcome.message == "the job was preempted too many times. Run the job again, or don't use SPOT"


STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"


def test_two_machines_that_are_preempted_at_once_cost_one_restart(tmp_path: Path) -> None:
    chief = counted(tmp_path / "count", "print('start', count, flush=True); time.sleep(600 if count == 1 else 3)")
    with deadline():
        policy = Policy(preemptions=6, grace=1)
        running = Running(tmp_path, chief, replica(STUBBORN + FOREVER, 0), policy=policy)
        assert running.said("workerpool0-0: start 1")
        assert running.said("workerpool1-0: up")
        running.execution.disturb("preempt", "workerpool0-0")
        running.execution.disturb("preempt", "workerpool1-0")
        assert running.end().succeeded
    assert (tmp_path / "count").read_text() == "2"


def test_a_machine_that_is_gone_after_the_success_is_not_missed(tmp_path: Path) -> None:
    chief = counted(tmp_path / "count", until(tmp_path / "preempted"))
    with deadline():
        worker = replica(STUBBORN + FOREVER, 0)
        running = Running(tmp_path, chief, worker, policy=Policy(preemptions=6, grace=3))
        assert running.said("workerpool1-0: up")
        running.execution.disturb("preempt", "workerpool1-0")
        (tmp_path / "preempted").touch()
        assert running.end().succeeded
    assert (tmp_path / "count").read_text() == "1"


def test_a_frozen_replica_that_restarts_with_the_others_is_frozen_no_more(tmp_path: Path) -> None:
    ends = f"time.sleep(600) if count == 1 else exec({until(tmp_path / 'seen')!r})"
    fails = counted(tmp_path / "count", f"print('up', flush=True); {ends}")
    with deadline():
        policy = Policy(replica_restarts=5, together=True, grace=0.2)
        running = Running(tmp_path, fails, replica("print('up', flush=True)\n" + FOREVER, 0), policy=policy)
        assert running.said("workerpool0-0: up")
        assert running.said("workerpool1-0: up")
        running.execution.disturb("freeze", "workerpool1-0", 600)
        assert eventually(lambda: running.status("workerpool1-0").state == "frozen")
        running.execution.disturb("kill", "workerpool0-0")
        assert eventually(lambda: running.status("workerpool1-0") == Status("workerpool1-0", "running", 1))
        (tmp_path / "seen").touch()
        assert running.end().succeeded


def test_waiting_for_the_others_after_the_success_takes_no_computing_time(tmp_path: Path) -> None:
    with deadline():
        running = Running(tmp_path, replica("import time; time.sleep(0.5)"), replica("", 0), policy=Policy(grace=2))
        running.execution.disturb("late", "workerpool1-0", 1)
        began = time.process_time()
        assert running.end().succeeded
        assert time.process_time() - began < 0.5


def test_a_job_waits_for_its_machines_again_after_each_preemption(tmp_path: Path) -> None:
    with deadline():
        policy = Policy(preemptions=1, provision=1, grace=0)
        up = counted(tmp_path / "count", "print('up', flush=True); time.sleep(600 if count == 1 else 0)")
        running = Running(tmp_path, up, policy=policy)
        assert running.said("workerpool0-0: up")
        began = time.monotonic()
        running.execution.disturb("preempt", "workerpool0-0")
        assert running.end().succeeded
        assert time.monotonic() - began > 1


def test_a_timeout_counts_over_all_restarts(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=1000, timeout=5, grace=0)
    outcome = run(tmp_path, replica("import time; time.sleep(0.3); exit(3)"), policy=policy)
    assert outcome.ending is Ending.TIMED_OUT
    assert (
        outcome.message == "the job ran longer than its timeout of 5 s. To allow more time, increase scheduling.timeout"
    )


def test_whatever_is_ordered_before_the_first_start_comes_first(tmp_path: Path) -> None:
    chief, worker = counted(tmp_path / "chief", ""), counted(tmp_path / "worker", "", 0)
    execution = Execution(PreparedJob((chief, worker), tmp_path / "logs", SERVICE), lambda *_: None)
    for name in ("workerpool0-0", "workerpool1-0"):
        execution.disturb("late", name, 60)
    execution.cancel()
    with deadline():
        assert execution.run().ending is Ending.CANCELLED
    assert not (tmp_path / "chief").exists()
    assert not (tmp_path / "worker").exists()


def test_a_job_can_be_cancelled_while_it_waits_for_machines(tmp_path: Path) -> None:
    with deadline():
        running = Running(tmp_path, replica(FOREVER), replica("", 0), policy=Policy(stagger=60, grace=0))
        assert eventually(lambda: running.status("workerpool0-0").state == "running")
        running.execution.cancel()
        assert running.end().ending is Ending.CANCELLED
    assert running.phases == ["PENDING"]
    assert {status.state for status in running.execution.statuses} == {"ended"}


def test_a_cancelled_job_ends(tmp_path: Path) -> None:
    running = Running(tmp_path, replica("print('up', flush=True)\n" + FOREVER), policy=Policy(grace=0))
    assert running.said("workerpool0-0: up")
    running.execution.cancel()
    assert running.end().message == "the job was canceled"


def test_a_delayed_replica_comes_so_much_later(tmp_path: Path) -> None:
    with deadline():
        chief = replica(until(tmp_path / "n"))
        running = Running(tmp_path, chief, counted(tmp_path / "n", "", 0), policy=Policy(stagger=2))
        running.execution.disturb("late", "workerpool1-0", 3)
        assert eventually(lambda: running.phases == ["PENDING"])
        assert running.status("workerpool1-0").state == "waiting"
        assert eventually(lambda: running.phases == ["PENDING", "RUNNING"])
        assert running.end().succeeded


def test_a_delayed_restart_comes_so_much_later(tmp_path: Path) -> None:
    with deadline():
        running = Running(tmp_path, counted(tmp_path / "count", TICKS_ONCE), policy=SERVICE)
        assert running.said("workerpool0-0: 0")
        began = time.monotonic()
        running.execution.disturb("late", "workerpool0-0", 3)
        running.execution.disturb("kill", "workerpool0-0")
        assert eventually(lambda: running.status("workerpool0-0") == Status("workerpool0-0", "waiting", 1, 137))
        assert running.end().succeeded
        assert time.monotonic() - began > 3


TICKS = "import time\nfor i in range(10_000): print(i, flush=True); time.sleep(0.05)"
TICKS_ONCE = f"if count > 1: exit()\n{TICKS}"
CLOCK = "import time\nfor _ in range(10_000): print(time.monotonic(), flush=True); time.sleep(0.05)"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CLOCK!r}], start_new_session=True)"


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_frozen_replica_stands_still_and_goes_on(tmp_path: Path, isolated: Isolation) -> None:
    with deadline():
        running = Running(tmp_path, replica(IN_A_CHILD), policy=Policy(grace=0), isolated=isolated)
        assert eventually(lambda: len(running.lines) > 2)
        running.execution.disturb("freeze", "workerpool0-0", 4)
        assert eventually(lambda: running.status("workerpool0-0").state == "frozen")
        assert eventually(lambda: max(gaps(running.lines)) > 3)  # it may be late itself where the machine is busy
        running.execution.cancel()
        running.end()


def gaps(lines: list[str]) -> list[float]:
    """Seconds between what a replica printed, by its own clock."""
    times = [float(line.rpartition(" ")[2]) for line in lines]
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_killed_replica_restarts_like_any_that_fails(tmp_path: Path, isolated: Isolation) -> None:
    chief = counted(tmp_path / "count", "print('up', flush=True); time.sleep(600 if count == 1 else 0)")
    with deadline():
        running = Running(tmp_path, chief, policy=SERVICE, isolated=isolated)
        assert running.said("workerpool0-0: up")
        running.execution.disturb("kill", "workerpool0-0")
        assert running.end().succeeded
    said = "workerpool0-0 was killed by SIGKILL (exit code 137). Restarting this replica (restart 1 of 5)"
    assert running.lines == ["workerpool0-0: up", f"workerpool0-0: {said}", "workerpool0-0: up"]


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_nothing_of_an_earlier_start_is_left_at_the_next(tmp_path: Path, isolated: Isolation) -> None:
    mark = str(uuid.uuid4())
    leaves = f"""
import subprocess
if count == 1:
    subprocess.Popen([sys.executable, "-c", {FOREVER!r}], start_new_session=True, env={{"LEFT": "{mark}"}})
print("up", flush=True)
time.sleep(600)
"""
    with deadline():
        running = Running(tmp_path, counted(tmp_path / "count", leaves), policy=SERVICE, isolated=isolated)
        assert running.said("workerpool0-0: up")
        assert len(processes(f"LEFT={mark}")) == 1
        running.execution.disturb("kill", "workerpool0-0")
        assert eventually(lambda: running.lines.count("workerpool0-0: up") == 2)
        assert processes(f"LEFT={mark}") == []
        running.execution.cancel()
        running.end()


def test_an_unknown_replica_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    execution = Execution(PreparedJob((replica(""),), tmp_path), lambda *_: None)
    calls: list[Callable[[], None]] = [
        lambda: execution.disturb("kill", "workerpool9-0"),
        lambda: execution.disturb("late", "workerpool9-0", 1),
    ]
    for call in calls:
        with pytest.raises(KeyError):
            call()


def test_many_jobs_run_at_once(tmp_path: Path) -> None:
    with deadline():
        folders = [tmp_path / str(number) for number in range(8)]
        jobs = [Running(folder, replica(""), replica("", 0), policy=SERVICE) for folder in folders]
        assert all(job.end().succeeded for job in jobs)
