import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launcher.tests.running import DEADLINE, SOURCE, eventually, processes
from launcher.tests.vertex import BY_ID, PARENT, Json, Service, custom_job, script, service, stop
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.operations import Operations
from vertex_launch.local.api.origin_check import fault_of
from vertex_launch.local.api.store import Store

FOREVER = script("import time; time.sleep(600)")
JOBS = f"/v1/{PARENT}/customJobs"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


def test_a_job_succeeds_with_its_times_and_its_log(vertex: Service) -> None:
    name = vertex.create(custom_job(*script("print('hello')"), name="first"))
    job = vertex.wait(name, "SUCCEEDED")
    assert job["createTime"] < job["startTime"] < job["endTime"] <= job["updateTime"]
    assert job["displayName"] == "first"
    assert job["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] == "1"
    assert "error" not in job
    assert vertex.log(name) == ["workerpool0-0: hello"]


def test_the_primarys_success_ends_the_job_and_its_workers(vertex: Service) -> None:
    text = "import os, time; time.sleep(0 if os.environ['RANK'] == '0' else 600)"
    name = vertex.create(custom_job(*script(text), workers=2))
    vertex.wait(name, "SUCCEEDED")
    stopped = "was still running when the chief exited with code 0, so it was stopped"
    said = [line.partition(".")[0] for line in vertex.log(name, "service")]
    # A note on worlds appears only if the replicas ran long enough.
    assert [line for line in said if "worlds" not in line] == [
        f"service: workerpool1-{index} {stopped}" for index in range(2)
    ]


def test_a_failure_says_which_replica_and_why(vertex: Service) -> None:
    name = vertex.create(custom_job(*script("print('step 1'); open('no such file')")))
    job = vertex.wait(name, "FAILED")
    assert job["error"]["code"] == 3
    first, second, *_, fault, logs = job["error"]["message"].splitlines()
    assert first == "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error. "
    assert second == "Traceback (most recent call last):"
    assert fault == "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'"
    assert logs.startswith("Logs: ")
    assert job["endTime"] >= job["startTime"]
    assert vertex.log(name).count("workerpool0-0: step 1") == 1


def test_the_environment_is_the_services(vertex: Service) -> None:
    shown = "import json, os; print(json.dumps({k: v for k, v in os.environ.items()}))"
    body = custom_job(*script(shown), workers=1, baseOutputDirectory={"outputUriPrefix": "gs://b/out"})
    name = vertex.create(body)
    vertex.wait(name, "SUCCEEDED")
    chief = next(line for line in vertex.log(name) if line.startswith("workerpool0-0: {"))
    environ = json.loads(chief.partition(": ")[2])
    cluster = json.loads(environ["CLUSTER_SPEC"])
    assert cluster["cluster"].keys() == {"workerpool0", "workerpool1"}
    assert cluster["task"] == {"type": "workerpool0", "index": 0}
    assert cluster["environment"] == "cloud"
    assert json.loads(environ["TF_CONFIG"])["cluster"].keys() == {"chief", "worker"}
    assert environ["AIP_MODEL_DIR"] == "gs://b/out/model/"
    assert environ["CLOUD_ML_JOB_ID"] == name.rpartition("/")[2]
    assert environ["STORAGE_EMULATOR_HOST"] == environ["https_proxy"]  # a way of the job's own


@pytest.mark.parametrize("accelerator", ["NVIDIA_TESLA_T4", 5], ids=["name", "number"])
def test_enums_are_taken_as_names_and_as_numbers(vertex: Service, accelerator: Any) -> None:
    body = custom_job(*script("pass"))
    machine = {"machineType": "n1-standard-8", "acceleratorType": accelerator, "acceleratorCount": 1}
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = machine
    job = vertex.get(vertex.create(body))
    assert job["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_T4"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"displayNme": "x"}, "displayNme"),
        ({"displayName": ""}, "displayName"),
        ({"jobSpec": {"workerPoolSpecs": [{"machinSpec": {}}]}}, "jobSpec.workerPoolSpecs[0]"),
        ({"jobSpec": {"scheduling": {"strategy": "CHEAP"}}}, "jobSpec.scheduling.strategy"),
        ({"jobSpec": {"scheduling": {"timeout": 3600}}}, "jobSpec.scheduling.timeout"),
        ({"jobSpec": {}}, "jobSpec.workerPoolSpecs[0]"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(vertex: Service, change: Json, field: str) -> None:
    status, answer = vertex.call("POST", JOBS, custom_job(*script("pass")) | change)
    error = answer["error"]
    assert (status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    violations = error["details"][0]["fieldViolations"]
    assert any(violation["field"].startswith(field) or field in violation["description"] for violation in violations)
    assert all(violation["description"] for violation in violations)


def test_keys_of_either_case_and_nulls_are_taken_as_protobuf_takes_them(vertex: Service) -> None:
    machine = {"machine_type": "n1-standard-8", "acceleratorType": None}
    container = {"image_uri": "image", "command": [*script("pass")], "args": None}
    pool = {"machine_spec": machine, "container_spec": container, "pythonPackageSpec": None, "replica_count": "1"}
    body = {"display_name": "job", "labels": None, "jobSpec": {"worker_pool_specs": [pool], "scheduling": None}}
    job = vertex.get(vertex.create(body))
    (kept,) = job["jobSpec"]["workerPoolSpecs"]
    assert (kept["machineSpec"], kept["containerSpec"]["imageUri"]) == ({"machineType": "n1-standard-8"}, "image")
    assert "labels" not in job


@pytest.mark.parametrize(
    ("body", "place", "words"),
    [
        ({"display_name": "a", "displayName": "b"}, "", 'the key "displayName" occurs 2 times; keep one of them'),
        ({"display_name": "a", "displayName": None}, "", 'the key "displayName" occurs 2 times'),
        ({"jobSpec": {"worker_pool_specs": [None]}}, "jobSpec.workerPoolSpecs[0]", "has no value"),
        ({"job_spec": {"worker_pools": []}}, "jobSpec", 'unknown key "worker_pools"; did you mean workerPoolSpecs?'),
    ],
)
def test_a_key_in_both_cases_and_a_null_in_a_list_are_faults(
    vertex: Service, body: Json, place: str, words: str
) -> None:
    _, answer = vertex.call("POST", JOBS, {"displayName": "job"} | body)
    violations = answer["error"]["details"][0]["fieldViolations"]
    assert [violation["field"] for violation in violations] == [place]
    assert words in violations[0]["description"]


def test_a_client_cannot_write_what_the_service_writes(vertex: Service) -> None:
    other = f"{PARENT}/customJobs/77"
    given = {"name": other, "state": "JOB_STATE_FAILED", "error": {"code": 3}, "endTime": "2020-01-01T00:00:00Z"}
    status, created = vertex.call("POST", f"{JOBS}?customJobId=77", custom_job(*script("pass")) | given)
    name = created["name"]
    assert (status, name != other) == (200, True)
    job = vertex.wait(name, "SUCCEEDED")
    assert "error" not in job
    assert job["endTime"] > job["createTime"]


def test_labels_are_googles(vertex: Service) -> None:
    status, answer = vertex.call("POST", JOBS, custom_job(*script("pass")) | {"labels": {"team": "Vision"}})
    assert status == 400
    assert answer["error"]["details"][0]["fieldViolations"][0]["field"] == "labels.team"


def test_a_list_shows_only_the_fields_that_are_asked_for(vertex: Service) -> None:
    vertex.create(custom_job(*script("pass")))
    _, answer = vertex.call("GET", f"{JOBS}?pageSize=1&readMask=name,display_name")
    assert answer["customJobs"][0].keys() == {"name", "displayName"}
    assert vertex.call("GET", f"{JOBS}?readMask=shoeSize")[0] == 400


@pytest.mark.parametrize("path", ["/control/1/kill", "/control/1/freeze", "/control/1/explode", "/v2/entries:list"])
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[" * 20_000,
        b'{"replica": 1, "resourceNames": 5}',
        b'{"replica": "a", "seconds": "x"}',
        b'{"replica": "a", "seconds": 1e999}',
    ],
    ids=["empty", "deep", "other types", "text", "infinite"],
)
def test_what_is_no_request_is_never_a_fault_of_the_service(vertex: Service, path: str, body: bytes) -> None:
    status, answer = vertex.call("POST", path, body)
    assert status in (400, 404)
    assert answer["error"]["message"]


def test_an_address_with_a_slash_too_many_is_not_found(vertex: Service) -> None:
    assert vertex.call("GET", f"{JOBS}/")[0] == 404


def test_every_fault_comes_at_once(vertex: Service) -> None:
    body = custom_job(*script("pass"))
    body["jobSpec"]["workerPoolSpecs"][0] |= {"replicaCount": 2, "machineSpec": {"machineType": "n1-standard-7"}}
    _, answer = vertex.call("POST", JOBS, body)
    fields = [violation["field"] for violation in answer["error"]["details"][0]["fieldViolations"]]
    assert fields == ["jobSpec.workerPoolSpecs[0].machineSpec.machineType", "jobSpec.workerPoolSpecs[0].replicaCount"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"a": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"jobSpec": 1}',
        b'{"labels": [%s0]}' % (b"0," * 200_000),
    ],
)
def test_a_body_that_is_no_job_is_one_sentence(vertex: Service, body: bytes) -> None:
    status, answer = vertex.call("POST", JOBS, body)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "address", ["gs://../x", "gs://.uploads/x", "gs://b/../x", "gs://b/a\0b", "gs://b/a\nb", "gs://", "gs://B/x", "/x"]
)
def test_an_output_address_that_is_no_folder_in_a_bucket_is_refused(vertex: Service, address: str) -> None:
    output = {"outputUriPrefix": address}
    job = custom_job(*script("pass"), baseOutputDirectory=output)
    split = {"datasetId": "1", "gcsDestination": output}
    task = {"trainingTaskDefinition": "/custom_task_1.0.0.yaml", "trainingTaskInputs": custom_job()["jobSpec"]}
    pipeline = {"displayName": "x", "inputDataConfig": split, **task}
    for collection, place, body in (
        ("customJobs", "jobSpec.baseOutputDirectory", job),
        ("trainingPipelines", "inputDataConfig.gcsDestination", pipeline),
    ):
        status, answer = vertex.call("POST", f"/v1/{PARENT}/{collection}", body)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        (violation,) = answer["error"]["details"][0]["fieldViolations"]
        assert violation["field"] == f"{place}.outputUriPrefix"
        assert violation["description"].startswith(f"{json.dumps(address)} ")
    assert sorted(path.name for path in (vertex.state_dir / "gcs").iterdir()) == ["b"]


MULTIPART = "/upload/storage/v1/b/b/o?uploadType=multipart&name=x"


def hostile_pools(count: int) -> bytes:
    return json.dumps({"displayName": "x", "jobSpec": {"workerPoolSpecs": [{}] * count}}).encode()


HOSTILE = {
    "blank lines": (MULTIPART, b"--x\n" + b"\n" * 10**6),
    "parts without end": (MULTIPART, b"--x\n" + b"\n\n--x\n" * 2 * 10**5),
    "one endless mark": (MULTIPART, b"--" + b"x" * 5 * 10**5 + b"\n\n{}\n--" + b"x" * 5 * 10**5),
    "deep metadata": (MULTIPART, b"--x\n\n" + b"[" * 10**6 + b"\n--x\n\n"),
    "many pools": (JOBS, hostile_pools(45_000)),
    "more pools than four": (JOBS, hostile_pools(4_900)),
    "many labels": (JOBS, json.dumps(custom_job() | {"labels": {f"K{i}": "A" for i in range(40_000)}}).encode()),
    "a long filter": (
        "/v2/entries:list",
        b'{"resourceNames": ["projects/p"], "filter": "' + b"a=b " * 2 * 10**5 + b'"}',
    ),
    "a long order": ("/v2/entries:list", b'{"resourceNames": ["projects/p"], "orderBy": "' + b"a," * 4 * 10**5 + b'"}'),
}


@pytest.mark.parametrize(("path", "body"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_body_is_refused_while_others_are_served(vertex: Service, path: str, body: bytes) -> None:
    with ThreadPoolExecutor() as pool:  # each call has a minute; what is not linear in a megabyte takes hours
        hostile = pool.submit(vertex.call, "POST", path, body)
        while not hostile.done():
            assert vertex.call("GET", f"/v1/{PARENT}/models")[0] == 200
        status, answer = hostile.result()
    assert (status, answer["error"]["code"]) == (400, 400)
    assert len(json.dumps(answer)) < 10**5


def test_a_job_that_runs_can_be_cancelled_but_not_deleted(vertex: Service) -> None:
    name = vertex.create(custom_job(*FOREVER))
    vertex.wait(name, "RUNNING")
    status, answer = vertex.call("DELETE", f"/v1/{name}")
    assert (status, answer["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert vertex.call("POST", f"/v1/{name}:cancel", {}) == (200, {})
    job = vertex.wait(name, "CANCELLED")
    assert job["error"] == {"code": 1, "message": "CANCELED: the job was canceled"}
    status, operation = vertex.call("DELETE", f"/v1/{name}")
    assert status == 200
    assert operation["done"] is True
    assert vertex.get(operation["name"]) == operation
    assert vertex.call("GET", f"/v1/{name}")[0] == 404


def test_of_the_operations_the_newest_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    operations = Operations(store, kept=3)
    made = [operations.wrapped({"@type": "x", "number": number}, PARENT) for number in range(5)]
    assert [operations.get(one["name"]) for one in made[2:]] == made[2:]
    for forgotten in made[:2]:
        with pytest.raises(ApiError, match="does not exist"):
            operations.get(forgotten["name"])
    store.close()


def test_what_has_ended_cannot_be_cancelled(vertex: Service) -> None:
    name = vertex.create(custom_job(*script("pass")))
    ended = vertex.wait(name, "SUCCEEDED")
    message = f'The CustomJob "{name.replace(PARENT, BY_ID)}" is in state JOB_STATE_SUCCEEDED and cannot be canceled'
    refused = {"error": {"code": 400, "message": message, "status": "FAILED_PRECONDITION"}}
    assert vertex.call("POST", f"/v1/{name}:cancel", {}) == (400, refused)
    assert vertex.get(name) == ended


def test_lists_are_filtered_ordered_and_paged(vertex: Service) -> None:
    names = [vertex.create(custom_job(*script("pass"), name=f"listed_{i}")) for i in range(5)]
    for name in names:
        vertex.wait(name)
    query = 'filter=display_name:"listed_*"%20AND%20state=JOB_STATE_SUCCEEDED&pageSize=2'
    _, first = vertex.call("GET", f"{JOBS}?{query}")
    _, second = vertex.call("GET", f"{JOBS}?{query}&pageToken={first['nextPageToken']}")
    listed = [job["name"] for job in first["customJobs"] + second["customJobs"]]
    assert listed == names[:0:-1]
    _, ordered = vertex.call("GET", f"{JOBS}?{query}&orderBy=create_time")
    assert [job["name"] for job in ordered["customJobs"]] == names[:2]
    assert vertex.call("GET", f"{JOBS}?filter=shoe_size=1")[0] == 400


def test_a_command_that_a_client_made_letters_of_is_refused(vertex: Service) -> None:
    status, answer = vertex.call("POST", JOBS, custom_job(*"trainer.task"))
    assert status == 400
    assert 'split the string "trainer.task" into a list of single characters' in answer["error"]["message"]


def test_cloud_logging_has_the_lines(vertex: Service) -> None:
    text = """
import json, sys
print("plain")
print(json.dumps({"severity": "WARNING", "message": "structured", "step": 1}))
print("of a library", file=sys.stderr)
print(json.dumps({"severity": "INFO", "message": "of another"}), file=sys.stderr)
"""
    name = vertex.create(custom_job(*script(text)))
    vertex.wait(name, "SUCCEEDED")
    body = {
        "resourceNames": ["projects/p"],
        "filter": f'resource.type="ml_job" AND resource.labels.job_id="{name.rpartition("/")[2]}"',
        "orderBy": "timestamp asc",
    }
    _, answer = vertex.call("POST", "/v2/entries:list", body)
    seen = [(one["severity"], one["jsonPayload"], one["resource"]["labels"]["task_name"]) for one in answer["entries"]]
    assert sorted(seen, key=lambda one: one[0]) == [
        ("ERROR", {"message": "of a library"}, "workerpool0-0"),
        ("INFO", {"message": "plain"}, "workerpool0-0"),
        ("INFO", {"message": "of another"}, "workerpool0-0"),
        ("WARNING", {"message": "structured", "step": 1}, "workerpool0-0"),
    ]


def test_a_printed_number_that_json_cannot_have_is_text_in_cloud_logging(vertex: Service) -> None:
    name = vertex.create(custom_job(*script("""print('{"loss": 1e999, "step": 1.5}')""")))
    vertex.wait(name, "SUCCEEDED")
    asked = {"resourceNames": ["projects/p"], "filter": f'resource.labels.job_id="{name.rpartition("/")[2]}"'}
    _, answer = vertex.call("POST", "/v2/entries:list", asked)
    assert answer["entries"][0]["jsonPayload"] == {"loss": "1e999", "step": 1.5}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Host": "evil.example"}, {}),
        ({"Host": "127.0.0.1.evil.example:80"}, {}),
        ({"Host": "127.0.0.1:evil.example"}, {}),
        ({"Host": "127.0.0.1:80:evil.example"}, {}),
        ({"Host": "127.0.0.1:"}, {}),
        ({"Host": "evil@127.0.0.1:80"}, {}),
        ({"Host": "[::1]evil.example:80"}, {}),
        ({"Origin": "http://evil.example"}, {}),
        ({"Origin": "null"}, {}),
        ({"Sec-Fetch-Site": "cross-site"}, {}),
        ({"Sec-Fetch-Site": "same-site"}, {}),
        ({"Content-Type": "text/plain"}, {}),
        ({"Content-Type": "application/x-www-form-urlencoded"}, {}),
    ],
)
def test_what_a_web_page_could_send_is_refused(vertex: Service, headers: dict[str, str], body: Json) -> None:
    before = vertex.call("GET", JOBS)[1]
    status, answer = vertex.call("POST", JOBS, custom_job(*script("pass")), headers)
    assert (status, answer["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert vertex.call("GET", JOBS)[1] == before


def test_another_sites_page_can_neither_read_nor_write_by_an_images_address(vertex: Service) -> None:
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    for path in (JOBS, "/page/jobs", "/storage/v1/b/b/o", "/upload/storage/v1/b/b/o?uploadType=media&name=x"):
        assert vertex.call("GET", path, headers=image)[0] == 403


@pytest.mark.parametrize(
    ("path", "shown"), [("/", True), (f"/{PARENT}/customJobs/1", True), ("/1", True), (JOBS, False)]
)
def test_a_link_on_another_site_shows_the_page_and_nothing_else(path: str, shown: bool) -> None:
    headers = [(b"host", b"127.0.0.1:8911"), (b"sec-fetch-site", b"cross-site")]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    assert (fault_of(scope) == "") is shown


def test_a_websocket_is_refused(vertex: Service) -> None:
    host, port = vertex.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
        connection.sendall(
            f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_a_body_over_a_megabyte_is_refused(vertex: Service) -> None:
    body = custom_job(*script("x" * 11_000_000))
    assert vertex.call("POST", JOBS, body)[0] == 400


def test_it_listens_at_one_loopback_address_only(vertex: Service) -> None:
    port = int(vertex.endpoint.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=2)


@pytest.mark.parametrize("id", ["..", "%2e%2e", "..%2f..%2fservice", ".%00", "a" * 5000])
def test_no_id_leads_out_of_the_folder(vertex: Service, id: str) -> None:
    for method in ("GET", "DELETE"):
        status, answer = vertex.call(method, f"{JOBS}/{id}")
        assert status == 404
        assert answer["error"]["status"] == "NOT_FOUND"


def test_what_it_does_not_have_is_not_found(vertex: Service) -> None:
    for path in (f"/v1/{PARENT}/endpoints", f"/v1/{PARENT}/customJobs/7", "/v1/nonsense", f"/v1/{PARENT}/operations/1"):
        status, answer = vertex.call("GET", path)
        assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")


def test_jobs_beyond_the_capacity_wait_in_order(tmp_path: Path) -> None:
    with service(tmp_path, "--capacity", "2", "--grace-seconds", "0") as vertex:
        first = vertex.create(custom_job(*FOREVER))
        large = vertex.create(custom_job(*FOREVER, workers=1))
        small = vertex.create(custom_job(*script("pass")))
        vertex.wait(first, "RUNNING")
        time.sleep(0.5)
        assert vertex.get(large)["state"] == vertex.get(small)["state"] == "JOB_STATE_QUEUED"
        vertex.call("POST", f"/v1/{first}:cancel", {})
        vertex.wait(large, "RUNNING")
        assert vertex.get(small)["state"] == "JOB_STATE_QUEUED"
        vertex.call("POST", f"/v1/{large}:cancel", {})
        vertex.wait(small, "SUCCEEDED")
        status, answer = vertex.call("POST", JOBS, custom_job(*FOREVER, workers=2))
        assert (status, answer["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        assert "--capacity 3" in answer["error"]["message"]


def test_a_queued_job_can_be_cancelled_and_lets_the_next_one_by(tmp_path: Path) -> None:
    with service(tmp_path, "--capacity", "2", "--grace-seconds", "0") as vertex:
        first = vertex.create(custom_job(*FOREVER))
        large = vertex.create(custom_job(*FOREVER, workers=1))
        small = vertex.create(custom_job(*script("pass")))
        vertex.wait(first, "RUNNING")
        vertex.call("POST", f"/v1/{large}:cancel", {})
        assert vertex.get(large)["state"] == "JOB_STATE_CANCELLED"
        vertex.wait(small, "SUCCEEDED")


def test_a_flex_start_job_whose_wait_is_too_long_expires(tmp_path: Path) -> None:
    with service(tmp_path, "--capacity", "1", "--grace-seconds", "0") as vertex:
        first = vertex.create(custom_job(*FOREVER))
        vertex.wait(first, "RUNNING")
        body = custom_job(*FOREVER, scheduling={"strategy": "FLEX_START", "maxWaitDuration": "1s", "timeout": "60s"})
        machine = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
        body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = machine
        job = vertex.wait(vertex.create(body), "EXPIRED")
        assert "maxWaitDuration" in job["error"]["message"]
        assert vertex.get(first)["state"] == "JOB_STATE_RUNNING"


def test_a_job_is_pending_until_its_machines_arrive_and_can_be_cancelled_then(tmp_path: Path) -> None:
    with service(tmp_path, "--provision-seconds", "600") as vertex:
        name = vertex.create(custom_job(*script("print('ran')")))
        vertex.wait(name, "PENDING")
        vertex.call("POST", f"/v1/{name}:cancel", {})
        job = vertex.wait(name, "CANCELLED")
        assert "startTime" not in job


def test_a_timeout_fails_the_job(vertex: Service) -> None:
    job = vertex.wait(vertex.create(custom_job(*FOREVER, scheduling={"timeout": "1s"})), "FAILED")
    assert job["error"]["code"] == 4
    assert "timeout" in job["error"]["message"]


def test_a_killed_service_still_has_everything_and_runs_what_it_had_queued(tmp_path: Path) -> None:
    """What was cancelled is cancelled, and only a job that has checkpoints is said to resume."""
    mark = f"mark-{os.getpid()}-{time.time_ns()}"
    saved: Json = {"baseOutputDirectory": {"outputUriPrefix": "gs://b/saved"}}
    (tmp_path / ".vertex/gcs/b/saved/checkpoints").mkdir(parents=True)
    (tmp_path / ".vertex/gcs/b/saved/checkpoints/1").touch()
    stays = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)  # {mark}"
    with service(tmp_path, "--capacity", "3", "--grace-seconds", "600") as vertex:
        done = vertex.wait(vertex.create(custom_job(*script("print('kept')"))), "SUCCEEDED")
        cancelled, resumes, fails = [vertex.create(custom_job(*script(stays), **more)) for more in ({}, saved, {})]
        large = vertex.create(custom_job(*FOREVER, workers=1))
        queued = [vertex.create(custom_job(*script("print('ran')"), name=name)) for name in ("first", "second")]
        for name in (cancelled, resumes, fails):
            vertex.wait(name, "RUNNING")
        vertex.call("POST", f"/v1/{cancelled}:cancel", {})
        assert vertex.get(cancelled)["state"] == "JOB_STATE_CANCELLING"
        stop(vertex.process, signal.SIGKILL)
        assert eventually(lambda: processes(mark) == [])
    with service(tmp_path, "--capacity", "1") as vertex:
        assert vertex.get(done["name"]) == done
        assert vertex.log(done["name"]) == ["workerpool0-0: kept"]
        assert vertex.get(cancelled)["error"] == {"code": 1, "message": "CANCELED: the job was canceled"}
        lost = "the local Vertex was stopped before this job ended; create the job again"
        assert vertex.get(fails)["error"] == {"code": 14, "message": lost}
        assert (
            vertex.get(resumes)["error"]["message"] == f"{lost}. The new job will resume from gs://b/saved/checkpoints"
        )
        assert vertex.get(large)["error"]["message"].endswith("start the service with --capacity 2")
        ended = [vertex.wait(name, "SUCCEEDED") for name in queued]
        assert ended[0]["endTime"] < ended[1]["startTime"]
        assert vertex.log(queued[1]) == ["workerpool0-0: ran"]
        assert len(vertex.call("GET", JOBS)[1]["customJobs"]) == 7


def test_a_refused_request_is_a_line_on_the_terminal(vertex: Service) -> None:
    vertex.call("POST", JOBS, custom_job(*FOREVER, name=""))
    vertex.call("GET", f"/v1/{PARENT}/endpoints?pageSize=7")
    vertex.call("GET", "/storage/v1/b/b/o/none")  # a client looks whether an object is there
    lines = [line.partition("rejected: ")[2] for line in (vertex.folder / "service.log").read_text().splitlines()]
    assert f"POST {JOBS} 400 INVALID_ARGUMENT: displayName: is missing" in lines
    assert f"GET /v1/{PARENT}/endpoints 404 NOT_FOUND: the local Vertex has no endpoints" in lines
    assert not [line for line in lines if "o/none" in line]


EMPTY = [
    ("customJobs", {"encryptionSpec": {}}),
    ("customJobs", {"encryptionSpec": {"kmsKeyName": ""}}),
    ("customJobs", {"jobSpec.workerPoolSpecs.0.machineSpec.reservationAffinity": {}}),
    ("customJobs", {"jobSpec.scheduling": {}, "jobSpec.pscInterfaceConfig": {}, "jobSpec.baseOutputDirectory": {}}),
    ("datasets", {"encryptionSpec": {"kmsKeyName": ""}}),
    ("tensorboards", {"encryptionSpec": {}}),
    ("trainingPipelines", {"inputDataConfig": {}, "modelToUpload": {}, "encryptionSpec": {}}),
    ("trainingPipelines", {"modelToUpload": {"explanationSpec": {"parameters": {}}, "containerSpec": {}}}),
    ("trainingPipelines", {"trainingTaskInputs.workerPoolSpecs.0.machineSpec.reservationAffinity": {}}),
]


@pytest.mark.parametrize(("collection", "more"), EMPTY, ids=str)
def test_an_empty_message_is_none(vertex: Service, collection: str, more: Json) -> None:
    texts = "gs://google-cloud-aiplatform/schema/dataset/metadata/text_1.0.0.yaml"
    task = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
    job = custom_job(*script("pass"))
    pipeline = {"displayName": "x", "trainingTaskDefinition": task, "trainingTaskInputs": job["jobSpec"]}
    bodies: Json = {
        "customJobs": job,
        "datasets": {"displayName": "x", "metadataSchemaUri": texts},
        "tensorboards": {"displayName": "x"},
        "trainingPipelines": pipeline,
    }
    body = json.loads(json.dumps(bodies[collection]))
    for path, value in more.items():
        *above, key = path.split(".")
        part = body
        for step in above:
            part = part[int(step) if step.isdigit() else step]
        part[key] = value
    status, answer = vertex.call("POST", f"/v1/{PARENT}/{collection}", body)
    assert status == 200, answer
    assert "encryptionSpec" not in json.dumps(answer)


def test_an_empty_message_that_is_a_choice_is_one(vertex: Service) -> None:
    body = custom_job(*script("pass"))
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] = {}
    status, answer = vertex.call("POST", JOBS, body)
    assert (status, "imageUri" in answer["error"]["message"]) == (400, True)


def test_a_stopped_service_leaves_no_process_and_its_jobs_failed(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-{time.time_ns()}"
    with service(tmp_path, "--grace-seconds", "1") as vertex:
        name = vertex.create(custom_job(*script(f"import time; time.sleep(600)  # {mark}")))
        vertex.wait(name, "RUNNING")
        stop(vertex.process)
        assert eventually(lambda: processes(mark) == [])
    job = json.loads((tmp_path / ".vertex" / f"{name.replace(PARENT, BY_ID)}.json").read_text())
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_FAILED", 14)


def test_a_client_that_never_finishes_its_request_keeps_no_service_alive(tmp_path: Path) -> None:
    with service(tmp_path) as vertex:
        host, port = vertex.endpoint.removeprefix("http://").split(":")
        head = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
            connection.sendall(f"POST {JOBS} HTTP/1.1\r\n{head}".encode())
            vertex.call("GET", JOBS)  # it has read what was sent before
            stop(vertex.process)
    assert vertex.process.returncode == 0


def test_a_damaged_file_is_skipped_and_named(tmp_path: Path) -> None:
    folder = tmp_path / ".vertex" / BY_ID / "customJobs"
    folder.mkdir(parents=True)
    name = f"{BY_ID}/customJobs/"
    files = {"1": "[" * 100_000, "2": f'{{"name": "{name}2", "labels": {"[" * 900}{"]" * 900}}}', "3": '{"name": 3}'}
    for id, text in files.items():
        (folder / f"{id}.json").write_text(text)
    with service(tmp_path) as vertex:
        assert vertex.call("GET", JOBS) == (200, {"customJobs": []})
        said = (tmp_path / "service.log").read_text()
    for id, text in files.items():
        assert f"skipped .vertex/{name}{id}.json: the file doesn't contain a resource; remove it" in said
        assert (folder / f"{id}.json").read_text() == text


def test_two_services_do_not_share_a_folder(vertex: Service) -> None:
    command = [sys.executable, "-m", "vertex_launch", "emulate", "--port", "0"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    second = subprocess.run(command, cwd=vertex.folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert second.returncode == 1
    assert second.stderr.strip() == (
        f".vertex: the local Vertex at {vertex.endpoint} (process {vertex.process.pid}) is using this folder;"
        " stop it, or use --state-dir to specify another folder"
    )
