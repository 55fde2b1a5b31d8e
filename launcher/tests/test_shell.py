"""Interactive shells in replicas: who has one, what it sees, how long it lives, and who may open it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning as hpt
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from launcher.tests.running import DEADLINE, eventually, processes
from launcher.tests.sdk import prepare
from launcher.tests.vertex import PARENT, Service, custom_job, service
from vertex_launch.local.api.origin_check import fault_of
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.views import shell

SLEEP = ("sleep", "600")


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "0") as running:
        yield running


@pytest.fixture(scope="module")
def job(vertex: Service) -> str:
    """A job of a chief and a worker that runs until the end of all tests."""
    name = vertex.create(custom_job(*SLEEP, workers=1, enableWebAccess=True))
    vertex.wait(name, "RUNNING")
    return name


def until(file: Path) -> tuple[str, ...]:
    """A command that ends once there is a file."""
    return "sh", "-c", f"until test -e {file}; do sleep 0.1; done"


def address(vertex: Service, job: str, replica: str = "workerpool0-0") -> str:
    return str(vertex.get(job)["webAccessUris"][replica]).replace("http:", "ws:")


@contextlib.contextmanager
def opened(vertex: Service, address: str) -> Iterator[ClientConnection]:
    """Connect as the service's own page does, and wait for the prompt."""
    with connect(address, origin=Origin(vertex.endpoint)) as page:
        page.recv(timeout=DEADLINE)
        yield page


def answer(page: ClientConnection, command: str) -> str:
    """Type a command and return what it prints; it must be one that the echo does not spell in the same way."""
    page.send(f"{command}; echo the'' end\r")
    shown = ""
    while "the end\r\n" not in shown:
        shown += str(page.recv(timeout=DEADLINE, decode=True))
    return shown.partition("the'' end\r\n")[2].partition("the end")[0].replace("\r\n", "\n")


def closed(page: ClientConnection) -> int:
    """Wait until the service closes the connection and return the code with which it does."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            page.recv(timeout=DEADLINE)
    return page.close_code or 0


def test_each_replica_has_an_address_with_a_secret_of_its_own(vertex: Service, job: str) -> None:
    uris = vertex.get(job)["webAccessUris"]
    assert [*uris] == ["workerpool0-0", "workerpool1-0"]
    assert all(
        uri.startswith(f"{vertex.endpoint}/shell/{job.rpartition('/')[2]}/{name}/") for name, uri in uris.items()
    )
    secrets = {uri.rpartition("/")[2] for uri in uris.values()}
    assert [len(secret) >= 40 for secret in secrets] == [True, True]


def test_a_job_that_did_not_ask_has_none(vertex: Service) -> None:
    name = vertex.create(custom_job(*SLEEP))
    assert "webAccessUris" not in vertex.wait(name, "RUNNING")
    vertex.call("POST", f"/v1/{name}:cancel", {})


def test_a_shell_has_the_environment_and_the_folder_of_its_replica(vertex: Service, job: str) -> None:
    with opened(vertex, address(vertex, job, "workerpool1-0")) as page:
        assert answer(page, "echo $RANK $CLOUD_ML_JOB_ID") == f"1 {job.rpartition('/')[2]}\n"
        assert answer(page, "pwd") == f"{vertex.folder}\n"
        assert answer(page, "tty").startswith("/dev/")


@pytest.mark.skipif(isolation().world == "none", reason="needs namespaces")
def test_a_shell_sees_what_its_replica_sees(vertex: Service, job: str) -> None:
    with opened(vertex, address(vertex, job, "workerpool1-0")) as page:
        assert answer(page, "tr '\\0' ' ' </proc/1/cmdline; echo") == "sleep 600 \n"
        assert answer(page, "hostname; echo $HOSTNAME").splitlines()[0].startswith("cmle-training-workerpool1-")
        assert answer(page, "ls -d /gcs/b") == "/gcs/b\n"


def test_a_shell_ends_with_its_page_and_with_exit(vertex: Service, job: str) -> None:
    with opened(vertex, address(vertex, job)) as page:
        answer(page, "export MARK=with-the-page; sleep 500 & sleep 0")
        assert eventually(lambda: processes("MARK=with-the-page", "sleep\x00500") != [])  # bash forks first
    assert eventually(lambda: not processes("bash", "TERM=dumb", job.rpartition("/")[2]))
    with opened(vertex, address(vertex, job)) as page:
        page.send("exit\r")
        assert closed(page) == 1000
    assert vertex.get(job)["state"] == "JOB_STATE_RUNNING"


def test_a_shell_ends_with_its_job_and_so_does_its_address(vertex: Service) -> None:
    name = vertex.create(custom_job(*SLEEP, enableWebAccess=True))
    vertex.wait(name, "RUNNING")
    where = address(vertex, name)
    with opened(vertex, where) as page:
        answer(page, "export MARK=with-the-job; (setsid sleep 500 &); sleep 0")
        vertex.call("POST", f"/v1/{name}:cancel", {})
        closed(page)
    assert "webAccessUris" not in vertex.wait(name)
    assert not processes("MARK=with-the-job")
    with connect(where, origin=Origin(vertex.endpoint)) as page:
        assert (closed(page), page.close_reason) == (1008, shell.NOWHERE)


def test_a_job_ends_by_itself_while_somebody_is_at_its_shell(vertex: Service) -> None:
    end = vertex.state_dir / "end"
    name = vertex.create(custom_job(*until(end), enableWebAccess=True))
    vertex.wait(name, "RUNNING")
    with opened(vertex, address(vertex, name)) as page:
        answer(page, "sleep 500 & sleep 0")
        end.touch()
        assert closed(page) == 1000
    vertex.wait(name, "SUCCEEDED")


@pytest.mark.parametrize("change", [lambda uri: f"{uri[:-1]}", lambda uri: uri.replace("workerpool0", "workerpool1")])
def test_an_address_with_another_secret_has_no_shell(vertex: Service, job: str, change: object) -> None:
    wrong = change(address(vertex, job))  # type: ignore[operator]
    with connect(wrong, origin=Origin(vertex.endpoint)) as page:
        assert closed(page) == 1008


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example"])
def test_a_page_of_another_site_cannot_connect(vertex: Service, job: str, origin: str | None) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(address(vertex, job), origin=Origin(origin) if origin else None, legacy=True)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "aiplatform.googleapis.com"])
def test_a_page_that_calls_this_machine_by_another_name_cannot_connect(host: str) -> None:
    headers = [(b"host", host.encode()), (b"origin", f"http://{host}".encode())]
    refused = {"type": "websocket", "path": "/shell/1/workerpool0-0/secret", "headers": headers}
    assert fault_of(refused)


def test_the_page_of_a_shell_runs_its_own_script_alone_and_no_link_leads_to_it(vertex: Service, job: str) -> None:
    path = urlsplit(address(vertex, job)).path
    assert vertex.call("GET", path, headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert "script-src 'sha256-" in shell.page()[2](None).headers["Content-Security-Policy"]


def test_the_sdk_finds_the_address_of_a_trial(vertex: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(vertex, monkeypatch)
    end = vertex.state_dir / "end-of-trial"
    container = {"image_uri": "image", "command": [*until(end)]}
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}
    search = aiplatform.HyperparameterTuningJob(
        display_name="shells",
        custom_job=aiplatform.CustomJob("trial", worker_pool_specs=[pool]),
        metric_spec={"loss": "minimize"},
        parameter_spec={"x": hpt.DoubleParameterSpec(min=0, max=1, scale="linear")},
        max_trial_count=1,
        parallel_trial_count=1,
    )
    search.run(enable_web_access=True, sync=False)
    search.wait_for_resource_creation()
    named = f"projects/p/locations/us-central1/hyperparameterTuningJobs/{search.name}"
    assert eventually(lambda: "webAccessUris" in vertex.get(named).get("trials", [{}])[0])
    shown: Any = search.web_access_uris
    assert shown["1"]["workerpool0-0"].startswith(f"{vertex.endpoint}/shell/")
    end.touch()
    with pytest.raises(RuntimeError, match="1 of 1 trials failed"):  # it reports no metric
        search.wait()
    assert search.web_access_uris == {"1": {}}


def test_a_dashboard_is_refused(vertex: Service) -> None:
    body = custom_job(*SLEEP, enableDashboardAccess=True)
    status, refusal = vertex.call("POST", f"/v1/{PARENT}/customJobs", body)
    assert (status, refusal["error"]["message"].partition(":")[0]) == (400, "jobSpec.enableDashboardAccess")
