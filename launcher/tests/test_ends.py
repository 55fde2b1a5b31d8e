"""How a job ends: which codes are final, whose end is the cause, and what is said of it."""

import io
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launcher.tests.running import deadline, until
from launcher.tests.test_engine import FOREVER, replica
from launcher.tests.test_restarts import SERVICE, Running, counted, run, together_with
from vertex_launch.job.contract import Replica
from vertex_launch.local.run_job import conclude
from vertex_launch.local.running import events, faults
from vertex_launch.local.running.ended import PEER_LOST, Ended, likely_cause_first
from vertex_launch.local.running.engine import SETTLE_SECONDS
from vertex_launch.local.running.lines import ERROR_CHARACTERS, LAST_LINES, LONGEST_LINE, Splitter, Tail
from vertex_launch.local.running.outcome import Attempt, Ending, Outcome
from vertex_launch.local.running.restart_policy import Policy

TOGETHER = Policy(replica_restarts=5, job_retries=3, grace=0.2, together=True)
LATER = SETTLE_SECONDS / 5  # after the first failure, and well before the others are stopped
RESET = "RuntimeError: Connection reset by peer"


def ended(name: str, code: int, *errors: str, time: float = 0, last: tuple[str, ...] = (), **event: Any) -> Ended:
    pool, _, index = name.removeprefix("workerpool").partition("-")
    return Ended(Replica(int(pool), int(index), (), {}), code, last, errors, time, event=event)


def prints(**event: Any) -> str:
    """A line of Python that prints an event, and in words says nothing."""
    return f"print({json.dumps({'message': 'x', **event})!r}, flush=True)"


def order(*ends: Ended) -> list[tuple[str, int]]:
    return [(one.replica.name, one.code) for one in likely_cause_first(ends)]


def kept(*lines: tuple[str, str]) -> tuple[str, ...]:
    tail = Tail()
    for line, severity in lines:
        tail.add(line, severity)
    return tail.errors


def test_a_users_error_ends_the_job_at_its_first_run(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica(FOREVER), counted(tmp_path / "count", "raise ValueError('a typo')", 0))
    assert outcome.ending is Ending.FAILED
    assert (tmp_path / "count").read_text() == "1"
    assert (outcome.restarts, outcome.retries) == (0, 0)


def test_a_users_error_is_retried_where_one_wants_the_other_reading(tmp_path: Path) -> None:
    policy = Policy(replica_restarts=2, job_retries=1, grace=0, retry_user_errors=True)
    assert not run(tmp_path, counted(tmp_path / "count", "raise ValueError"), policy=policy).succeeded
    assert (tmp_path / "count").read_text() == "6"


def test_wrong_usage_and_missing_commands_are_users_errors_and_nothing_else_is() -> None:
    codes = [code for code in range(1, 256) if SERVICE.is_permanent(ended("workerpool0-0", code))]
    assert codes == [1, 2, 126, 127]


@pytest.mark.parametrize("policy", [SERVICE, TOGETHER], ids=["alone", "together"])
def test_a_users_error_ends_the_job_also_if_its_peers_were_lost_first(tmp_path: Path, policy: Policy) -> None:
    wrong = f"import time; print('up', flush=True); time.sleep({LATER}); raise ValueError('the cause')"
    up = until(tmp_path / "logs/workerpool1-0.log", "up")
    lost = f"{up}\ntime.sleep(600) if count > 1 else exit({PEER_LOST})"
    with deadline():
        job = Running(tmp_path, counted(tmp_path / "chief", lost), replica(wrong, 0), policy=policy)
        outcome = job.end()
    assert outcome.ending is Ending.FAILED
    assert outcome.retries == 0
    assert str(outcome.failures[0]) == "workerpool1-0 exited with code 1"
    assert "ValueError: the cause" in outcome.message
    assert (
        "workerpool1-0: workerpool1-0 exited with code 1, which is a permanent user error, so the job isn't retried"
        in job.lines
    )


def test_all_start_again_together_when_nobody_says_why_a_peer_was_lost(tmp_path: Path) -> None:
    lost = f"{together_with(tmp_path / 'worker')}exit({PEER_LOST} if count == 1 else 0)"
    also = f"{together_with(tmp_path / 'chief')}exit({PEER_LOST}) if count == 1 else time.sleep(600)"
    chief, worker = counted(tmp_path / "chief", lost), counted(tmp_path / "worker", also, 0)
    assert run(tmp_path, chief, worker, policy=TOGETHER).succeeded
    assert [(tmp_path / name).read_text() for name in ("chief", "worker")] == ["2", "2"]


def test_what_fails_with_a_machine_that_is_preempted_starts_again_with_it(tmp_path: Path) -> None:
    gone = until(tmp_path / "logs/workerpool0-0.log", "was being preempted")
    slow = f"import signal; signal.signal(15, lambda *_: exit(exec({gone!r}) or 1))"
    first = "print('up', flush=True)\nwhile count == 1: time.sleep(0.1)"
    worker = counted(tmp_path / "worker", f"if count == 1: {slow}\n{first}", 0)
    chief = counted(tmp_path / "chief", first)
    with deadline():
        job = Running(tmp_path, chief, worker, policy=Policy(replica_restarts=5, preemptions=1, grace=30))
        assert job.said("workerpool0-0: up")
        assert job.said("workerpool1-0: up")
        job.execution.disturb("preempt", "workerpool1-0")
        job.execution.disturb("kill", "workerpool0-0")
        assert job.end().succeeded
    assert [line for line in job.lines if not line.endswith("up")] == [
        "workerpool0-0: workerpool0-0 was killed by SIGKILL (exit code 137) while workerpool1-0 was being preempted",
        "workerpool1-0: workerpool1-0 was preempted. Restarting the job (restart 1 of 1)",
    ]


def test_a_worker_that_leaves_early_is_told_and_named_as_the_cause(tmp_path: Path) -> None:
    told = until(tmp_path / "logs/workerpool1-0.log", "while other replicas were still running")
    chief = f"{told}\nraise ConnectionError('Connection reset by peer')"
    leaver = replica("print('no more data')", 0)
    with deadline():
        job = Running(tmp_path, replica(chief), leaver, replica(FOREVER, 1), policy=Policy(grace=0))
        outcome = job.end()
    early = "workerpool1-0 exited with code 0 while other replicas were still running"
    assert job.lines[:2] == ["workerpool1-0: no more data", f"workerpool1-0: {early}"]
    assert [str(one) for one in outcome.failures] == [early, "workerpool0-0 exited with code 1"]
    said = outcome.message.splitlines()
    assert said[:3] == [f"The replica {early}.", "no more data", "After that, workerpool0-0 exited with code 1"]
    assert said[-1] == "ConnectionError: Connection reset by peer"


def test_who_leaves_shortly_before_the_end_is_not_told() -> None:
    attempt, leaver = Attempt(), ended("workerpool1-0", 0, time=10)
    attempt.left.append(leaver)
    assert [attempt.to_tell(since) for since in (9, 11, 12)] == [[], [leaver], []]


def test_evaluators_and_servers_may_leave_when_they_like(tmp_path: Path) -> None:
    chief = replica(f"import time; time.sleep({2 * SETTLE_SECONDS}); exit(3)")
    evaluator = Replica(3, 0, (sys.executable, "-c", ""), {})
    with deadline():
        job = Running(tmp_path, chief, evaluator, policy=Policy(grace=0))
        assert [one.replica.name for one in job.end().failures] == ["workerpool0-0"]
    assert job.lines == []


def test_one_that_came_back_is_named_behind_the_cause(tmp_path: Path) -> None:
    worker = counted(tmp_path / "worker", "time.sleep(600) if count > 1 else exit(9)", 0)
    outcome = run(tmp_path, replica(f"{until(tmp_path / 'worker', '2')}\nexit(2)"), worker)
    assert [str(one) for one in outcome.failures] == [
        "workerpool0-0 exited with code 2",
        "workerpool1-0 exited with code 9",
    ]
    assert [*outcome.others] == ["Before that, workerpool1-0 exited with code 9"]


@pytest.mark.parametrize(
    ("cause", "others"),
    [
        (ended("workerpool1-0", 139, time=9), [ended("workerpool0-0", 1), ended("workerpool1-1", 255)]),
        (ended("workerpool1-0", 137, time=9), [ended("workerpool0-0", 1, "ValueError: x"), ended("workerpool1-1", 0)]),
        (ended("workerpool1-0", 1, "ValueError: x", time=9), [ended("workerpool0-0", 1, RESET)]),
        (ended("workerpool1-0", 1, "ValueError: x", time=9), [ended("workerpool0-0", PEER_LOST)]),
        (ended("workerpool1-0", 3, time=1), [ended("workerpool0-0", 1, "KeyError: y", time=2)]),
        # NCCL's watchdog ends its own process, once somebody else is gone.
        (ended("workerpool1-0", 1, "ValueError: x", time=1), [ended("workerpool0-0", 134, time=2)]),
        (ended("workerpool1-0", 0, time=1), [ended("workerpool0-0", PEER_LOST), ended("workerpool1-1", 1, RESET)]),
        # Who left an hour ago is not why the chief has a typo.
        (ended("workerpool0-0", 1, "NameError: z", time=3600), [ended("workerpool1-0", 0)]),
    ],
)
def test_the_likely_cause_comes_first(cause: Ended, others: list[Ended]) -> None:
    assert order(*others, cause)[0] == (cause.replica.name, cause.code)


def test_of_those_who_lost_a_peer_the_one_that_most_name_is_the_cause() -> None:
    far, near = ("workerpool1-1", "workerpool0-0")
    cut = ended(far, PEER_LOST, "x", time=1, lost_peer=near)
    others = [ended(name, PEER_LOST, "x", time=2, lost_peer=far) for name in ("workerpool0-0", "workerpool1-0")]
    assert order(others[0], cut, others[1])[0][0] == far
    outcome = Outcome(likely_cause_first((*others, cut)), Ending.FAILED)
    assert [*outcome.others] == ["2 other replicas lost a connection"]


def test_the_replica_whose_copy_differs_is_the_cause_and_nobody_lost_a_connection() -> None:
    names = ("workerpool0-0", "workerpool1-1", "workerpool1-0")
    ends = [ended(name, PEER_LOST, "x", time=n, diverged=["workerpool1-0"]) for n, name in enumerate(names)]
    outcome = Outcome(likely_cause_first(ends), Ending.FAILED)
    assert [str(outcome.failures[0]), *outcome.others] == [
        "workerpool1-0 exited with code 75",
        "2 other replicas stopped at the same step",
    ]


def test_those_who_saved_a_step_because_one_was_told_to_end_have_lost_no_connection() -> None:
    told = ended("workerpool1-0", 128 + signal.SIGTERM, time=2)
    event: dict[str, Any] = {"saved": 8, "asked_to_stop": "workerpool1-0"}
    others = [ended(name, PEER_LOST, time=1, **event) for name in ("workerpool0-0", "workerpool1-1")]
    outcome = Outcome(likely_cause_first((*others, told)), Ending.FAILED)
    assert [str(outcome.failures[0]), *outcome.others] == [
        "workerpool1-0 was killed by SIGTERM (exit code 143)",
        "2 other replicas saved the same step",
    ]


def test_who_still_runs_and_is_stopped_is_named_before_those_who_lost_it(tmp_path: Path) -> None:
    up = until(tmp_path / "logs/workerpool1-0.log", "up")
    chief = f"{up}\nprint('workerpool0-0 lost a peer: somebody', flush=True); exit({PEER_LOST})"
    frozen = "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    worker = replica(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {frozen!r}])", 0)
    with deadline():
        outcome = Running(tmp_path, replica(chief), worker, policy=Policy(grace=0)).end()
    first = str(outcome.failures[0])
    assert first.startswith("workerpool1-0 is still running but hasn't printed a line for ")
    assert first.endswith(" s. Its process is stopped (SIGSTOP)")
    assert [*outcome.others] == ["After that, workerpool0-0 exited with code 75"]


SAYS_AND_GOES_ON = "import json; print(json.dumps({'message': 'part 1'}), flush=True)\n" + FOREVER


def test_who_hangs_is_named_with_the_place_before_those_who_wait_for_it(tmp_path: Path) -> None:
    up = until(tmp_path / "logs/workerpool1-1.log", "part")
    place = "decode (trainer/data.py:71): no progress for 41 s"
    says = f"{up}\n{prints(stuck='workerpool1-1', place=place)}; exit({PEER_LOST})"
    stuck, does = replica(SAYS_AND_GOES_ON, 1), f"is stuck in {place}"
    with deadline():
        outcome = Running(tmp_path, replica(says), replica(says, 0), stuck, policy=Policy(grace=0)).end()
    assert [str(outcome.failures[0]), *outcome.others] == [f"workerpool1-1 {does}", "2 other replicas waited for it"]


def test_who_is_absent_by_the_roll_call_and_still_runs_is_named_before_those_who_waited(tmp_path: Path) -> None:
    up = until(tmp_path / "logs/workerpool1-1.log", "part")
    says = f"{up}\n{prints(severity='ERROR', absent=['workerpool1-1'])}; exit({PEER_LOST})"
    with deadline():
        waiting = replica(says), replica(says, 0)
        outcome = Running(tmp_path, *waiting, replica(SAYS_AND_GOES_ON, 1), policy=Policy(grace=0)).end()
    assert str(outcome.failures[0]).startswith("workerpool1-1 is still running but hasn't printed a line for ")
    assert [*outcome.others] == ["2 other replicas lost a connection"]


def test_a_loop_that_exits_with_1_is_no_cause_if_its_event_blames_another_one() -> None:
    own = ended("workerpool0-0", 1, "RuntimeError: x", time=1, lost_peer="workerpool1-0")
    assert order(own, ended("workerpool1-0", 1, "ValueError: x", time=2))[0] == ("workerpool1-0", 1)


def events_of(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The last event after each of these lines."""
    tail, found = Tail(), list[dict[str, Any]]()
    for line in lines:
        tail.add(json.dumps(line), "INFO")
        found.append({**tail.event})
    return found


def test_the_last_event_counts_until_the_replica_goes_on() -> None:
    lost, named = {"lost_peer": ""}, {"lost_peer": "workerpool1-0", "severity": "ERROR"}
    assert events_of(lost, {"message": "x"}, named) == [lost, lost, named]
    of_elastic = {"gone": ["workerpool1-0"]}, {"back": ["workerpool1-0"]}
    for goes_on in ({"step": 3, "steps": 9}, {"resumed": 3}, {"saved": 3}, *of_elastic):
        assert events_of(named, goes_on) == [named, {}]
    assert events_of({"saved": 3, "asked_to_stop": "workerpool1-0"})[0]["asked_to_stop"] == "workerpool1-0"


@pytest.mark.parametrize("value", [None, 3, {"a": 1}, [None, ["workerpool1-0"]], "", []])
def test_an_event_whose_value_is_no_name_blames_nobody(value: Any) -> None:
    for key in events.FATES:
        one = ended("workerpool0-0", PEER_LOST, **{key: value})
        assert (one.accused, events.stuck(one.event).keys() <= {""}) == ((), True)


SHELL = f"{sys.executable} -c 'raise RuntimeError(123)' 2>&1 | cat; seq 30"  # more lines than are kept


def test_a_success_after_a_traceback_says_so_and_so_does_one_that_stops_others(tmp_path: Path) -> None:
    said = (
        until(tmp_path / "logs/workerpool1-0.log", "part") + "\n" + until(tmp_path / "logs/workerpool3-0.log", "part")
    )
    shell = f"import subprocess; subprocess.run({SHELL!r}, shell=True)"
    evaluator = replace(replica(SAYS_AND_GOES_ON), pool=3)
    others = replica(SAYS_AND_GOES_ON, 0), replica("", 1), evaluator
    outcome = run(tmp_path, replica(f"{said}\n{shell}"), *others, policy=Policy(grace=0.2))
    assert outcome.succeeded
    assert [note.partition(".")[0] for note in outcome.notes] == [
        "workerpool0-0 exited with code 0 after a traceback: RuntimeError: 123",
        "workerpool1-0 was still running when the chief exited with code 0, so it was stopped",
        "workerpool3-0 was still running when the chief exited with code 0, so it was stopped",
    ]
    assert outcome.notes[1].endswith("Its last line: part 1")


def test_parameter_servers_and_their_workers_are_stopped_without_a_word(tmp_path: Path) -> None:
    server = replace(replica(FOREVER), pool=2)
    assert run(tmp_path, replica(""), replica(FOREVER, 0), server, policy=Policy(grace=0.2)).notes == ()


@pytest.mark.parametrize(
    ("lines", "raised"),
    [
        (
            ["Traceback (most recent call last):", '  File "a.py", line 1', "    f(x)", "ValueError: x", "y: 1"],
            "ValueError: x",
        ),
        (
            ["[rank1]: Traceback (most recent call last):", "[rank0]: step: 1", "[rank1]:   File", "[rank1]: KeyError"],
            "KeyError",
        ),
        (
            ["9%\rTraceback (most recent call last):", "  File", "step 3 of 9", "torch.cuda.OutOfMemoryError: no"],
            "torch.cuda.OutOfMemoryError: no",
        ),
        (
            [json.dumps({"message": "failed\nTraceback (most recent call last):\n  File\nOSError: full"})],
            "OSError: full",
        ),
        (
            [
                "Exception ignored in: <function A.__del__>",
                "Traceback (most recent call last):",
                "  File",
                "OSError: x",
            ],
            "",
        ),
        (["Traceback (most recent call last):", "  File"], ""),
        (["ValueError: x"], ""),
    ],
)
def test_the_exception_of_the_last_traceback_is_kept(lines: list[str], raised: str) -> None:
    tail = Tail()
    for line in lines:
        tail.add(line, "INFO")
    assert tail.raised == raised


@pytest.mark.parametrize(
    "words", ["wait timeout after 20000ms", "Timed out", "only some hosts answered before the deadline"]
)
def test_one_that_never_started_is_named_before_any_that_failed_and_their_traceback_is_shown(
    tmp_path: Path, words: str
) -> None:
    late = faults.parsed(["workerpool1-0:late=600"])
    with deadline():
        chief, worker = replica(f"raise RuntimeError({words!r})"), replica("", 0)
        outcome = Running(tmp_path, chief, worker, policy=Policy(grace=0), ordered=late).end()
    assert str(outcome.failures[0]) == "workerpool1-0 hasn't started yet"
    assert [*outcome.others] == ["After that, workerpool0-0 exited with code 1"]
    shown = io.StringIO()
    conclude(outcome, 0, None, tmp_path, Console(file=shown))
    for told in (outcome.message, shown.getvalue()):
        assert f"RuntimeError: {words}" in told


def test_a_failure_before_the_turn_of_others_has_no_other_cause(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica("exit(3)"), replica("", 0), policy=Policy(stagger=0.5))
    assert str(outcome.failures[0]) == "workerpool0-0 exited with code 3"


def test_the_service_names_replica_code_and_traceback() -> None:
    trace = ["Traceback (most recent call last):", '  File "task.py", line 1, in <module>', "ValueError: x"]
    outcome = Outcome((ended("workerpool0-0", 1, "a warning", *trace),), Ending.FAILED)
    said = "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error. \n"
    assert outcome.message == said + "\n".join(trace)


def test_a_signal_has_its_name_and_lines_of_json_are_read() -> None:
    last = json.dumps({"severity": "INFO", "message": "step 3"})
    assert ended("workerpool1-0", 137, last=(last,)).verdict.splitlines() == [
        "The replica workerpool1-0 exited with a non-zero status of 137(SIGKILL). Termination reason: Error. ",
        "step 3",
    ]


def test_of_the_output_only_errors_are_kept_as_such_and_of_json_the_message() -> None:
    said = json.dumps({"severity": "ERROR", "message": "no such flag"})
    noise = json.dumps({"severity": "INFO", "message": "a line of a library"})
    assert kept(("step 1", "INFO"), (said, "INFO"), (noise, "ERROR"), ("a warning", "ERROR")) == (
        "no such flag",
        "a warning",
    )


def test_the_last_traceback_counts_with_all_behind_it_also_behind_a_progress_bar_or_a_rank() -> None:
    first = ("Traceback (most recent call last):", "KeyError: 1", "10%\r90%")
    last = ("[rank0]: Traceback (most recent call last):", "[rank0]: ValueError", "process 0 failed")
    errors = kept(*((line, "ERROR") for line in (*first, *last)))
    assert errors[2] == "90%"
    assert ended("workerpool0-0", 1, *errors).traceback == last


def test_what_is_kept_of_errors_is_more_than_the_last_lines_and_bounded() -> None:
    errors = kept(*((f"{number} {'x' * 99}", "ERROR") for number in range(10_000)))
    assert len(errors) > 5 * LAST_LINES
    assert errors[-1].startswith("9999 ")
    assert len("\n".join(errors)) <= ERROR_CHARACTERS
    assert [len(line) for line in kept(("x" * 10**6, "ERROR"))] == [ERROR_CHARACTERS]
    assert len(ended("workerpool0-0", 3, last=("x" * LONGEST_LINE,)).verdict) < 2 * ERROR_CHARACTERS


def test_lines_are_whole_however_they_arrive() -> None:
    text = b"one\r\n\ntwo\nthree"
    for size in range(1, len(text) + 1):
        splitter = Splitter()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert [line for piece in (*pieces, b"") for line in splitter.feed(piece)] == ["one", "", "two", "three"]
