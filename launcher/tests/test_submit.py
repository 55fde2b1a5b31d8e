import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from email.message import Message
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from google.api_core.exceptions import Forbidden, NotFound, ServiceUnavailable, TooManyRequests, Unauthenticated
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.aiplatform_v1.types import HyperparameterTuningJob

from launcher.tests.running import SOURCE, eventually
from launcher.tests.servers import Replying, serving
from vertex_launch.cli.submit import send as send_it
from vertex_launch.cloud.refusals import CloudError, google_errors
from vertex_launch.cloud.service import NoAnswerError, connect, require_local
from vertex_launch.cloud.submit import request, submit, summary
from vertex_launch.errors import FaultError
from vertex_launch.job.spec import Job, TuningJob, parse
from vertex_launch.settings import Settings

SETTINGS = Settings("demo", "europe-west4", "demo-data", "registry/trainer:1")
ACCOUNT = "trainer@demo.iam.gserviceaccount.com"
TEXT = """
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-16, acceleratorType: NVIDIA_TESLA_V100, acceleratorCount: 2}
  replicaCount: 1
  containerSpec: {imageUri: registry/trainer:1, command: [python, -m, trainer.task], args: [--data, my shards]}
- {}
- machineSpec: {machineType: n1-highcpu-16}
  replicaCount: 4
  containerSpec: {imageUri: registry/reductionserver:latest}
scheduling: {timeout: 5400s, strategy: SPOT}
baseOutputDirectory: {outputUriPrefix: gs://demo-data/run}
"""
JOB = Job(Path("jobs/run.yaml"), "run", parse(TEXT, "jobs/run.yaml"))
TUNING_JOB = TuningJob(
    Path("jobs/tuning.yaml"),
    "search",
    HyperparameterTuningJob(
        max_trial_count=6,
        parallel_trial_count=2,
        study_spec={
            "metrics": [{"metric_id": "accuracy", "goal": 1}, {"metric_id": "loss", "goal": 2}],
            "parameters": [
                {"parameter_id": "rate", "double_value_spec": {"min_value": 0.0003, "max_value": 0.1}},
                {"parameter_id": "width", "discrete_value_spec": {"values": [16, 64.5]}},
                {"parameter_id": "layers", "integer_value_spec": {"min_value": 1, "max_value": 4}},
                {"parameter_id": "size", "categorical_value_spec": {"values": ["tiny", "small"]}},
            ],
        },
        trial_job_spec=JOB.spec,
    ),
)
JOBS = "python -m vertex_launch jobs"
NAME = "projects/123/locations/europe-west4/customJobs/456"


class Vertex(ThreadingHTTPServer):
    """Answers every POST with `reply` and remembers it: its path, body and headers; every GET with `jobs`.

    `answering` may be cleared: then a POST is taken, and nothing comes back.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.received: list[tuple[str, dict[str, object], Message]] = []
        self.reply: tuple[int, Mapping[str, object]] = (200, {"name": NAME, "displayName": "run"})
        self.jobs: tuple[int, Mapping[str, object]] = (200, {})
        self.asked: list[str] = []
        self.answering = threading.Event()
        self.answering.set()
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


class Answer(Replying):
    """One request to the server above."""

    server: Vertex

    def respond(self) -> None:
        if self.command == "GET":
            self.show()
            return
        self.server.received.append((self.path.partition("?")[0], json.loads(self.body()), self.headers))
        self.server.answering.wait()
        self.reply(*self.server.reply)

    def show(self) -> None:
        if self.path.startswith("/storage/"):
            self.reply(200, {})  # an empty bucket
            return
        self.server.asked += parse_qs(urlsplit(self.path).query).get("filter", [])
        self.reply(*self.server.jobs)


@pytest.fixture
def vertex() -> Iterator[Vertex]:
    with serving(server := Vertex()):
        yield server
        server.answering.set()


def test_a_job_is_sent_whole_and_its_name_comes_back(vertex: Vertex) -> None:
    assert submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint)) == NAME
    ((path, body, headers),) = vertex.received
    assert path == "/v1/projects/demo/locations/europe-west4/customJobs"
    assert body["displayName"] == "run"
    assert parse(json.dumps(body["jobSpec"]), "sent") == JOB.spec  # the empty pool too
    assert "Authorization" not in headers


def test_a_refusal_is_the_exception_of_the_api(vertex: Vertex) -> None:
    vertex.reply = (403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}})
    with pytest.raises(Forbidden, match="no"):
        submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint))


REFUSALS: list[tuple[int, str, str]] = [
    (
        403,
        "Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/demo'",
        "ask a project owner for the role roles/aiplatform.user: gcloud projects add-iam-policy-binding demo"
        " --member=user:YOU --role=roles/aiplatform.user",
    ),
    (
        403,
        f"You do not have permission to act as service account: {ACCOUNT}",
        f"to use this service account, run: gcloud iam service-accounts add-iam-policy-binding {ACCOUNT}"
        " --member=user:YOU --role=roles/iam.serviceAccountUser",
    ),
    (
        403,
        "Vertex AI API has not been used in project 123 before or it is disabled.",
        "enable the API: gcloud services enable aiplatform.googleapis.com --project=demo",
    ),
    (
        403,
        "Cloud Logging API has not been used in project 123 before or it is disabled.",
        "enable the API: gcloud services enable logging.googleapis.com --project=demo",
    ),
    (
        403,
        "Permission denied for all log views",
        "ask a project owner for the role roles/logging.viewer: gcloud projects add-iam-policy-binding demo"
        " --member=user:YOU --role=roles/logging.viewer",
    ),
    (
        403,
        'Permission "artifactregistry.repositories.downloadArtifacts" denied on resource',
        "ask a project owner for the role roles/artifactregistry.reader: gcloud projects add-iam-",
    ),
    (
        403,
        "Permission denied on resource project my-project.",
        "check the project in vertex.toml; list your projects with: gcloud projects list",
    ),
    (
        403,
        "This API method requires billing to be enabled. Please enable billing on project #demo",
        "link a billing account: gcloud billing projects link demo --billing-account=ACCOUNT",
    ),
    (
        403,
        "The billing account for the owning project is disabled in state absent",
        "link a billing account: gcloud billing projects link demo --billing-account=ACCOUNT",
    ),
    (
        403,
        "ada@example.com does not have storage.objects.list access to the Google Cloud Storage bucket.",
        "ask a project owner for the role roles/storage.objectViewer:"
        " gcloud storage buckets add-iam-policy-binding gs://demo-data --member=user:YOU --role=roles/storage.objectV",
    ),
    (
        404,
        "The location is not found",
        "check the project in vertex.toml, the region in vertex.toml, and the names in the job file",
    ),
    (
        400,
        "job_spec.scheduling.timeout is too long",
        "fix the field that this message mentions; the `check` command doesn't cover this rule",
    ),
    (
        429,
        "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100",
        "view the quota aiplatform.googleapis.com/custom_model_training_nvidia_a100 with: gcloud alpha services",
    ),
    (429, "Too many requests", "too many requests were sent; try again in a minute"),
]


@pytest.mark.parametrize(
    ("code", "message", "cure"), REFUSALS, ids=[f"{code}-{cure[:12]}" for code, _, cure in REFUSALS]
)
def test_a_refusal_is_one_sentence_with_a_cure(vertex: Vertex, code: int, message: str, cure: str) -> None:
    vertex.reply = (code, {"error": {"code": code, "message": message}})
    with pytest.raises(CloudError) as told, google_errors(SETTINGS):
        submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint))
    assert str(told.value).startswith(f"Google Cloud: {code} {message.rstrip('.')}; {cure}")
    assert len(vertex.received) == 1


def test_where_a_flag_or_a_variable_named_it_the_cure_says_so() -> None:
    ours = replace(SETTINGS, origins={"project": "VERTEX_PROJECT", "region": "--region"})
    match = "check the project in VERTEX_PROJECT, the region in --region, and the names in the job file"
    with pytest.raises(CloudError, match=match), google_errors(ours):
        raise NotFound("no")
    with pytest.raises(CloudError, match="check the project in VERTEX_PROJECT;"), google_errors(ours):
        raise Forbidden("Permission denied on resource project my-project.")


def test_a_quota_that_is_used_up_comes_with_the_line_that_asks_for_more() -> None:
    metric = "compute.googleapis.com/a2_cpus"
    with pytest.raises(CloudError) as told, google_errors(SETTINGS):
        raise TooManyRequests(f"The following quotas are exceeded: {metric}")
    assert "more quota: gcloud beta quotas preferences create --service=compute.googleapis.com" in str(told.value)
    assert f"--filter=metric={metric} " in str(told.value)
    assert str(told.value).endswith(" --preferred-value=COUNT --dimensions=region=europe-west4")


def test_the_right_to_a_bucket_is_that_to_the_one_that_was_asked() -> None:
    asked = "GET https://storage.googleapis.com/storage/v1/b/other-data/o?prefix=run: "
    line = "gs://other-data --member=user:YOU --role=roles/storage.objectAdmin"
    with pytest.raises(CloudError, match=line), google_errors(SETTINGS):
        raise Forbidden(f"{asked}Permission 'storage.objects.create' denied on resource (or it may not exist).")


def test_a_login_that_has_expired_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    match = "401 Request had invalid credentials; log in with: gcloud auth login --update-adc"
    with pytest.raises(CloudError, match=match), google_errors(SETTINGS):
        raise Unauthenticated("Request had invalid credentials.")


def test_a_service_that_fails_is_asked_again_until_it_answers(vertex: Vertex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vertex_launch.cloud.submit.RETRY_SECONDS", (0.01, 0.01))
    vertex.reply, said = (503, {"error": {"code": 503, "message": "try later"}}), list[str]()
    with pytest.raises(ServiceUnavailable):
        submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint), said.append)
    assert said == ["503 try later; retrying in 0.01 s"] * 2
    assert len(vertex.received) == 3


def test_a_job_that_a_failing_service_has_made_is_not_made_twice(
    vertex: Vertex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vertex_launch.cloud.submit.RETRY_SECONDS", (0.01, 0.01))
    vertex.reply = (503, {"error": {"code": 503, "message": "try later"}})
    vertex.jobs = (200, {"customJobs": [{"name": NAME}]})
    assert submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint)) == NAME
    assert len(vertex.received) == 1


def test_of_a_service_that_fails_to_the_end_it_is_said_that_the_job_may_be_there(
    vertex: Vertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vertex_launch.cloud.submit.RETRY_SECONDS", (0.01,))
    vertex.reply = vertex.jobs = (503, {"error": {"code": 503, "message": "try later"}})
    with pytest.raises(ServiceUnavailable):
        send_it(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "503 try later; retrying in 0.01 s"
    assert said[-1] == f"it's unknown whether the job was created (503 try later); look for the job with: {JOBS}"


def test_where_no_service_is_at_the_endpoint_there_is_no_answer(vertex: Vertex) -> None:
    vertex.shutdown()
    vertex.server_close()
    with pytest.raises(NoAnswerError, match="refused"):
        submit(request(JOB, SETTINGS), connect(SETTINGS, vertex.endpoint))


@pytest.mark.parametrize(
    ("region", "cure"), [("us-centrl1", ", and whether us-centrl1 is a region"), ("us-central1", "")]
)
def test_where_no_host_has_the_regions_name_the_region_is_doubted(region: str, cure: str) -> None:
    fault = f"https://{region}-aiplatform.googleapis.com doesn't respond (Name or service not known)"
    with pytest.raises(CloudError) as told, google_errors(replace(SETTINGS, region=region)):
        raise NoAnswerError(fault)
    assert str(told.value) == f"{fault}; check the network{cure}"


def test_the_request_names_the_job_and_holds_its_spec() -> None:
    sent = request(JOB, SETTINGS)
    assert sent.collection == "customJobs"
    assert sent.resource["displayName"] == "run"
    assert parse(json.dumps(sent.resource["jobSpec"]), "sent") == JOB.spec


@pytest.mark.parametrize(
    ("in_file", "in_settings", "sent"),
    [("", "", ""), ("", ACCOUNT, ACCOUNT), ("own@demo", ACCOUNT, "own@demo"), ("own@demo", "", "own@demo")],
)
def test_the_account_in_the_file_goes_before_the_one_in_the_settings(in_file: str, in_settings: str, sent: str) -> None:
    job = replace(JOB, spec=parse(f'{TEXT}serviceAccount: "{in_file}"', "jobs/run.yaml"))
    settings = replace(SETTINGS, service_account=in_settings)
    assert request(job, settings).resource["jobSpec"].get("serviceAccount", "") == sent
    assert job.spec.service_account == in_file  # the job itself stays as it was


def labels(job: Job | TuningJob, settings: Settings, typed: Mapping[str, str]) -> dict[str, str]:
    """The labels that are sent, without that of the request."""
    sent = request(job, settings, typed).resource["labels"]
    return {key: value for key, value in sent.items() if key != "submission"}


def test_labels_that_were_typed_go_before_those_of_the_file_and_these_before_those_in_the_settings() -> None:
    settings = replace(SETTINGS, labels={"team": "toml", "stage": "toml", "bill": "toml"})
    search = replace(TUNING_JOB, spec=HyperparameterTuningJob(TUNING_JOB.spec))
    search.spec.labels.update({"team": "file", "stage": "file"})
    assert labels(JOB, settings, {"team": "typed"}) == {"team": "typed", "stage": "toml", "bill": "toml"}
    assert labels(search, settings, {"team": "typed"}) == {"team": "typed", "stage": "file", "bill": "toml"}
    assert search.spec.labels == {"team": "file", "stage": "file"}  # the job itself stays as it was


def test_a_job_has_as_many_labels_as_google_takes_with_the_one_of_its_request() -> None:
    many = {f"l{i}": "" for i in range(63)}
    assert len(request(JOB, replace(SETTINGS, labels=many)).resource["labels"]) == 64
    with pytest.raises(FaultError, match="a job can't have 65 labels; keep at most 64 labels, including up to four"):
        request(JOB, replace(SETTINGS, labels=many), {"team": "vision"})


def test_the_summary_shows_machines_place_and_output() -> None:
    assert (
        summary(JOB, replace(SETTINGS, service_account=ACCOUNT))
        == f"""\
run -> projects/demo/locations/europe-west4
  pool 0   chief        1 x n1-standard-16 + 2 NVIDIA_TESLA_V100, registry/trainer:1
              python -m trainer.task --data 'my shards'
  pool 2   reducers     4 x n1-highcpu-16, registry/reductionserver:latest
  output   gs://demo-data/run
  account  {ACCOUNT}
  limits   SPOT, at most 1 h 30 min
  price    $9.19 per hour, $13.78 at most (inferred: list price in us-central1 x 1.15, 2026-11-20)"""
    )


def test_the_summary_of_a_package_shows_what_is_installed_and_run() -> None:
    package = {"executorImageUri": "google", "packageUris": ["gs://b/p.tar.gz"], "pythonModule": "trainer.task"}
    pool = {"machineSpec": {"machineType": "n1-standard-16"}, "replicaCount": 1, "pythonPackageSpec": package}
    text = json.dumps({"workerPoolSpecs": [pool | {"pythonPackageSpec": package | {"args": ["--steps", "5"]}}]})
    lines = summary(Job(Path("a.yaml"), "a", parse(text, "a.yaml")), SETTINGS).splitlines()
    assert lines[1:4] == [
        "  pool 0   chief        1 x n1-standard-16, google",
        f"{'':14}pip install gs://b/p.tar.gz",
        f"{'':14}python -m trainer.task --steps 5",
    ]


def test_the_summary_says_what_holds_where_the_file_says_nothing() -> None:
    lines = summary(Job(Path("a.yaml"), "a", parse("{}", "a.yaml")), SETTINGS).splitlines()
    assert lines[1:] == [
        "  output   none: no files are kept",
        "  account  Vertex AI service agent",
        "  limits   STANDARD, at most 168 h",
        "  price    unknown; add it under [prices] in vertex.toml",
    ]


TOML = 'project = "demo"\nregion = "europe-west4"\nbucket = "demo-data"\nimage = "registry/trainer:1"\n'


def submitted(folder: Path, endpoint: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `vertex-launch submit` in a folder."""
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": endpoint}
    command = [sys.executable, "-m", "vertex_launch", "submit", "run.yaml", "--yes", *words]
    return subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True, timeout=120)


@pytest.fixture
def send(vertex: Vertex, tmp_path: Path) -> Callable[[], "subprocess.Popen[str]"]:
    """Starts `vertex-launch submit` in a folder of its own, against that server."""
    (tmp_path / "vertex.toml").write_text(TOML)
    (tmp_path / "run.yaml").write_text(TEXT)
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": vertex.endpoint}
    words = [sys.executable, "-m", "vertex_launch", "submit", "run.yaml", "--yes"]
    return lambda: subprocess.Popen(
        words, cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_job_for_the_local_vertex_is_said_to_go_there_and_has_its_page(
    vertex: Vertex, send: Callable[[], "subprocess.Popen[str]"]
) -> None:
    said, _ = send().communicate(timeout=120)
    assert said.startswith(f"submitting to the local Vertex at {vertex.endpoint}, not to Google Cloud\nrun -> ")
    follow = "follow it with: python -m vertex_launch logs 456 --follow\n"
    assert said.endswith(f"sent: {NAME}\n{vertex.endpoint}/#456\n{follow}")


def test_labels_of_vertex_toml_and_of_the_command_line_are_shown_and_sent(vertex: Vertex, tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(f'{TOML}[labels]\nteam = "vision"\ncost-center = "4711"\n')
    (tmp_path / "run.yaml").write_text(TEXT)
    sent = submitted(tmp_path, vertex.endpoint, "--label", "team=speech", "--label", "stage=")
    assert sent.returncode == 0, sent.stderr
    assert "  labels   cost-center=4711, stage=, submission=" in sent.stdout
    ((_, body, _),) = vertex.received
    assert isinstance(body["labels"], dict)
    assert {"team": "speech", "cost-center": "4711", "stage": ""}.items() <= body["labels"].items()
    refused = submitted(tmp_path, vertex.endpoint, "--label", "Team=speech")
    assert (refused.returncode, len(vertex.received)) == (1, 1)
    assert '\n--label: "Team" isn\'t a valid label key; begin with a letter or a digit, and use ' in refused.stderr


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:8911", "https://localhost:8911/", "http://[::1]:80", "http://127.1.2.3"],
)
def test_an_endpoint_of_this_machine_is_local(endpoint: str) -> None:
    require_local(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("127.0.0.1:8911", "localhost", "ftp://127.0.0.1", "http://", "http://[::1", "http://127.0.0.1:port"),
        *("https://us-central1-aiplatform.googleapis.com", "http://10.0.0.7:8911", "http://localhost.evil.org"),
        *("http://127.0.0.1@evil.org", "http://127.0.0.1:8911/v1"),
    ],
)
def test_any_other_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(FaultError, match="is not an HTTP"):
        require_local(endpoint)


def test_submit_refuses_an_endpoint_elsewhere_before_it_sends_anything(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(TOML)
    (tmp_path / "run.yaml").write_text(TEXT)
    sent = submitted(tmp_path, "http://example.org")
    assert (sent.returncode, sent.stdout) == (1, "")
    assert 'VERTEX_ENDPOINT: "http://example.org" is not an HTTP(S) URL on this machine; use' in sent.stderr
    assert "Traceback" not in sent.stderr


CREATED = """the job was created: {name}
the job continues; follow it with: python -m vertex_launch logs 456 --follow
stop it with: python -m vertex_launch cancel 456
{endpoint}/#456
"""


@pytest.mark.parametrize(
    ("jobs", "said_then"),
    [
        ((200, {"customJobs": [{"name": NAME}]}), CREATED),
        ((200, {}), "the job doesn't exist; if Vertex AI receives the request later, look for the job with: {jobs}\n"),
        ((403, {"error": {"code": 403, "message": "no"}}), "it's unknown whether the job was created (403 no); "),
    ],
    ids=["created", "not created", "not to be asked"],
)
def test_ctrl_c_during_the_request_says_what_became_of_the_job(
    vertex: Vertex,
    send: Callable[[], "subprocess.Popen[str]"],
    jobs: tuple[int, Mapping[str, object]],
    said_then: str,
) -> None:
    vertex.answering.clear()
    vertex.jobs = jobs
    sender = send()
    assert eventually(lambda: len(vertex.received) == 1, 120)
    sender.send_signal(signal.SIGINT)
    _, said = sender.communicate(timeout=120)
    assert sender.returncode == 130
    begin = "interrupted before the response arrived; looking for the job\n"
    assert begin + said_then.format(name=NAME, endpoint=vertex.endpoint, jobs=JOBS) in said
    assert "Traceback" not in said
    ((_, body, _),) = vertex.received
    labels = body["labels"]
    assert isinstance(labels, dict)
    assert vertex.asked[-1] == f"labels.submission={labels['submission']}"


@pytest.fixture
def logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a login to Google Cloud, whose token nobody asks for."""
    login = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    (tmp_path / "login.json").write_text(json.dumps(login))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))


@pytest.mark.usefixtures("logged_in")
def test_a_job_in_the_cloud_has_a_page_in_the_console() -> None:
    page = "https://console.cloud.google.com/agent-platform/locations/europe-west4/training/456?project=123"
    service = connect(SETTINGS)
    assert service.page(NAME) == service.page(NAME.replace("customJobs", "hyperparameterTuningJobs")) == page


def test_without_a_login_there_is_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(DefaultCredentialsError):
        connect(SETTINGS)
    match = (
        "missing.json was not found; fix the key file that GOOGLE_APPLICATION_CREDENTIALS specifies, or unset this"
        " variable and"
    )
    with pytest.raises(CloudError, match=match), google_errors(SETTINGS):
        connect(SETTINGS)


def test_a_tuning_job_is_sent_whole_and_its_name_comes_back(vertex: Vertex) -> None:
    name = NAME.replace("customJobs", "hyperparameterTuningJobs")
    vertex.reply = (200, {"name": name})
    settings = replace(SETTINGS, service_account=ACCOUNT)
    assert submit(request(TUNING_JOB, settings), connect(SETTINGS, vertex.endpoint)) == name
    ((path, body, _),) = vertex.received
    assert path == "/v1/projects/demo/locations/europe-west4/hyperparameterTuningJobs"
    assert (body["displayName"], body["maxTrialCount"]) == ("search", 6)
    sent = parse(json.dumps(body["trialJobSpec"]), "sent")
    assert sent.service_account == ACCOUNT
    assert sent.worker_pool_specs == JOB.spec.worker_pool_specs
    assert TUNING_JOB.spec.trial_job_spec.service_account == ""  # the job itself stays as it was


def test_the_summary_of_a_tuning_job_shows_what_is_searched_and_what_a_trial_costs() -> None:
    lines = summary(TUNING_JOB, SETTINGS).splitlines()
    assert lines[:6] == [
        "search -> projects/demo/locations/europe-west4",
        "  tuning   6 trials, 2 in parallel, for the highest accuracy and the lowest loss",
        "           rate: 0.0003 to 0.1",
        "           width: 16, 64.5",
        "           layers: 1 to 4",
        "           size: tiny, small",
    ]
    assert lines[6:-2] == summary(JOB, SETTINGS).splitlines()[1:-2]
    assert lines[-2] == "  limits   SPOT, at most 1 h 30 min per trial"


def test_a_search_costs_all_trials_at_most_and_those_at_once_per_hour() -> None:
    settings = replace(SETTINGS, prices={"n1-standard-16": 1.0, "NVIDIA_TESLA_V100": 2.0, "n1-highcpu-16": 0.5})
    assert summary(JOB, settings).splitlines()[-1].startswith("  price    $7.00 per hour, $10.50 at most (documented: ")
    assert summary(TUNING_JOB, settings).splitlines()[-1].startswith("  price    $14.00 per hour, $63.00 at most ")
