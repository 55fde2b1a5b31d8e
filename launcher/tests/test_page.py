import io
import json
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from google.cloud.aiplatform_v1.types import CustomJob
from rich.console import Console

from launcher.tests.running import DEADLINE, eventually
from launcher.tests.vertex import custom_job, script, service
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.spec import parse
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.api.http import Router
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.journal import Journal
from vertex_launch.local.views import page
from vertex_launch.local.views.jobs import reports
from vertex_launch.settings import Settings

PARENT = "projects/p/locations/us-central1"
HOSTILE = "<img src=x onerror=alert(1)> [red]\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}"
POOL = {"replicaCount": "3", "machineSpec": {"machineType": "n1-standard-8"}}
GPU = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}


@dataclass(frozen=True)
class Served:
    """The page over a store, on a real server."""

    store: Store
    jobs: Jobs
    state_dir: StateDir
    endpoint: str

    def ask(self, path: str, **headers: str) -> tuple[int, Message, bytes]:
        request = urllib.request.Request(f"{self.endpoint}{path}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def json(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def job(self, name: str = "digits", state: str = "RUNNING", kind: str = "customJobs", **fields: Any) -> Resource:
        prefix = "PIPELINE" if kind == "trainingPipelines" else "JOB"
        path = f"{PARENT}/{kind}/{self.store.new_id()}"
        return self.store.create(path, {"displayName": name, "state": f"{prefix}_STATE_{state}", **fields})

    def say(self, job: Resource, *lines: str, replica: str = "workerpool0-0") -> str:
        """Let a replica print lines; gives the job's id."""
        id = str(job["name"]).rpartition("/")[2]
        journal = Journal(self.state_dir.journal(id))
        for line in lines:
            journal.write(replica, line)
        journal.close()
        return id


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store, state_dir = Store(tmp_path), StateDir(tmp_path)
    jobs = Jobs(store, Context(state_dir, Settings("p", "us-central1", "b", "image"), {}))
    router = Router(page.routes(store, jobs))
    config = uvicorn.Config(router, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Served(store, jobs, state_dir, f"http://127.0.0.1:{port}")
    server.should_exit = True
    thread.join(DEADLINE)
    store.close()


def step(number: object, **values: object) -> str:
    return json.dumps({"severity": "INFO", "message": f"step {number}", "step": number} | values)


def test_the_browser_may_run_the_pages_own_script_and_nothing_else(served: Served) -> None:
    status, headers, body = served.ask("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    text = body.decode()
    # An attribute or a second element would need a permission of its own.
    assert re.findall(r"<(script|style|link|img|iframe)\b", text) == ["link", "style", "script"]
    assert not re.search(r"""\s(style|on\w+)=["']|innerHTML|https?://(?!www\.w3\.org/2000/svg)""", text)


def test_a_jobs_name_and_its_id_are_addresses_of_the_page(served: Served) -> None:
    name = served.job()["name"]
    page_of_all = served.ask("/")
    for address in (f"/{name}", f"/{name.rpartition('/')[2]}"):
        status, headers, body = served.ask(address)
        assert (status, body) == (200, page_of_all[2])
        assert headers["Content-Security-Policy"] == page_of_all[1]["Content-Security-Policy"]
    assert served.ask("/nonsense")[0] == served.ask(f"/{PARENT}")[0] == 404


def test_the_page_survives_the_templates_own_renderer() -> None:
    assert not re.search(r"\{\{|\{%|\{#", page.PAGE.read_text(encoding="utf-8"))


def test_every_job_is_listed_newest_first_with_what_people_look_for(served: Served) -> None:
    error = {"code": 3, "message": "workerpool1-0 exited with code 3"}
    pools = [POOL | {"replicaCount": "1", "machineSpec": GPU}, POOL, {}]
    served.job("first", "FAILED", error=error, jobSpec={"workerPoolSpecs": pools}, startTime="s", endTime="e")
    served.job("second", "QUEUED")
    second, first = served.json("/page/jobs")["jobs"]
    assert (second["name"], second["state"], second["error"]) == ("second", "QUEUED", "")
    assert (first["state"], first["error"], first["started"], first["ended"]) == ("FAILED", error["message"], "s", "e")
    assert (first["project"], first["location"], first["kind"]) == ("p", "us-central1", "custom job")
    assert first["machines"] == ["1 x n1-standard-8 with 2 x NVIDIA_TESLA_T4", "3 x n1-standard-8", "none"]
    assert first["replicas"] == []


@pytest.mark.parametrize(("goal", "best"), [("MAXIMIZE", "2"), ("MINIMIZE", "1")])
def test_a_tuning_job_shows_its_trials_and_the_best_of_them(served: Served, goal: str, best: str) -> None:
    jobs = [served.job(f"trial-{number}", "SUCCEEDED") for number in (1, 2, 3)]
    trials: list[dict[str, Any]] = [
        {"id": "1", "state": "SUCCEEDED", "finalMeasurement": {"metrics": [{"metricId": "loss", "value": 0.1}]}},
        {"id": "2", "state": "SUCCEEDED", "finalMeasurement": {"metrics": [{"metricId": "loss", "value": 0.2}]}},
        {"id": "3", "state": "INFEASIBLE", "infeasibleReason": "no metric"},
    ]
    for trial, job in zip(trials, jobs, strict=True):
        trial |= {"customJob": job["name"], "parameters": [{"parameterId": "depth", "value": 4}]}
    metrics = [{"metricId": "loss", "goal": goal}]
    served.job("study", "SUCCEEDED", "hyperparameterTuningJobs", studySpec={"metrics": metrics}, trials=trials)
    study, *of_trials = served.json("/page/jobs")["jobs"]
    assert [trial["id"] for trial in study["trials"] if trial["best"]] == [best]
    assert [trial["metrics"] for trial in study["trials"]] == [{"loss": 0.1}, {"loss": 0.2}, {}]
    assert study["trials"][2]["reason"] == "no metric"
    assert study["trials"][0]["parameters"] == {"depth": 4}
    assert study["same_result"] == ""
    assert [job["part_of"] for job in of_trials] == [study["id"]] * 3
    assert [trial["job"] for trial in study["trials"]] == [job["id"] for job in reversed(of_trials)]


def test_what_a_trial_has_reported_is_among_its_curves(served: Served) -> None:
    job = served.job()
    id = served.say(job, step(1, **{"train/loss": 2.5}))
    reports = [(10, 0.5), (20, float("nan")), (30, 0.25)]
    lines = (json.dumps({"global_step": at, "timestamp": 1, "loss": loss}) for at, loss in reports)
    served.state_dir.metrics(id).write_text("\n".join(lines))
    study = {"metrics": [{"metricId": "loss"}, {"metricId": "accuracy"}]}
    trials = [{"id": "1", "state": "ACTIVE", "customJob": job["name"]}]
    assert served.json(f"/page/jobs/{id}")["points"] == {"train/loss": [[1, 2.5]]}
    served.job("study", "RUNNING", "hyperparameterTuningJobs", studySpec=study, trials=trials)
    points = served.json(f"/page/jobs/{id}")["points"]
    assert points == {"train/loss": [[1, 2.5]], "loss": [[10, 0.5], [30, 0.25]]}


def test_a_pipeline_and_its_job_know_each_other(served: Served) -> None:
    job = served.job("backing", "SUCCEEDED")
    served.job("pipeline", "SUCCEEDED", "trainingPipelines", trainingTaskMetadata={"backingCustomJob": job["name"]})
    pipeline, backing = served.json("/page/jobs")["jobs"]
    assert (pipeline["backing"], backing["part_of"]) == (backing["id"], pipeline["id"])


def test_a_log_is_read_on_from_where_the_last_answer_ended(served: Served) -> None:
    job = served.job()
    id = served.say(job, "one", step(1, loss=2.5))
    first = served.json(f"/page/jobs/{id}")
    assert [line["text"] for line in first["lines"]] == ["one", "step 1"]
    assert (first["points"], first["more"]) == ({"loss": [[1, 2.5]]}, False)
    served.say(job, "three", replica="workerpool1-0")
    second = served.json(f"/page/jobs/{id}?from={first['next']}")
    assert [(line["replica"], line["text"]) for line in second["lines"]] == [("workerpool1-0", "three")]
    assert second["points"] == {}
    assert served.json(f"/page/jobs/{id}?from={second['next']}")["lines"] == []


def test_a_line_that_is_still_being_written_is_left_for_later(served: Served) -> None:
    job = served.job()
    id = served.say(job, "one")
    whole = served.state_dir.journal(id).read_bytes()
    served.state_dir.journal(id).write_bytes(whole + whole[:-5])
    first = served.json(f"/page/jobs/{id}")
    assert ([line["text"] for line in first["lines"]], first["next"]) == (["one"], len(whole))
    served.state_dir.journal(id).write_bytes(whole + whole)
    assert len(served.json(f"/page/jobs/{id}?from={first['next']}")["lines"]) == 1


def test_a_job_that_has_said_nothing_has_an_empty_log(served: Served) -> None:
    id = served.job()["name"].rpartition("/")[2]
    assert served.json(f"/page/jobs/{id}")["lines"] == []


def test_a_huge_log_comes_in_bounded_answers_and_loses_no_metric(served: Served) -> None:
    job = served.job()
    id = served.say(job)
    entry = {"timestamp": "t", "replica": "workerpool0-0"}
    lines = [json.dumps(entry | {"line": step(number, loss=number)}) for number in range(100_000)]
    served.state_dir.journal(id).write_text("\n".join(lines) + "\n")
    start, answers, shown, points = 0, 0, 0, []
    while True:
        status, _, body = served.ask(f"/page/jobs/{id}?from={start}")
        part = json.loads(body)
        assert status == 200
        assert len(part["lines"]) <= page.LINES
        assert len(body) < page.CHUNK
        shown += len(part["lines"]) + part["omitted"]
        points += part["points"].get("loss", [])
        start, answers = part["next"], answers + 1
        if not part["more"]:
            break
    assert answers == served.state_dir.journal(id).stat().st_size // page.CHUNK + 1
    assert shown == len(points) == 100_000
    assert points[-1] == [99_999, 99_999]


def test_a_line_larger_than_an_answer_is_passed_over(served: Served) -> None:
    id = served.say(served.job(), "x" * (2 * page.CHUNK), "after")
    start, texts = 0, []
    for _ in range(4):
        part = served.json(f"/page/jobs/{id}?from={start}")
        texts += [line["text"] for line in part["lines"]]
        start = part["next"]
    assert texts == ["after"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link", "red link"),
        (HOSTILE, HOSTILE.replace("\x1b[31m", "")),
        ('{"message": 7}', '{"message": 7}'),
        ('{"message": "\\ud800"}', "\ud800"),
        ("[1]", "[1]"),
        ("{" * 5000, "{" * 5000),
        ('{"a":' * 1900, '{"a":' * 1900),
        ("x" * 30_000, "x" * page.LONGEST_LINE + " ... (30000 characters)"),
    ],
)
def test_whatever_a_replica_prints_is_a_line_of_text(served: Served, line: str, shown: str) -> None:
    id = served.say(served.job(), line)
    assert [one["text"] for one in served.json(f"/page/jobs/{id}")["lines"]] == [shown]


def test_a_replica_that_goes_and_comes_back_is_in_the_log_and_in_a_curve(served: Served) -> None:
    gone = {"message": "workerpool1-0 is gone", "severity": "WARNING", "gone": ["workerpool1-0"]}
    back = {"message": "workerpool1-0 is back", "severity": "INFO", "back": ["workerpool1-0"]}
    words = [json.dumps(gone), step(20, replicas=2), json.dumps(back), step(40, replicas=3)]
    shown = served.json(f"/page/jobs/{served.say(served.job(), *words)}")
    (first, _, third, _) = ((line["severity"], line["text"]) for line in shown["lines"])
    assert (first, third) == (("WARNING", gone["message"]), ("INFO", back["message"]))
    assert shown["points"]["replicas"] == [[20, 2], [40, 3]]


def test_only_finite_numbers_of_the_chief_with_a_step_are_points(served: Served) -> None:
    job = served.job()
    id = served.say(
        job,
        step(1, loss=1, note="text", flag=True, none=None),
        step(2, loss=float("nan")),
        step(3, loss=10**400),
        step(10**400, loss=1),
        step(True, loss=1),
        step("4", loss=1),
        json.dumps({"loss": 1}),
        step(5, loss=5.5, __proto__=1),
    )
    served.say(job, step(6, loss=6), replica="workerpool1-0")
    assert served.json(f"/page/jobs/{id}")["points"] == {"loss": [[1, 1], [5, 5.5]], "__proto__": [[5, 1]]}


@pytest.mark.parametrize("id", ["7", "..", "%2e%2e%2fservice.lock", "..%5c..", "a" * 3000])
def test_only_the_logs_of_jobs_can_be_read(served: Served, id: str) -> None:
    served.job()
    assert served.ask(f"/page/jobs/{id}")[0] == 404


@pytest.mark.parametrize("start", ["-1", "x", "1" * 400, "%00", "1e3"])
def test_a_position_that_is_none_is_refused(served: Served, start: str) -> None:
    id = served.say(served.job(), "one")
    assert served.ask(f"/page/jobs/{id}?from={start}")[0] == 400


def test_a_position_behind_the_end_is_an_empty_answer(served: Served) -> None:
    id = served.say(served.job(), "one")
    part = served.json(f"/page/jobs/{id}?from=999999")
    assert (part["lines"], part["next"]) == ([], 999999)


def test_what_has_not_changed_is_not_sent_again(served: Served) -> None:
    job = served.job()
    tag = served.ask("/page/jobs")[1]["ETag"]
    assert served.ask("/page/jobs", If_None_Match=tag)[::2] == (304, b"")
    served.store.update(job["name"], state="JOB_STATE_SUCCEEDED")
    assert served.ask("/page/jobs", If_None_Match=tag)[0] == 200


@pytest.mark.parametrize("path", ["/", "/page/jobs", "/page/jobs/1"])
def test_the_page_changes_nothing(served: Served, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        request = urllib.request.Request(f"{served.endpoint}{path}", b"{}", headers, method=method)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(request, timeout=DEADLINE)


def test_of_a_thousand_jobs_the_newest_are_listed_and_a_search_beside_its_trials(served: Served) -> None:
    search = served.job("study", "RUNNING", "hyperparameterTuningJobs")
    made = [
        served.job(f"job-{number}", "SUCCEEDED", jobSpec={"workerPoolSpecs": [POOL, POOL]}) for number in range(1100)
    ]
    jobs = served.json("/page/jobs")["jobs"]
    assert (len(jobs), jobs[0]["name"]) == (page.LISTED, "job-1099")
    trials = [{"id": str(number), "customJob": job["name"]} for number, job in enumerate(made)]
    served.store.update(search["name"], trials=trials)
    jobs = served.json("/page/jobs")["jobs"]
    assert [job["name"] for job in jobs[:2]] == ["study", "job-1099"]
    assert len(jobs) == page.LISTED + 1


def test_the_replicas_of_a_running_job_are_shown_with_their_restarts(tmp_path: Path) -> None:
    text = """
import os, pathlib, time
once = pathlib.Path(os.environ["GCS_MOUNT"], "once")  # the working directory ends with the replica
if os.environ["RANK"] == "1" and not once.exists():
    once.touch()
    raise SystemExit(3)
time.sleep(60)
"""
    with service(tmp_path, "--grace-seconds", "0") as vertex:
        name = vertex.create(custom_job(*script(text), workers=1))

        def replicas() -> list[Any]:
            (job,) = vertex.call("GET", "/page/jobs")[1]["jobs"]
            return [(one["name"], one["state"], one["restarts"], one["code"]) for one in job["replicas"]]

        expected = [("workerpool0-0", "running", 0, None), ("workerpool1-0", "running", 1, 3)]
        assert eventually(lambda: replicas() == expected), replicas()
        vertex.call("POST", f"/v1/{name}:cancel", {})
        vertex.wait(name, "CANCELLED")
        assert eventually(lambda: replicas() == [])


def plain(served: Served) -> tuple[AbstractContextManager[None], io.StringIO]:
    printed = io.StringIO()
    return reports(served.store, served.jobs, Console(file=printed, width=60, highlight=False)), printed


def test_each_change_of_state_is_one_line(served: Served) -> None:
    served.job("before", "SUCCEEDED")
    reported, printed = plain(served)
    with reported:
        job = served.job("my [bold]job", "RUNNING")
        assert eventually(lambda: "RUNNING" in printed.getvalue())
        error = {"code": 3, "message": "workerpool0-0 exited with code 1\nmore"}
        served.store.update(job["name"], state="JOB_STATE_FAILED", error=error)
    id = job["name"].rpartition("/")[2]
    lines = [re.sub("^[0-9:]{8} ", "", line) for line in printed.getvalue().splitlines()]
    assert lines == [
        f"customJobs/{id} my [bold]job RUNNING",
        f"customJobs/{id} my [bold]job FAILED: workerpool0-0 exited with code 1",
    ]


def test_a_restart_is_a_line_too(served: Served, tmp_path: Path) -> None:
    fails_once = "import pathlib, sys; mark = pathlib.Path(sys.argv[1]); mark.exists() or mark.touch() or exit(3)"
    container = {"imageUri": "trainer:1", "command": [sys.executable, "-c", fails_once, str(tmp_path / "mark")]}
    pool = {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1, "containerSpec": container}
    reported, printed = plain(served)
    with reported:
        spec = parse(yaml.safe_dump({"workerPoolSpecs": [pool]}), "digits")
        job = served.jobs.create(PARENT, CustomJob(display_name="digits", job_spec=spec))
        assert eventually(lambda: "SUCCEEDED" in printed.getvalue())
    what = f"customJobs/{job['name'].rpartition('/')[2]} digits: workerpool0-0 exited with code 3"
    assert f" {what}. Restarting this replica (restart 1 of 5)\n" in printed.getvalue()


def test_a_name_cannot_steer_the_terminal(served: Served) -> None:
    reported, printed = plain(served)
    with reported:
        served.job("\x1b[2Jx\r\ny\N{RIGHT-TO-LEFT OVERRIDE}z")
    assert re.search(r" \ufffd\[2Jx\ufffd\ufffdy\ufffdz RUNNING\n$", printed.getvalue())
