import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SOURCE, deadline, eventually, processes, until
from vertex_launch.errors import FaultError
from vertex_launch.job.contract import Replica
from vertex_launch.local.running import engine
from vertex_launch.local.running.hosts import first_ephemeral_port, free_addresses
from vertex_launch.local.running.lines import LAST_LINES, LONGEST_LINE
from vertex_launch.local.running.namespaces import Isolation, isolation
from vertex_launch.local.running.outcome import Outcome
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.process import READ_SECONDS
from vertex_launch.local.running.restart_policy import Policy

FOREVER = "import time\nwhile True: time.sleep(1)"
# Process 1 of a namespace cannot be killed from inside, not even by itself; a real fault ends it all the same.
CRASH = "import ctypes; ctypes.string_at(0)"

# With namespaces and without: on many systems only the one or the other can be had.
ISOLATIONS = [pytest.param(Isolation(), id="plain"), pytest.param(isolation(), id="namespace")]


def replica(script: str, index: int | None = None, **env: str) -> Replica:
    """The chief, or a worker by its index, that runs a Python script."""
    pool, index = (0, 0) if index is None else (1, index)
    # With LC_CTYPE set, no Python on the way sets it.
    return Replica(pool, index, (sys.executable, "-c", script), {"LC_CTYPE": "C.UTF-8"} | env)


def run(folder: Path, *replicas: Replica, grace: float = 2, isolated: Isolation | None = None) -> Outcome:
    with deadline():
        return engine.run(PreparedJob(replicas, folder, Policy(grace=grace), isolated or isolation()), lambda *_: None)


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_the_job_succeeds_with_its_primary_and_the_others_are_stopped(tmp_path: Path, isolated: Isolation) -> None:
    mark = str(uuid.uuid4())
    outcome = run(tmp_path, replica("print('done')"), replica(FOREVER, 0, MARK=mark), grace=0.3, isolated=isolated)
    assert outcome.succeeded
    assert processes(mark) == []


def test_a_worker_that_is_ready_first_does_not_end_the_job(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica("import time; time.sleep(0.5); print('late')"), replica("", 0))
    assert outcome.succeeded
    assert (tmp_path / "workerpool0-0.log").read_text() == "late\n"


def test_what_others_do_after_the_success_is_no_failure(tmp_path: Path) -> None:
    done = tmp_path / "done"
    chief = replica(f"import os; open({str(done)!r}, 'w').close(); os._exit(0)")
    assert run(tmp_path, chief, replica(f"{until(done)}\ntime.sleep(0.5); exit(3)", 0), grace=30).succeeded


def test_a_failing_worker_ends_the_job_and_is_the_first_failure(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica(FOREVER), replica(FOREVER, 0), replica("exit(7)", 1))
    assert [(ended.replica.name, ended.code) for ended in outcome.failures] == [("workerpool1-1", 7)]
    assert str(outcome.failures[0]) == "workerpool1-1 exited with code 7"


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_signal_is_a_likelier_cause_than_the_peers_that_fell_over_before_it_was_seen(
    tmp_path: Path, isolated: Isolation
) -> None:
    killed = f"import ctypes, time; print('up', flush=True); time.sleep(0.3); {CRASH}"
    up = until(tmp_path / "workerpool1-1.log", "up")
    peers = replica(f"{up}\nexit(1)"), replica(f"{up}\nexit(255)", 0)
    outcome = run(tmp_path, *peers, replica(killed, 1), isolated=isolated)
    assert outcome.failures[0].code == 139
    assert str(outcome.failures[0]) == "workerpool1-1 was killed by SIGSEGV (exit code 139)"
    assert sorted(ended.code for ended in outcome.failures[1:]) == [1, 255]


def test_the_last_lines_are_kept_and_the_log_has_all(tmp_path: Path) -> None:
    outcome = run(tmp_path, replica("for i in range(500): print(i)\nexit(1)"))
    lines = [str(i) for i in range(500)]
    assert list(outcome.failures[0].last_lines) == lines[-LAST_LINES:]
    assert (tmp_path / "workerpool0-0.log").read_text().splitlines() == lines


def test_lines_of_both_streams_are_whole_and_stderr_is_of_severity_error(tmp_path: Path) -> None:
    script = "import os\nfor out in (b'o', b'ne\\ntw', b'o\\r\\nthree'): os.write(1, out); os.write(2, out.upper())"
    shown: list[tuple[str, str]] = []
    with deadline():
        engine.run(PreparedJob((replica(script),), tmp_path), lambda _, line, severity: shown.append((severity, line)))
    assert [line for severity, line in shown if severity == "INFO"] == ["one", "two", "three"]
    assert [line for severity, line in shown if severity == "ERROR"] == ["ONE", "TWO", "THREE"]
    assert (tmp_path / "workerpool0-0.log").read_text().splitlines() == [line for _, line in shown]


def test_every_line_is_shown_with_its_replica(tmp_path: Path) -> None:
    shown: list[tuple[str, str]] = []
    chief = replica(f"print('a')\n{until(tmp_path / 'workerpool1-0.log', 'b')}")
    worker = replica("import time; print('b'); time.sleep(600)", 0, PYTHONUNBUFFERED="1")
    with deadline():
        job = PreparedJob((chief, worker), tmp_path, Policy(grace=0))
        engine.run(job, lambda who, line, _: shown.append((who.name, line)))
    assert sorted(shown) == [("workerpool0-0", "a"), ("workerpool1-0", "b")]


def test_output_that_cannot_be_shown_holds_no_replica_up(tmp_path: Path) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    with deadline():
        outcome = engine.run(PreparedJob((replica("for i in range(50_000): print('many words')"),), tmp_path), gone)
    assert outcome.succeeded
    assert len((tmp_path / "workerpool0-0.log").read_text().splitlines()) == 50_000


def test_the_last_words_are_kept_however_slowly_they_are_shown(tmp_path: Path) -> None:
    script = "import os; os.write(1, b'x\\n' * 3000 + b'the reason\\n'); os._exit(1)"
    with deadline():
        outcome = engine.run(PreparedJob((replica(script),), tmp_path), lambda *_: time.sleep(0.0005))
    assert outcome.failures[0].last_lines[-1] == "the reason"
    assert len((tmp_path / "workerpool0-0.log").read_text().splitlines()) == 3001


@pytest.mark.proof
def test_a_terminal_that_takes_longer_than_a_silence_may_last_costs_no_line(tmp_path: Path) -> None:
    count = int(READ_SECONDS) + 2
    with deadline():
        engine.run(PreparedJob((replica(f"for i in range({count}): print(i)"),), tmp_path), lambda *_: time.sleep(1))
    assert len((tmp_path / "workerpool0-0.log").read_text().splitlines()) == count


def test_bytes_that_are_no_text_and_a_very_long_line_are_survived(tmp_path: Path) -> None:
    script = "import os; os.write(1, bytes([0xff, 0xfe, 0x41, 10])); print('x' * 3_000_000); exit(1)"
    odd, long = run(tmp_path, replica(script)).failures[0].last_lines
    assert odd == "\ufffd\ufffdA"
    assert len(long) == 3_000_000


@pytest.mark.parametrize("command", ["no-such-command", "/no/such/file", "/"])
def test_a_command_that_cannot_be_started_is_127_and_named(tmp_path: Path, command: str) -> None:
    outcome = run(tmp_path, Replica(0, 0, (command, "--flag"), {}))
    assert outcome.failures[0].code == 127
    assert outcome.failures[0].last_lines[0].startswith(f"{command}: can't be started: ")


@pytest.mark.parametrize(
    ("arguments", "env"), [(("x" * 200_000,), {}), (("a\0b",), {}), ((), {"A=B": "1"})], ids=["long", "NUL", "="]
)
def test_a_command_that_no_system_takes_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    with pytest.raises(FaultError, match=r"workerpool0-0: this system can't start the replica: .*; write long values"):
        run(tmp_path, Replica(0, 0, ("true", *arguments), env))


def test_a_flood_of_lines_is_read_to_its_end(tmp_path: Path) -> None:
    assert run(tmp_path, replica("import os\nfor _ in range(200): os.write(1, (b'x' * 99 + b'\\n') * 1000)")).succeeded
    assert (tmp_path / "workerpool0-0.log").stat().st_size == 20_000_000


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    script = "import os\nfor _ in range(100): os.write(1, b'x' * 100_000)\nexit(1)"
    lines = run(tmp_path, replica(script)).failures[0].last_lines
    assert [len(line) for line in lines] == [LONGEST_LINE, LONGEST_LINE, 10_000_000 - 2 * LONGEST_LINE]


def test_a_full_disk_costs_the_log_and_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "workerpool0-0.log").symlink_to("/dev/full")
    shown: list[str] = []
    with deadline():
        many = replica("for i in range(20_000): print(i)")
        outcome = engine.run(PreparedJob((many,), tmp_path), lambda _, line, __: shown.append(line))
    assert outcome.succeeded
    assert len(shown) == 20_000


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_the_environment_is_exactly_what_the_replica_states(tmp_path: Path, isolated: Isolation) -> None:
    env = {"LC_CTYPE": "C.UTF-8", "PATH": "/nowhere", "TF_CONFIG": '{"a": "é"}', "EMPTY": ""}
    one = Replica(0, 0, (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"), env)
    assert run(tmp_path, one, isolated=isolated).succeeded
    assert json.loads((tmp_path / "workerpool0-0.log").read_text()) == env


def test_a_replica_has_nothing_to_read_on_standard_input(tmp_path: Path) -> None:
    assert run(tmp_path, replica("import sys; assert sys.stdin.read() == ''")).succeeded


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_replica_is_asked_to_end_before_it_is_made_to(tmp_path: Path, isolated: Isolation) -> None:
    polite = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'saved\\n') and exit())\n"
        "print('ready')\n"
        "while True: time.sleep(1)"
    )
    chief = replica(until(tmp_path / "workerpool1-0.log", "ready"))
    run(tmp_path, chief, replica(polite, 0, PYTHONUNBUFFERED="1"), grace=5, isolated=isolated)
    assert (tmp_path / "workerpool1-0.log").read_text() == "ready\nsaved\n"


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_replica_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, isolated: Isolation) -> None:
    mark = str(uuid.uuid4())
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n{FOREVER}"
    chief = replica(until(tmp_path / "workerpool1-0.log", "deaf"))
    run(tmp_path, chief, replica(stubborn, 0, MARK=mark), grace=0.5, isolated=isolated)
    assert processes(mark) == []


# A command that starts a child, and a grandchild in a session of its own, and says when they run.
FAMILY = f"""
import subprocess, sys, time
for detached in (False, True):
    subprocess.Popen([sys.executable, "-c", {FOREVER!r}], start_new_session=detached)
subprocess.run([sys.executable, "-c", '''
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
'''])
print("started", flush=True)
"""


@pytest.mark.parametrize("isolated", ISOLATIONS)
@pytest.mark.parametrize("end", ["", "exit(1)", CRASH], ids=["success", "1", "signal"])
def test_whatever_a_replica_started_ends_with_it(tmp_path: Path, end: str, isolated: Isolation) -> None:
    mark = str(uuid.uuid4())
    outcome = run(tmp_path, replica(FAMILY + end, MARK=mark), isolated=isolated)
    assert outcome.succeeded == (end == "")
    assert "started" in (tmp_path / "workerpool0-0.log").read_text()
    assert processes(mark) == []


LAUNCHER = """
import json, sys
from pathlib import Path
from vertex_launch.local.running import engine
from vertex_launch.local.running.prepare import PreparedJob
from vertex_launch.local.running.restart_policy import Policy
from vertex_launch.local.running.namespaces import Isolation
from vertex_launch.job.contract import Replica

folder = Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
replicas = tuple(Replica(*one) for one in job["replicas"])
prepared = PreparedJob(replicas, folder, Policy(grace=0.5), Isolation(job["world"]))
outcome = engine.run(prepared, lambda *_: None)
sys.exit(0 if outcome.succeeded else 1)
"""


# All end with the launcher, also what was detached. Only who kills a replica's own first process as well can
# leave something behind, and only without a namespace.
@pytest.mark.parametrize("isolated", ISOLATIONS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_launcher(tmp_path: Path, number: signal.Signals, isolated: Isolation) -> None:
    mark = str(uuid.uuid4())
    script = FAMILY + FOREVER
    replicas = [replica(script, MARK=mark), replica(script, 0, MARK=mark)]
    document = {
        "replicas": [[one.pool, one.index, one.command, one.env] for one in replicas],
        "world": isolated.world,
    }
    (tmp_path / "job.json").write_text(json.dumps(document))
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], cwd=SOURCE, stderr=subprocess.PIPE)
    logs = [tmp_path / f"{one.name}.log" for one in replicas]
    assert eventually(lambda: all(log.exists() and "started" in log.read_text() for log in logs))
    assert len(processes(mark)) >= 8
    launcher.send_signal(number)
    _, said = launcher.communicate(timeout=DEADLINE)
    assert eventually(lambda: processes(mark) == [])
    assert launcher.returncode != 0
    assert (said.count(b"KeyboardInterrupt:") == 1) == (number != signal.SIGKILL)


def test_signals_mean_again_what_they_meant_before(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run(tmp_path, replica(""))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.skipif(isolation().world == "none", reason="this system permits no PID namespaces")
def test_in_a_namespace_a_replicas_command_is_process_1_and_sees_only_itself(tmp_path: Path) -> None:
    run(tmp_path, replica("import os; print(*sorted(p for p in os.listdir('/proc') if p.isdigit()), os.getpid())"))
    assert (tmp_path / "workerpool0-0.log").read_text().split() == ["1", "1"]


@pytest.mark.skipif(isolation().world == "none", reason="this system permits no PID namespaces")
def test_sigterm_means_nothing_to_a_process_1_that_does_not_handle_it(tmp_path: Path) -> None:
    began = time.monotonic()
    run(tmp_path, replica("import time; time.sleep(0.3)"), replica(FOREVER, 0), grace=1)
    assert time.monotonic() - began > 2  # to end by itself, and after SIGTERM


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_sigterm_reaches_the_command_and_not_what_it_started(tmp_path: Path, isolated: Isolation) -> None:
    child = (
        "import os, signal, time\n"
        "signal.signal(15, lambda *_: os.write(1, b'child\\n'))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)"
    )
    parent = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(print('parent', flush=True)))\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "while True: time.sleep(1)"
    )
    chief = replica(until(tmp_path / "workerpool1-0.log", "ready"))
    run(tmp_path, chief, replica(parent, 0), grace=1, isolated=isolated)
    assert (tmp_path / "workerpool1-0.log").read_text() == "ready\nparent\n"


@pytest.mark.parametrize("isolated", ISOLATIONS)
def test_a_script_that_signals_its_process_group_reaches_only_itself(tmp_path: Path, isolated: Isolation) -> None:
    one = Replica(0, 0, ("/bin/sh", "-c", "trap '' TERM; kill 0; exit 3"), {})
    assert str(run(tmp_path, one, isolated=isolated).failures[0]) == "workerpool0-0 exited with code 3"


def test_jobs_that_run_at_once_get_different_ports_below_those_of_outgoing_connections() -> None:
    ports = [int(address.rpartition(":")[2]) for _ in range(50) for address in free_addresses(64)]
    assert len(set(ports)) == 50 * 64
    assert min(ports) >= 20_000
    assert max(ports) < first_ephemeral_port()


def test_a_port_at_which_somebody_listens_is_not_given_away() -> None:
    with contextlib.ExitStack() as sockets:
        taken = set()
        for address in free_addresses(100):
            one = sockets.enter_context(socket.socket())
            one.bind(("127.0.0.1", int(address.rpartition(":")[2])))
            taken.add(address)
        everything_else = {address for _ in range(400) for address in free_addresses(64)}
        assert len(everything_else) > 9_000  # round more than once
        assert taken.isdisjoint(everything_else)


def test_a_bucket_is_a_folder_in_gcs(tmp_path: Path) -> None:
    if not isolation(tmp_path / "gcs").mounts:
        pytest.skip("this system permits no mount namespaces")
    (tmp_path / "gcs/b").mkdir()
    (tmp_path / "gcs/b/in").write_text("from outside")
    script = "import os; print(open('/gcs/b/in').read(), os.getcwd()); open('/gcs/b/out', 'w').write('from inside')"
    isolated = replace(isolation(tmp_path / "gcs"), hosts=None)
    assert run(tmp_path, replica(script), isolated=isolated).succeeded
    assert (tmp_path / "workerpool0-0.log").read_text() == f"from outside {os.getcwd()}\n"
    assert (tmp_path / "gcs/b/out").read_text() == "from inside"
    assert not any((tmp_path / "root").iterdir())  # for everybody else
