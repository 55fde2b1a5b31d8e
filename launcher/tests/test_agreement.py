"""The service and `vertex-launch check` are of one mind, and nothing that is sent brings the service down."""

import contextlib
import http.client
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.tests.running import DEADLINE
from launcher.tests.vertex import PARENT, Json, Service, service
from vertex_launch import rules
from vertex_launch.errors import FaultError
from vertex_launch.job import spec
from vertex_launch.settings import Settings

OURS = Settings(project="p", region="us-central1", bucket="b", image="image")
CASES = 200

# For each field some values that are right somewhere and some that never are.
CHOICES: dict[str, list[Any]] = {
    "machineType": [
        "n1-standard-8",
        "n1-highmem-96",
        "a2-highgpu-8g",
        "g2-standard-24",
        "n1-highcpu-16",
        "n1-standard-7",
    ],
    "acceleratorType": ["NVIDIA_TESLA_T4", "NVIDIA_TESLA_A100", "NVIDIA_L4", "NVIDIA_TESLA_K80", "NVIDIA_A1", 5],
    "acceleratorCount": [0, 1, 2, 8, 3, "4", -1, 1.5],
    "replicaCount": [1, 2, 0, "3", -1, "many"],
    "imageUri": ["image", "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest", ""],
    "strategy": ["STANDARD", "SPOT", "FLEX_START", "LOW_COST", 4, "CHEAP"],
    "timeout": ["3600s", "0s", "700000s", 3600, "1h"],
    "bootDiskSizeGb": [100, 50, 64_001],
    "bootDiskType": ["pd-ssd", "pd-hdd"],
    "outputUriPrefix": ["gs://b/x", "/tmp/x", "gs://b"],
    "tensorboard": [f"{PARENT}/tensorboards/1", "projects/p/locations/us-west1/tensorboards/1", "1"],
    "serviceAccount": ["trainer@p.iam.gserviceaccount.com"],
    "name": ["SEED", "MY-SEED", ""],
}


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    # Machines never arrive, so no job that is accepted does anything.
    flags = ("--provision-seconds", "3600", "--capacity", "100000")
    with service(tmp_path_factory.mktemp("vertex"), *flags) as running:
        running.call("POST", f"/v1/{PARENT}/tensorboards?tensorboardId=1", {"displayName": "board"})
        yield running


def random_spec(dice: random.Random) -> Json:
    """A job of a few pools; about as often right as wrong."""

    def some(name: str, chance: float = 0.5) -> Json:
        # The first values are the sensible ones.
        values = CHOICES[name]
        return {name: values[min(int(dice.expovariate(1.2)), len(values) - 1)]} if dice.random() < chance else {}

    def pool(index: int) -> Json:
        machine = some("machineType", 0.97)
        if dice.random() < 0.3:
            machine |= some("acceleratorType", 0.9) | some("acceleratorCount", 0.9)
        env = [some("name") | {"value": "1"}] if dice.random() < 0.2 else []
        container = some("imageUri", 0.97) | {"command": ["true"], "env": env}
        disk = {"diskSpec": some("bootDiskType") | some("bootDiskSizeGb")} if dice.random() < 0.2 else {}
        count = {"replicaCount": 1} if index == 0 and dice.random() < 0.9 else some("replicaCount", 0.97)
        return {"machineSpec": machine, "containerSpec": container} | count | disk

    pools = [pool(index) for index in range(dice.choice((1, 1, 2, 2, 3, 5)))]
    scheduling = {"scheduling": some("strategy") | some("timeout")} if dice.random() < 0.5 else {}
    output = {"baseOutputDirectory": some("outputUriPrefix", 0.9)} if dice.random() < 0.5 else {}
    board = some("tensorboard") | some("serviceAccount", 0.8) if dice.random() < 0.2 else {}
    return {"workerPoolSpecs": pools} | scheduling | output | board


def accepted_by_check(body: Json) -> bool:
    try:
        job = spec.Job(Path("job"), "job", spec.parse(json.dumps(body), "job"))
    except FaultError:
        return False
    return not any(finding.severity == "error" for finding in rules.findings(job, OURS))


def send(vertex: Service, body: Any) -> tuple[int, Json]:
    status, answer = vertex.call("POST", f"/v1/{PARENT}/customJobs", {"displayName": "job", "jobSpec": body})
    if status == 200:
        vertex.call("POST", f"/v1/{answer['name']}:cancel", {})
    return status, answer


def test_the_service_takes_exactly_what_check_takes(vertex: Service) -> None:
    dice = random.Random(20261121)
    verdicts = []
    for number in range(CASES):
        body = random_spec(dice)
        status, answer = send(vertex, body)
        assert status in (200, 400), answer
        assert (status == 200) == accepted_by_check(body), (number, body, answer)
        verdicts.append(status)
    # Neither side of the comparison is empty.
    assert CASES / 10 < verdicts.count(200) < CASES * 9 / 10


JUNK: list[Any] = [None, "", "x" * 1000, -1, 1e300, True, [], {}, [[]], {"": {}}, "\0", "\ud800", 2**70, "NaN", "../.."]


def mutated(value: Any, dice: random.Random) -> Any:
    """The same JSON with one thing changed somewhere in it."""
    if not value or not isinstance(value, dict | list) or dice.random() < 0.15:
        return dice.choice(JUNK)
    if isinstance(value, list):
        index = dice.randrange(len(value))
        return (
            [*value, value[index]]
            if dice.random() < 0.2
            else [mutated(one, dice) if number == index else one for number, one in enumerate(value)]
        )
    key = dice.choice(list(value))
    if dice.random() < 0.2:
        return {dice.choice((one.upper(), "name", "")) if one == key else one: value[one] for one in value}
    return {**value, key: mutated(value[key], dice)}


def test_no_mutation_of_a_job_is_an_error_of_the_service(vertex: Service) -> None:
    dice = random.Random(7)
    for _ in range(CASES):
        body: Any = {"displayName": "job", "jobSpec": random_spec(dice)}
        for _ in range(dice.randrange(1, 4)):
            body = mutated(body, dice)
        status, answer = vertex.call("POST", f"/v1/{PARENT}/customJobs", body)
        assert status in (200, 400, 429), (body, answer)
        if status == 200:
            vertex.call("POST", f"/v1/{answer['name']}:cancel", {})
        else:
            assert answer["error"]["message"]
    assert vertex.call("GET", f"/v1/{PARENT}/customJobs")[0] == 200


PLACES = (
    *("customJobs", "hyperparameterTuningJobs", "trainingPipelines", "datasets", "models", "endpoints", "operations/1"),
    *("metadataStores?metadataStoreId=default", "metadataStores/default/contexts?contextId=%00", "tensorboards/1:x"),
    *("metadataStores/default/artifacts?updateMask=%00", "customJobs/%00", "datasets/%2e%2e%2f:import", "models/a@@"),
)
ROUTES = (
    *(f"/v1/{PARENT}/{place}" for place in PLACES),
    *(f"/v1/{PARENT}/customJobs?{asked}" for asked in ("filter=((%22", "orderBy=%00", "pageToken=%FF", "readMask=%00")),
    *("/v2/entries:list", "/control/1/kill", "/page/jobs/%00", "/%00", "//", "/v1/projects/%0a/locations/../datasets"),
    *(f"/storage/v1/b{at}" for at in ("", "/b", "/b/o?matchGlob=[[[", "/b/o/%00", "/%2e%2e/o/x", "/b/o/x/compose")),
    *(f"/upload/storage/v1/b/b/o?name=a%00&uploadType={kind}" for kind in ("media", "multipart", "resumable")),
    *("/upload/storage/v1/b/b/o?upload_id=%00", "/batch/storage/v1"),
)
BODIES = (
    *(
        b"",
        b"{",
        b"null",
        b"\xff",
        b"[" * 10**5,
        b'{"metadata":' * 10**4,
        b"9" * 5000,
        b'{"labels": {"\\ud800": 1e999}}',
    ),
    *(b"[" * 500 + b"]" * 500, b'{"jobSpec": {"workerPoolSpecs": [{"replicaCount": 1%s}]}}' % (b"0" * 400)),
    *(b"--x\n\n{}\n--x\n\n--x--", b"--x\n\nPOST http://[ HTTP/1.1\n\n{}\n--x--", b"--\n\n\n--\n\n\n--"),
    *(json.dumps({"name": one, "filter": one, "displayName": one, "seconds": one}).encode() for one in JUNK),
)
HEADERS: tuple[dict[str, str], ...] = (
    *(
        {},
        {},
        {},
        {"Host": "127.0.0.1:evil.example"},
        {"Host": ""},
        {"Content-Type": ";"},
        {"Content-Encoding": "gzip"},
    ),
    *(
        {"Content-Type": "multipart/mixed; boundary=x"},
        {"Range": f"bytes={'9' * 5000}-"},
        {"Content-Range": "bytes */9"},
    ),
)


def test_no_route_fails_or_hangs_at_what_is_no_request(vertex: Service) -> None:
    dice = random.Random(10)
    for path in ROUTES:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE") * 2:
            body, headers = dice.choice(BODIES), {"Content-Type": "application/json"} | dice.choice(HEADERS)
            connection = http.client.HTTPConnection(vertex.endpoint.removeprefix("http://"), timeout=DEADLINE)
            with contextlib.closing(connection):
                connection.request(method, path, body, headers)
                status = connection.getresponse().status
            assert status < 500 or status == 501, (method, path, body[:100], headers)


def multipart(*parts: bytes, boundary: bytes = b"x") -> bytes:
    return b"".join(b"--%s\r\n%s\r\n" % (boundary, part) for part in parts) + b"--%s--\r\n" % boundary


def batched(request: bytes, id: bytes = b"<1>") -> bytes:
    return multipart(b"Content-Type: application/http\r\nContent-ID: %s\r\n\r\n%s HTTP/1.1\r\n\r\n" % (id, request))


def nested(depth: int) -> bytes:
    """A multipart in a multipart, and so on."""
    body = b"Content-Type: text/plain\r\n\r\nend"
    for level in range(depth):
        boundary = b"x" if level == depth - 1 else b"b%d" % level
        head = b"" if level == depth - 1 else b"Content-Type: multipart/mixed; boundary=%s\r\n\r\n" % boundary
        body = head + multipart(body, boundary=boundary)
    return body


UPLOAD = b"Content-Type: application/json\r\n\r\n%s"
CONTENT = b"Content-Type: text/plain\r\n\r\nx"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/batch/storage/v1", batched(b"GET /storage/v1/b/b/o/x?alt%3Dmedia")),
        ("/batch/storage/v1", batched(b"GET /storage/v1/b/b/o/x?alt=m%65dia")),
        ("/batch/storage/v1", batched(b"GET /storage/v1/b/b/o/x", id="<é🤖>".encode())),
        ("/batch/storage/v1", batched(b"GET /storage/v1/b/b/o/x", id=b"\xff\xfe")),
        ("/batch/storage/v1", batched(b"POST /batch/storage/v1")),
        ("/batch/storage/v1", nested(500)),
        ("/upload/storage/v1/b/b/o?uploadType=multipart", nested(500)),
        (
            "/upload/storage/v1/b/b/o?uploadType=multipart",
            multipart(UPLOAD % b'{"name": "x", "crc32c": "\\ud800"}', CONTENT),
        ),
        ("/upload/storage/v1/b/b/o?uploadType=multipart", multipart(UPLOAD % b'{"name": "\\ud800"}', CONTENT)),
        (
            "/upload/storage/v1/b/b/o?uploadType=multipart",
            multipart(UPLOAD % b'{"name": "x", "md5Hash": [1]}', CONTENT),
        ),
    ],
)
def test_what_no_client_sends_to_storage_is_no_error_of_the_service(vertex: Service, path: str, body: bytes) -> None:
    connection = http.client.HTTPConnection(vertex.endpoint.removeprefix("http://"), timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": "multipart/mixed; boundary=x"})
        answer = connection.getresponse()
        said = answer.read()
    assert answer.status < 500 or answer.status == 501, said
    assert b"HTTP/1.1 5" not in said.replace(b"HTTP/1.1 501", b"")
