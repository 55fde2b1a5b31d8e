"""Jobs that were sent, looked at and followed: the real commands against a real local Vertex.

Between the two may stand a front, which answers as a service in trouble does, or cuts the connection.
"""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden

from launcher.tests.running import DEADLINE, SOURCE, deadline, ends_together, eventually, until
from launcher.tests.servers import Replying, ToLocal, serving
from launcher.tests.vertex import BY_ID, PARENT, Json, Service, custom_job, script, service, stop
from vertex_launch.cli.following import earliest, pattern
from vertex_launch.cloud import jobs, logs
from vertex_launch.cloud.logs import Back, Changed, Event, Line, Log, Lost, Pace, follow
from vertex_launch.cloud.outputs import copy_curves, fetch_model, model_address
from vertex_launch.cloud.preflight import Preflight, look
from vertex_launch.cloud.revision import labels
from vertex_launch.cloud.service import Service as Cloud
from vertex_launch.cloud.service import connect
from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import ENDED, id_of, moment, state
from vertex_launch.job.spec import load
from vertex_launch.plan.formatting import clock
from vertex_launch.settings import Settings
from vertex_launch.untrusted.printable import plain

OURS = Settings("p", "us-central1", "b", "image", prices={"n1-standard-8": 3.6})
PACE = Pace(0.05, 1)
FAILS = script("print('begin', flush=True); open('no such file')")
STEPS = script("""
import json
for i in (1, 2, 3):
    event = {"step": 10 * i, "steps": 30, "metric": "loss", "loss": i / 10}
    print(json.dumps({"message": f"step {i}0/30  loss 0.{i}", **event}), flush=True)
""")


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


@pytest.fixture
def tmp_path(vertex: Service, tmp_path: Path) -> Path:
    """A folder that replicas see, too."""
    folder = vertex.state_dir / "seen" / tmp_path.name
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def cloud(vertex: Service) -> Cloud:
    return connect(OURS, vertex.endpoint)


def environment(endpoint: str) -> dict[str, str]:
    """This process's, without what changes how a terminal is written to."""
    ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return ours | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": endpoint}


def start(vertex: Service, *words: str, endpoint: str = "") -> "subprocess.Popen[str]":
    """A command of the launcher, in the folder of the service."""
    environ = environment(endpoint or vertex.endpoint)
    command = [sys.executable, "-m", "vertex_launch", *words]
    return subprocess.Popen(
        command,
        cwd=vertex.folder,
        env=environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def said(vertex: Service, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    process = start(vertex, *words)
    out, err = process.communicate(timeout=DEADLINE)
    assert 'Traceback (most recent call last):\n  File "<frozen' not in err
    return process.returncode, out, err


def forever(path: Path) -> tuple[str, ...]:
    """A command that runs until this file is there."""
    return script(f"print('here', flush=True)\n{until(path)}")


def steps(replicas: int) -> tuple[str, ...]:
    """STEPS, of which each replica sees the end."""
    return script(STEPS[-1] + ends_together(replicas))


def untimed(line: str) -> str:
    """A line that is shown without its time, which has a date once midnight has passed."""
    shown = re.fullmatch(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d (.*)", line)
    assert shown, line
    return shown[1]


def states(events: Sequence[Event]) -> list[str]:
    return [state(one.job) for one in events if isinstance(one, Changed)]


def test_a_job_is_followed_through_its_states_and_lines_to_its_end(vertex: Service, cloud: Cloud) -> None:
    name = vertex.create(custom_job(*steps(3), workers=2))
    with deadline():
        events = [*follow(cloud, name, Log(cloud), PACE)]
    assert states(events)[-1] == "SUCCEEDED"
    lines = [one for one in events if isinstance(one, Line) and one.replica != "service"]
    assert sorted(map(str, lines)) == sorted(
        f"[workerpool{replica}] step {i}0/30  loss 0.{i}" for replica in ("0-0", "1-0", "1-1") for i in (1, 2, 3)
    )
    assert {line.job for line in lines} == {name.rpartition("/")[2]}
    chief = [line for line in lines if line.replica == "workerpool0-0"]
    assert chief == sorted(chief, key=lambda line: line.time)


def test_a_program_that_follows_reads_json_alone(vertex: Service) -> None:
    code, out, err = said(vertex, "logs", vertex.create(custom_job(*FAILS, name="read")), "--follow", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert lines[0]["message"] == "begin"
    assert {line["replica"] for line in lines} == {"workerpool0-0"}
    assert "read FAILED" in err


def test_the_log_of_a_running_job_is_read_once_and_completely(vertex: Service, cloud: Cloud, tmp_path: Path) -> None:
    many = script(f"for i in range(2500): print(i)\nprint('here', flush=True)\n{until(tmp_path / 'go')}\nprint('end')")
    job = cloud.get(vertex.create(custom_job(*many)))
    log, read = Log(cloud), list[str]()

    def all_there() -> bool:
        read.extend(line.text for line in log.new(job))
        return read[-1:] == ["here"]

    assert eventually(all_there)
    (tmp_path / "go").touch()
    vertex.wait(job["name"], "SUCCEEDED")
    read += [line.text for line in log.new(job)]
    assert read == [*map(str, range(2500)), "here", "end"]  # more than a page, and none of them twice
    assert [*log.new(job)] == []
    late = Log(cloud, since=[*Log(cloud).new(job)][-1].time)
    assert [[line.text for line in late.new(job)] for _ in range(2)] == [["end"], []]  # nothing from before


def test_a_failure_shows_the_traceback_and_has_exit_code_1(vertex: Service) -> None:
    name = vertex.create(custom_job(*FAILS, name="fails"))
    code, out, err = said(vertex, "logs", name, "--follow")
    assert code == 1
    shown = [untimed(line) for line in out.splitlines()]
    assert "[workerpool0-0] begin" in shown
    assert any(line.startswith("fails FAILED") for line in shown)
    assert "The replica workerpool0-0 exited with a non-zero status of 1." in err
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'" in err
    assert said(vertex, "status", "fails")[0] == 1


def test_where_the_service_names_the_replica_alone_its_traceback_is_looked_up(vertex: Service, cloud: Cloud) -> None:
    """Google's message ends where the local Vertex goes on with the traceback."""
    job = vertex.wait(vertex.create(custom_job(*FAILS)), "FAILED")
    told = job["error"]["message"].partition("\n")[0]
    cause = logs.cause(cloud, job | {"error": {"message": told}})
    first, *_, last = (line.text for line in cause)
    assert first == logs.TRACEBACK
    assert last == "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"
    assert logs.cause(cloud, job | {"error": {"message": "The replica workerpool7-0 exited."}}) == []


def test_ctrl_c_leaves_the_job_and_says_how_to_come_back(vertex: Service, tmp_path: Path) -> None:
    name = vertex.create(custom_job(*forever(tmp_path / "go")))
    follower = start(vertex, "logs", name, "--follow")
    assert follower.stdout is not None
    for line in follower.stdout:
        if line.endswith("here\n"):
            break
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=DEADLINE)
    id = name.rpartition("/")[2]
    assert follower.returncode == 130
    assert f"the job continues; follow it with: python -m vertex_launch logs {id} --follow\n" in err
    assert f"stop it with: python -m vertex_launch cancel {id}\n{vertex.endpoint}/#{id}\n" in err
    assert "Traceback" not in err
    assert vertex.get(name)["state"] == "JOB_STATE_RUNNING"
    again = start(vertex, "logs", id, "--follow")
    assert "asked to stop" in said(vertex, "cancel", id, "--yes")[1]
    out, _ = again.communicate(timeout=DEADLINE)
    assert (again.returncode, " CANCELLED" in out) == (3, True)
    assert "the job has already ended" in said(vertex, "cancel", id)[1]


def test_a_job_that_expires_ends_what_follows_it(vertex: Service, tmp_path: Path) -> None:
    blocks = vertex.create(custom_job(*forever(tmp_path / "go"), workers=15))
    flex = {"strategy": "FLEX_START", "maxWaitDuration": "1s", "timeout": "60s", "restartJobOnWorkerRestart": True}
    body = custom_job("true", scheduling=flex, workers=1)
    process = start(vertex, "logs", vertex.create(body), "--follow")
    out, _ = process.communicate(timeout=DEADLINE)
    assert (process.returncode, " EXPIRED" in out) == (4, True), out
    (tmp_path / "go").touch()
    vertex.wait(blocks)


def test_submit_follows_what_it_has_sent(vertex: Service) -> None:
    (vertex.folder / "run.yaml").write_text(json.dumps(custom_job(*STEPS)["jobSpec"]))
    code, out, _ = said(vertex, "submit", "run.yaml", "--yes", "--follow")
    assert code == 0
    assert out.index("sent: ") < out.index("step 10/30") < out.index("step 30/30") < out.index("run SUCCEEDED")
    code, out, _ = said(vertex, "submit", "run.yaml", "--yes")  # nobody looks
    assert (code, "SUCCEEDED" in out) == (0, False)


def test_before_it_is_sent_a_job_is_told_what_its_folder_holds(vertex: Service, cloud: Cloud, tmp_path: Path) -> None:
    def found(folder: str) -> Preflight:
        spec = custom_job(*STEPS, baseOutputDirectory={"outputUriPrefix": f"gs://{folder}"})["jobSpec"]
        (tmp_path / "run.yaml").write_text(json.dumps(spec))
        return look(load(tmp_path / "run.yaml"), cloud)

    run = vertex.state_dir / "gcs/b/looked"
    assert found("b/looked/") == Preflight("empty")
    (run / "checkpoints/step-000000300").mkdir(parents=True)
    (run / "checkpoints/step-000000300/weights").touch()
    assert found("b/looked") == Preflight("not empty")
    (run / "checkpoints/step-000000300/committed.json").touch()
    assert found("b/looked") == Preflight("resumes at step 300")
    (run / "model").mkdir()
    (run / "model/model.pt2").touch()
    (warning,) = found("b/looked").findings
    assert (warning.severity, warning.line) == ("warning", 1)
    assert "an earlier run exported its model to this folder" in warning.fault
    assert found("no-such-bucket/looked") == Preflight("empty")
    (vertex.state_dir / "gcs/b/run[1]/checkpoints/step-000000200").mkdir(parents=True)
    (vertex.state_dir / "gcs/b/run[1]/checkpoints/step-000000200/committed.json").touch()
    assert found("b/run[1]") == Preflight("resumes at step 200")


@pytest.fixture
def googles(vertex: Service) -> Cloud:
    """A service that takes the local Vertex for Google's."""
    cloud = replace(connect(OURS, vertex.endpoint), endpoint="")
    cloud.session.mount("https://", ToLocal(vertex.endpoint))
    return cloud


def test_a_bucket_that_is_not_there_is_told_with_the_command_that_makes_it(googles: Cloud, tmp_path: Path) -> None:
    spec = custom_job("true", baseOutputDirectory={"outputUriPrefix": "gs://no-such-bucket/run"})["jobSpec"]
    (tmp_path / "run.yaml").write_text(json.dumps(spec))
    (error,) = look(load(tmp_path / "run.yaml"), googles).findings
    assert error.severity == "error"
    assert str(error) == (
        "baseOutputDirectory.outputUriPrefix: the bucket no-such-bucket doesn't exist; create it: gcloud storage"
        " buckets create gs://no-such-bucket --project=p --location=us-central1 --uniform-bucket-level-access"
    )


def test_a_search_is_not_sent_to_a_folder_that_holds_trials(vertex: Service, cloud: Cloud, tmp_path: Path) -> None:
    earlier = vertex.state_dir / "gcs/b/searched/1/checkpoints"
    earlier.mkdir(parents=True)
    (earlier / "part").touch()
    spec = custom_job("true", baseOutputDirectory={"outputUriPrefix": "gs://b/searched"})["jobSpec"]
    (tmp_path / "search.yaml").write_text(json.dumps({"studySpec": {}, "trialJobSpec": spec}))
    (error,) = look(load(tmp_path / "search.yaml"), cloud).findings
    assert error.severity == "error"
    assert str(error).startswith(
        "trialJobSpec.baseOutputDirectory.outputUriPrefix: the folder isn't empty, so a trial would resume"
    )


def test_a_job_has_the_revision_of_its_code_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vertex_launch.cloud.revision.SECONDS", DEADLINE)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert labels(tmp_path) == {}
    git("init", "-q")
    assert labels(tmp_path) == {}
    (tmp_path / "code").write_text("1")
    git("add", "code")
    git("commit", "-qm", "first")
    assert labels(tmp_path) == {"git-revision": git("rev-parse", "HEAD")[:12]}
    (tmp_path / "code").write_text("2")
    assert labels(tmp_path)["git-dirty"] == "true"


def test_two_jobs_never_write_one_folder(vertex: Service, tmp_path: Path) -> None:
    there = {"outputUriPrefix": "gs://b/shared"}
    name = vertex.create(custom_job(*forever(tmp_path / "go"), name="first", baseOutputDirectory=there))
    (vertex.folder / "shared.yaml").write_text(json.dumps(custom_job(*STEPS, baseOutputDirectory=there)["jobSpec"]))
    code, out, err = said(vertex, "submit", "shared.yaml", "--yes")
    assert (code, "sent:" in out) == (1, False)
    id = name.rpartition("/")[2]
    assert re.search(
        rf"shared\.yaml:1: error: base.*: job {id} \(first\) is (QUEUED|PENDING|RUNNING) and writes to this folder",
        err,
    )
    assert f"stop it with python -m vertex_launch cancel {id}, or specify a different folder" in err
    (tmp_path / "go").touch()
    vertex.wait(name, "SUCCEEDED")
    assert said(vertex, "submit", "shared.yaml", "--yes")[0] == 0


def test_a_lease_in_the_bucket_is_told_with_its_job_while_it_is_renewed(vertex: Service, tmp_path: Path) -> None:
    folder = vertex.folder / ".vertex/gcs/b/leased/checkpoints/lease"
    folder.mkdir(parents=True)
    claim = {"job": "17", "host": "HOST", "since": "2026-11-27T08:31:02+00:00", "lock": ""}
    (folder / "17.json").write_text(json.dumps(claim))
    (folder / "damaged.json").write_text("{")
    (folder / "17.3").touch()
    there = {"outputUriPrefix": "gs://b/leased"}
    (tmp_path / "leased.yaml").write_text(json.dumps(custom_job("true", baseOutputDirectory=there)["jobSpec"]))
    found = look(load(tmp_path / "leased.yaml"), connect(OURS, vertex.endpoint))
    (told,) = [f"{one.severity}: {one.sentence}" for one in found.findings]
    start = "warning: gs://b/leased/checkpoints has been in use by job 17 on HOST since 2026-11-27 08:31 UTC (renewed "
    assert re.fullmatch(
        re.escape(start) + r"\d+ s ago\); choose another output folder, or wait until that job ends", told
    )
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    assert look(load(tmp_path / "leased.yaml"), connect(OURS, vertex.endpoint)).findings == ()


@contextlib.contextmanager
def terminal(vertex: Service, *words: str) -> Iterator[Callable[..., str]]:
    """A command on a terminal; yields what reads to its end or a pattern, and returns all that was."""
    ours, its = pty.openpty()
    environ = environment(vertex.endpoint) | {"TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "vertex_launch", *words]
    screen = b""

    def read(pattern: str = "(?!)") -> str:
        nonlocal screen
        with contextlib.suppress(OSError):  # which reading raises at the end, on Linux
            while not re.search(pattern, plain(screen.decode(errors="ignore"))) and (more := os.read(ours, 4096)):
                screen += more
        return plain(screen.decode(errors="ignore"))

    with subprocess.Popen(command, cwd=vertex.folder, env=environ, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        with deadline():
            yield read
            read()
        os.close(ours)
        assert process.wait(DEADLINE) == 0, plain(screen.decode())


def test_on_a_terminal_submit_follows_by_itself_and_shows_steps_and_metric(vertex: Service) -> None:
    (vertex.folder / "seen.yaml").write_text(json.dumps(custom_job(*STEPS)["jobSpec"]))
    with terminal(vertex, "submit", "seen.yaml", "--yes") as read:
        text = read()
    assert re.search("\u2501+ step 30/30 .* loss 0.3 about ", text)
    assert "step 0/" not in text
    assert "seen SUCCEEDED" in text


def test_on_a_terminal_a_job_without_a_step_is_seen_to_wait_and_run(vertex: Service, tmp_path: Path) -> None:
    blocks = vertex.create(custom_job(*forever(tmp_path / "go"), workers=15))
    vertex.wait(blocks, "RUNNING")
    name = vertex.create(custom_job(*forever(tmp_path / "end"), workers=1))
    with terminal(vertex, "logs", name, "--follow") as read:
        assert re.search(r"(QUEUED|PENDING), waited \d+ s", read(r"(QUEUED|PENDING), waited \d+ s"))
        (tmp_path / "go").touch()
        assert re.search(r"RUNNING, waited \d+ s, runs for \d+ s", read(r"RUNNING, waited \d+ s, runs for \d+ s"))
        (tmp_path / "end").touch()


def test_the_log_is_asked_for_by_replica_pattern_and_time(vertex: Service) -> None:
    name = vertex.create(custom_job(*steps(2), workers=1, name="asked"))
    vertex.wait(name, "SUCCEEDED")
    _, out, _ = said(vertex, "logs", "asked", "--replica", "workerpool1-0", "--grep", "step [23]0")
    assert [untimed(line) for line in out.splitlines()] == [f"[workerpool1-0] step {i}0/30  loss 0.{i}" for i in (2, 3)]
    _, out, _ = said(vertex, "logs", "asked", "--json", "--replica", "workerpool0-0")
    first = json.loads(out.splitlines()[0])
    assert (first["replica"], first["message"], first["job"]) == (
        "workerpool0-0",
        "step 10/30  loss 0.1",
        name.rpartition("/")[2],
    )
    nothing = said(vertex, "logs", "asked", "--grep", "no such line")
    assert nothing == (0, "", "the log has no such line\n")
    code, _, err = said(vertex, "logs", "asked", "--replica", "workerpool1-7")
    assert code == 1
    assert err.startswith("--replica workerpool1-7: the job doesn't have this replica; did you mean workerpool1-0?")


def test_a_time_is_one_of_a_clock_or_some_time_ago() -> None:
    now = datetime(2026, 11, 23, 12, tzinfo=UTC)
    assert earliest("", now) is None
    assert earliest("90s", now) == now - timedelta(seconds=90)
    assert earliest("2d", now) == now - timedelta(days=2)
    assert earliest("2026-11-23T11:00:00+00:00", now) == now - timedelta(hours=1)
    with pytest.raises(FaultError, match="--since 1000000000d isn't a valid time"):
        earliest("1000000000d", now)
    with pytest.raises(FaultError, match="--since lunch isn't a valid time; use a value such as 10m, 2h, 1d, or 2026"):
        earliest("lunch", now)


def test_a_pattern_that_cannot_be_read_is_refused_with_a_cure() -> None:
    with pytest.raises(FaultError, match=r"--grep \[: unterminated character set at position 0; to match"):
        pattern("[")


def test_jobs_are_listed_with_their_states_and_found_by_number_name_or_file(vertex: Service, cloud: Cloud) -> None:
    old, new = (vertex.create(custom_job("true", name="twice")) for _ in range(2))
    for name in (old, new):
        vertex.wait(name, "SUCCEEDED")
    assert jobs.find(cloud)["name"] == new
    assert jobs.find(cloud, "twice")["name"] == jobs.find(cloud, "jobs/twice.yaml")["name"] == new
    brief, number = old.partition("us-central1/")[2], old.rpartition("/")[2]
    assert jobs.find(cloud, number)["name"] == jobs.find(cloud, brief)["name"] == jobs.find(cloud, old)["name"] == old
    with pytest.raises(FaultError, match='none of the newest 100 jobs is named ""'):
        jobs.find(cloud, "")
    with pytest.raises(FaultError, match="did you mean twice"):
        jobs.find(cloud, "twcie")
    for gone in ("17", "customJobs/17", f"{PARENT}/customJobs/17"):
        with pytest.raises(FaultError, match=f"the job {gone} doesn't exist; to list the jobs, run: python -m vertex"):
            jobs.find(cloud, gone)
    with pytest.raises(FaultError, match="is in europe-west4, not in us-central1; add --region europe-west4"):
        jobs.find(cloud, "projects/1/locations/europe-west4/customJobs/17")
    with pytest.raises(
        FaultError, match="isn't a valid job name; use, for example, projects/p/locations/us-central1/customJ"
    ):
        jobs.find(cloud, f"{PARENT}/models/17")
    assert [job["name"] for job in jobs.newest(cloud, 2)] == [new, old]
    assert {state(job) for job in jobs.newest(cloud, 100, "SUCCEEDED")} == {"SUCCEEDED"}
    _, out, _ = said(vertex, "jobs", "--limit", "2", "--state", "succeeded")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        [name.rpartition("/")[2], "twice", "SUCCEEDED"] for name in (new, old)
    ]
    _, out, _ = said(vertex, "jobs", "--limit", "1", "--json")
    assert [job["name"] for job in json.loads(out)] == [new]


def test_times_are_those_of_this_machine_and_have_a_date_unless_they_are_of_today(
    vertex: Service, cloud: Cloud, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    assert clock(now) == f"{now.astimezone():%H:%M:%S}"
    assert clock(now - timedelta(days=3)) == f"{(now - timedelta(days=3)).astimezone():%Y-%m-%d %H:%M:%S}"
    assert clock(None) == ""
    old, new = (cloud.get(vertex.create(custom_job(*forever(tmp_path / "go"), name="namesake"))) for _ in range(2))
    those = ", ".join(f"{id_of(job['name'])} from {clock(moment(job, 'createTime'))}" for job in (new, old))
    with pytest.raises(FaultError, match=f"2 jobs with the name namesake are running; specify a job ID: {those}"):
        jobs.running(cloud, "namesake")
    (tmp_path / "go").touch()
    for job in (old, new):
        vertex.wait(job["name"])


def search(name: str, trials: int, *command: str) -> Json:
    """A tuning job, whose trials run at once."""
    study = {
        "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
        "parameters": [{"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}],
    }
    counts = {"maxTrialCount": trials, "parallelTrialCount": trials}
    return {"displayName": name, "studySpec": study, "trialJobSpec": custom_job(*command)["jobSpec"], **counts}


def test_trials_are_no_jobs_and_hide_none(
    vertex: Service, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vertex_launch.cloud.service.PAGE_SIZE", 2)
    before, waits = (vertex.create(custom_job(*forever(tmp_path / name))) for name in ("first", "go"))
    (tmp_path / "first").touch()
    vertex.wait(before)
    one_ends = f"import os\nif os.environ['CLOUD_ML_TRIAL_ID'] != '1':\n exec({until(tmp_path / 'go')!r})"
    name = vertex.create(search("hides", 4, *script(one_ends)), "hyperparameterTuningJobs")
    assert eventually(lambda: len(cloud.get(name).get("trials", ())) == 4)
    assert eventually(lambda: [state(job) for job in cloud.list("customJobs", most=4)].count("SUCCEEDED") == 1)
    assert [job["name"] for job in jobs.newest(cloud, 3)] == [name, waits, before]
    assert jobs.newest(cloud, 1, "SUCCEEDED")[0]["name"] == before
    assert {job["name"] for job in jobs.unfinished(cloud)} == {name, waits}
    assert jobs.find(cloud, "hides")["name"] == name
    (tmp_path / "go").touch()
    vertex.wait(name)


def test_a_search_is_followed_as_one_job(vertex: Service, cloud: Cloud) -> None:
    measured = {"timestamp": 1, "trial": "1", "loss": "1.0", "global_step": "1"}
    tells = f"""import os, sys
print(sys.argv[1])
open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w").write({json.dumps(measured) + chr(10)!r})"""
    name = vertex.create(search("search", 2, *script(tells)), "hyperparameterTuningJobs")
    with deadline():
        events = [*follow(cloud, name, Log(cloud), PACE)]
    assert states(events)[-1] == "SUCCEEDED"
    printed = [one for one in events if isinstance(one, Line) and one.text.startswith("--rate=")]
    assert len({line.job for line in printed}) == 2  # one of each trial
    assert jobs.find(cloud)["name"] == name  # not the newest of its trials
    code, out, _ = said(vertex, "logs", "search")
    assert {untimed(line)[:7] for line in out.splitlines()} == {"trial 1", "trial 2"}
    code, out, _ = said(vertex, "status", "search")
    assert (code, out.count("succeeded")) == (0, 2)


def test_a_trial_that_is_stopped_early_is_called_that_everywhere(vertex: Service) -> None:
    trial = """import json, os, sys, time
rate = float(sys.argv[1].partition("=")[2])
report = {"timestamp": 1, "trial": "1", "loss": rate, "global_step": 1}
open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w").write(json.dumps(report) + chr(10))
while rate == 1: time.sleep(0.1)"""
    rates = {"parameterId": "rate", "discreteValueSpec": {"values": [0.5, 1.0]}}
    wanted = search("early", 2, *script(trial)) | {"parallelTrialCount": 1}
    wanted["studySpec"] |= {"algorithm": "GRID_SEARCH", "parameters": [rates], "medianAutomatedStoppingSpec": {}}
    name = vertex.create(wanted, "hyperparameterTuningJobs")
    _, stopped = vertex.wait(name, "SUCCEEDED")["trials"]
    words = "stopped early: worse than the median of the other trials"
    assert stopped["state"] == "SUCCEEDED"
    assert vertex.get(stopped["customJob"])["error"]["message"] == words
    assert eventually(lambda: f"early-trial-2 CANCELLED: {words}" in (vertex.folder / "service.log").read_text())
    listed = vertex.call("GET", "/page/jobs")[1]["jobs"]
    (shown,) = (job for job in listed if job["id"] == id_of(name))
    assert [trial["stopped"] for trial in shown["trials"]] == ["", words]
    code, out, _ = said(vertex, "status", id_of(name))
    assert code == 0
    assert [line.split()[3:] for line in out.splitlines()[-2:]] == [["succeeded,", "the", "best"], words.split()]


def test_the_lines_of_all_trials_are_found_by_the_id_of_their_search(vertex: Service) -> None:
    tells = """import os, sys
print(f"{os.environ['CLOUD_ML_TRIAL_ID']} tries {sys.argv[1]}")"""
    name = vertex.create(search("by its id", 3, *script(tells)), "hyperparameterTuningJobs")
    trials = {trial["id"]: id_of(trial["customJob"]) for trial in vertex.wait(name, "FAILED")["trials"]}

    def found(expression: str) -> list[Json]:
        """The entries as gcloud asks for them, two a page."""
        body = {"resourceNames": ["projects/p"], "filter": expression, "orderBy": "timestamp asc", "pageSize": 2}
        entries, token = list[Json](), None
        while token != "":
            _, page = vertex.call("POST", "/v2/entries:list", {**body, "pageToken": token or ""})
            entries, token = entries + page["entries"], page.get("nextPageToken", "")
        return [entry for entry in entries if " tries " in entry["jsonPayload"]["message"]]

    lower = 'timestamp>="1970-01-01T01:00:00.000000000Z" AND timestamp<"9999-01-01T00:00:00.000000+00:00"'
    ours = f'resource.type="ml_job" AND resource.labels.job_id="{id_of(name)}"'
    lines = found(f"{ours} AND {lower}")
    assert sorted(line["jsonPayload"]["message"][:9] for line in lines) == ["1 tries -", "2 tries -", "3 tries -"]
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)
    assert {line["resource"]["labels"]["job_id"] for line in lines} == {id_of(name)}
    assert all(line["jsonPayload"]["message"][0] == line["labels"]["ml.googleapis.com/trial_id"] for line in lines)
    assert [line["jsonPayload"]["message"][0] for line in found(f'{ours} labels."ml.googleapis.com/trial_id"="2"')] == [
        "2"
    ]
    (line,) = found(f'resource.labels.job_id="{trials["3"]}"')
    assert (line["jsonPayload"]["message"][0], line["resource"]["labels"]["job_id"]) == ("3", trials["3"])


def test_a_job_costs_its_machines_from_their_start_to_its_end() -> None:
    begin = datetime(2026, 11, 23, 12, tzinfo=UTC)
    job = custom_job("true", workers=2) | {
        "name": f"{PARENT}/customJobs/1",
        "createTime": begin.isoformat(),
        "startTime": (begin + timedelta(minutes=10)).isoformat(),
    }
    ended = job | {"endTime": (begin + timedelta(minutes=20)).isoformat()}
    trials = [{key: ended[key] for key in ("startTime", "endTime")}] * 3
    search = {"trialJobSpec": job["jobSpec"], "trials": trials}

    def usd(one: Json, minutes: int) -> float:
        found = jobs.cost(one, OURS.catalog, begin + timedelta(minutes=minutes))
        assert found is not None
        assert found.per_hour.usd == pytest.approx(3 * 3.6)
        return found.usd

    assert usd(job, 40) == pytest.approx(5.4)
    assert usd(ended, 600) == pytest.approx(1.8)
    assert usd(job | {"startTime": ""}, 40) == 0
    assert usd(search, 600) == pytest.approx(3 * 1.8)
    assert jobs.cost(job, replace(OURS, prices={}).catalog, begin) is not None  # list prices
    unknown = json.loads(json.dumps(job).replace("n1-standard-8", "made-up"))
    assert jobs.cost(unknown, OURS.catalog, begin) is None


EXPORTS = script("""
import os, pathlib
folder = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", os.environ["GCS_MOUNT"] + "/"))
(folder / "parts").mkdir(parents=True)
(folder / "model.pt2").write_bytes(b"weights")
(folder / "parts/one").write_bytes(bytes(100_000))
""")


def test_the_model_of_a_job_is_fetched_whole(vertex: Service) -> None:
    body = custom_job(*EXPORTS, name="exports", baseOutputDirectory={"outputUriPrefix": "gs://b/exports"})
    vertex.wait(vertex.create(body), "SUCCEEDED")
    code, out, err = said(vertex, "model", "exports")
    assert code == 0, err
    assert out.endswith("the model from gs://b/exports/model/ is in exports-model\n")
    there = vertex.folder / "exports-model"
    assert (there / "model.pt2").read_bytes() == b"weights"
    assert (there / "parts/one").stat().st_size == 100_000
    code, _, err = said(vertex, "model", "exports")
    assert (code, err) == (
        1,
        "exports-model: this folder already exists; remove it, or use --to to specify a different one\n",
    )


def test_where_there_is_no_model_its_job_and_folder_are_named(vertex: Service, cloud: Cloud, tmp_path: Path) -> None:
    name = vertex.create(custom_job("true", baseOutputDirectory={"outputUriPrefix": "gs://b/nothing"}))
    job = vertex.wait(name, "SUCCEEDED")
    id = name.rpartition("/")[2]
    with pytest.raises(FaultError, match=f"gs://b/nothing/model/: the model doesn't exist; job {id} is SUCCEEDED"):
        [*fetch_model(job, cloud, tmp_path / "new")]
    assert not (tmp_path / "new").exists()
    with pytest.raises(
        FaultError, match=r"the job doesn't set an output folder, so it has no model; set baseOutputDirectory\."
    ):
        [*fetch_model(job | {"jobSpec": {}}, cloud, tmp_path / "new")]


def test_the_model_of_a_search_is_that_of_its_best_trial() -> None:
    def trial(id: str, loss: float) -> Json:
        measured = {"metrics": [{"metricId": "loss", "value": loss}]}
        return {"id": id, "state": "SUCCEEDED", "finalMeasurement": measured}

    study = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}]}
    spec = {"baseOutputDirectory": {"outputUriPrefix": "gs://b/search/"}}
    search = {"name": "search", "studySpec": study, "trialJobSpec": spec}
    assert model_address(search | {"trials": [trial("1", 0.9), trial("2", 0.4)]}) == "gs://b/search/2/model/"
    with pytest.raises(FaultError, match="no trial has reported its metric yet"):
        model_address(search)


WRITES = """
import os, pathlib, time
folder = pathlib.Path(os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", os.environ["GCS_MOUNT"] + "/"))
folder.mkdir(parents=True)
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(str(folder / "run"))
def write(step):
    loss = Summary.Value(tag="loss", simple_value=step)
    writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[loss])))
    writer.flush()
"""


def test_the_curves_of_a_job_are_copied_as_they_grow(vertex: Service, cloud: Cloud, tmp_path: Path) -> None:
    written = tmp_path / "written"
    text = f"{WRITES}write(1)\npathlib.Path({str(written)!r}).touch()\n{until(tmp_path / 'go')}\nwrite(2)"
    body = custom_job(*script(text), name="curves", baseOutputDirectory={"outputUriPrefix": "gs://b/curves"})
    name = vertex.create(body)
    assert eventually(written.exists)
    assert copy_curves(cloud.get(name), cloud, tmp_path / "copy") == 1
    (copy,) = (tmp_path / "copy/run").iterdir()
    before = copy.read_bytes()
    (tmp_path / "go").touch()
    vertex.wait(name, "SUCCEEDED")
    assert copy_curves(cloud.get(name), cloud, tmp_path / "copy") == 1
    original = vertex.state_dir / "gcs/b/curves/logs/run" / copy.name
    assert copy.read_bytes() == original.read_bytes()
    assert original.read_bytes().startswith(before)
    assert len(before) < original.stat().st_size
    with pytest.raises(FaultError, match="the job doesn't set an output folder, so it has no curves"):
        copy_curves({**cloud.get(name), "jobSpec": {}}, cloud, tmp_path)


@pytest.mark.proof
def test_tensorboard_shows_them_until_it_is_stopped(vertex: Service) -> None:
    there = {"outputUriPrefix": "gs://b/board"}
    vertex.wait(vertex.create(custom_job(*script(f"{WRITES}write(1)"), name="board", baseOutputDirectory=there)))
    board = start(vertex, "tensorboard", "board", "--port", "0")
    assert board.stderr is not None
    with deadline():
        address = next(found[0] for line in board.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))

    def runs() -> Any:
        with urllib.request.urlopen(f"{address}data/runs", timeout=DEADLINE) as answer:
            return json.loads(answer.read())

    assert eventually(lambda: runs() == ["run"])
    board.send_signal(signal.SIGINT)
    board.communicate(timeout=DEADLINE)
    assert board.returncode == 0


def test_a_job_without_curves_is_said_to_have_none(vertex: Service) -> None:
    vertex.wait(vertex.create(custom_job("true", name="flat", baseOutputDirectory={"outputUriPrefix": "gs://b/flat"})))
    code, _, err = said(vertex, "tensorboard", "flat")
    assert code == 1
    assert re.match(
        r"job \d+ is SUCCEEDED and has no curves; "
        r"trainers must write TensorBoard logs to AIP_TENSORBOARD_LOG_DIR\n",
        err,
    )


def test_the_shell_completes_the_names_of_jobs(vertex: Service) -> None:
    vertex.wait(vertex.create(custom_job("true", name="completed")))
    text = f"""
import sys
sys.argv = ["vertex-launch", "__complete", "status", "compl"]
from vertex_launch.cli import cloud_options
from vertex_launch.cli.main import main
cloud_options.BRIEF_SECONDS = {DEADLINE}
main()
"""
    environ = environment(vertex.endpoint)
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=vertex.folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.split() == ["begin", "completed"]
    away = environ | {"VERTEX_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=vertex.folder, env=away, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout.split(), done.stderr) == (["begin"], "")


def test_where_the_local_vertex_has_no_job_its_address_is_told(tmp_path: Path) -> None:
    with service(tmp_path) as empty:
        here = f"{BY_ID} of the local Vertex at {empty.endpoint}"
        assert said(empty, "jobs") == (0, f"{here} has no job\n", "")
        assert said(empty, "status")[2].startswith(f"{here}: there is no job yet; submit one with: ")
        assert said(empty, "status", "nosuch")[2].startswith(f'{here}: none of the newest 100 jobs is named "nosuch"')


class Front(ThreadingHTTPServer):
    """Passes requests on to a service, unless `trouble` is a status to answer with; 0 cuts the connection.

    Only those are in trouble that begin as `troubled`. One that begins as `holds` gets no answer before the test ends.
    """

    trouble: int | None = None
    troubled = ""
    holds = "nothing"

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind, self.endpoint, self.refused = behind, f"http://127.0.0.1:{self.server_port}", 0
        self.held, self.ended = threading.Event(), threading.Event()


class Passing(Replying):
    """One request to the front."""

    server: Front

    def respond(self) -> None:
        body = self.body()
        asked = f"{self.command} {self.path}"
        if re.match(self.server.holds, asked):
            self.server.held.set()
            self.server.ended.wait(DEADLINE)
            return
        if (trouble := self.server.trouble) is not None and re.match(self.server.troubled, asked):
            self.server.refused += 1
            if trouble:
                self.reply(trouble, {"error": {"code": trouble, "message": "not now"}})
            return  # without an answer, the connection is cut
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.server.behind + self.path, body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                self.reply(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self.reply(error.code, error.read())
        except urllib.error.URLError:
            return  # nobody is behind


@pytest.fixture
def front(vertex: Service) -> Iterator[Front]:
    with serving(server := Front(vertex.endpoint)):
        yield server
        server.ended.set()


def when(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Acts in another thread as soon as the condition holds."""
    thread = threading.Thread(target=lambda: eventually(condition) and act(), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("trouble", [503, 429, 0], ids=["503", "429", "cut off"])
def test_a_service_in_trouble_is_waited_for(vertex: Service, front: Front, tmp_path: Path, trouble: int) -> None:
    cloud = connect(OURS, front.endpoint)
    name = vertex.create(custom_job(*forever(tmp_path / "go")))
    seen = list[Event]()
    with deadline():
        for event in follow(cloud, name, Log(cloud), PACE):
            seen.append(event)
            if isinstance(event, Line) and event.text == "here":
                front.trouble = trouble
                when(lambda: front.refused >= 2, lambda: setattr(front, "trouble", None))
            if isinstance(event, Back):
                (tmp_path / "go").touch()
    kinds = [type(one) for one in seen if not isinstance(one, Changed)]
    assert kinds == [Line, Lost, Back]  # once each, however often it was asked
    assert states(seen)[-1] == "SUCCEEDED"


def test_a_log_that_is_not_answered_is_said_to_be_asked_for_again(vertex: Service, front: Front) -> None:
    name = vertex.create(custom_job(*STEPS))
    vertex.wait(name)
    front.troubled = "POST /v2/entries:list"
    front.trouble = 503
    reader = start(vertex, "logs", name, endpoint=front.endpoint)
    assert reader.stderr is not None
    told = reader.stderr.readline()
    front.trouble = None
    out, err = reader.communicate(timeout=DEADLINE)
    assert (untimed(told.rstrip()), err) == ("503 not now; retrying", "")
    assert (reader.returncode, out.count("step ")) == (0, 3)


@pytest.mark.parametrize(
    ("holds", "told"),
    [
        ("GET /v1/.*/customJobs/", "no job was stopped\n"),
        ("nothing", "no job was stopped; to skip the confirmation, add --yes\n"),
        (
            "POST /v1/.*:cancel",
            "the job might have been stopped; to check its state, run: python -m vertex_launch status ",
        ),
    ],
    ids=["looking", "asking", "stopping"],
)
def test_ctrl_c_at_any_moment_ends_cancel_and_says_what_became_of_the_job(
    vertex: Service, front: Front, tmp_path: Path, holds: str, told: str
) -> None:
    front.holds = holds
    name = vertex.create(custom_job(*forever(tmp_path / "go")))
    asks = holds == "nothing"
    stopper = start(vertex, "cancel", id_of(name), *([] if asks else ["--yes"]), endpoint=front.endpoint)
    assert (printed := stopper.stdout) is not None
    assert "?" in iter(lambda: printed.read(1), "") if asks else eventually(front.held.is_set)
    stopper.send_signal(signal.SIGINT)
    _, err = stopper.communicate(timeout=DEADLINE)
    assert (stopper.returncode, told in err, "Traceback" in err) == (130, True, False), err
    assert state(vertex.get(name)) not in ENDED
    (tmp_path / "go").touch()


@pytest.mark.parametrize(
    ("holds", "told", "sent"),
    [
        ("GET /storage/", "no job was submitted\n", False),
        ("nothing", "no job was submitted; to skip the confirmation, add --yes\n", False),  # it waits for an answer
        ("POST /v1/.*/customJobs$", "the job doesn't exist", False),
        ("GET /v1/.*/customJobs/", "the job continues; follow it with: ", True),
        ("POST /v2/entries:list", "the job continues; follow it with: ", True),
    ],
    ids=["looking", "asking", "sending", "waiting", "following"],
)
def test_ctrl_c_at_any_moment_ends_submit_and_says_what_became_of_the_job(
    vertex: Service, front: Front, tmp_path: Path, holds: str, told: str, sent: bool
) -> None:
    front.holds = holds
    output = {"outputUriPrefix": f"gs://b/{tmp_path.name}"}
    body = custom_job(*forever(tmp_path / "go"), baseOutputDirectory=output)
    (vertex.folder / f"{tmp_path.name}.yaml").write_text(json.dumps(body["jobSpec"]))
    asks = holds == "nothing"
    words = ("submit", f"{tmp_path.name}.yaml", "--follow", *([] if asks else ["--yes"]))
    sender = start(vertex, *words, endpoint=front.endpoint)
    assert (printed := sender.stdout) is not None
    assert "?" in iter(lambda: printed.read(1), "") if asks else eventually(front.held.is_set)
    sender.send_signal(signal.SIGINT)
    _, err = sender.communicate(timeout=DEADLINE)
    assert (sender.returncode, told in err, "Traceback" in err) == (130, True, False), err
    _, answer = vertex.call("GET", f"/v1/{PARENT}/customJobs?pageSize=100")
    there = [state(job) for job in answer["customJobs"] if job["displayName"] == tmp_path.name]
    (tmp_path / "go").touch()
    assert len(there) == sent
    assert not {*there} & ENDED


def test_a_job_that_may_no_longer_be_seen_is_not_followed(vertex: Service, front: Front, tmp_path: Path) -> None:
    name = vertex.create(custom_job(*forever(tmp_path / "go")))
    follower = start(vertex, "logs", name, "--follow", endpoint=front.endpoint)
    assert follower.stdout is not None
    for line in follower.stdout:
        if line.endswith("here\n"):
            front.trouble = 403
            break
    _, err = follower.communicate(timeout=DEADLINE)
    assert follower.returncode == 5  # no state's: it goes on
    assert err.startswith("Google Cloud: 403 not now; ask a project owner for the role roles/aiplatform.user")
    assert "the job continues; follow it with: python -m vertex_launch logs" in err
    (tmp_path / "go").touch()
    front.trouble = 403
    with pytest.raises(Forbidden):
        connect(OURS, front.endpoint).get(name)


def test_a_service_that_starts_again_ends_the_job_and_what_follows_it(tmp_path: Path, front: Front) -> None:
    with contextlib.ExitStack() as services, deadline(2 * DEADLINE):
        before = services.enter_context(service(tmp_path, "--grace-seconds", "1"))
        front.behind = before.endpoint  # the next one has another port
        cloud = connect(OURS, front.endpoint)
        name = before.create(custom_job(*forever(tmp_path / "go")))
        seen = list[Event]()
        for event in follow(cloud, name, Log(cloud), PACE):
            seen.append(event)
            if isinstance(event, Line) and event.text == "here":
                stop(before.process, signal.SIGKILL)
            if isinstance(event, Lost):
                front.behind = services.enter_context(service(tmp_path, "--grace-seconds", "1")).endpoint
    assert [type(one) for one in seen if not isinstance(one, Changed | Line)] == [Lost, Back]
    assert states(seen)[-1] == "FAILED"


def test_severities_are_compared_by_their_weight(vertex: Service) -> None:
    text = "import json\nfor one in ('INFO', 'ERROR', 'CRITICAL'): print(json.dumps({'severity': one, 'message': one}))"
    name = vertex.create(custom_job(*script(text)))
    vertex.wait(name, "SUCCEEDED")
    id = name.rpartition("/")[2]
    asked = {"resourceNames": ["projects/p"], "filter": f'resource.labels.job_id="{id}" AND severity>=ERROR'}
    _, answer = vertex.call("POST", "/v2/entries:list", asked)
    assert [entry["jsonPayload"]["message"] for entry in answer["entries"]] == ["ERROR", "CRITICAL"]
