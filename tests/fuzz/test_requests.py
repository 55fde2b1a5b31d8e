"""Requests of Vertex AI's API and of Cloud Storage's to a service: answered or refused, and never its failure."""

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from launcher.tests.casebook import GOOD, GOOD_TUNING
from launcher.tests.running import DEADLINE
from launcher.tests.vertex import PARENT, Json, Service, service
from tests.fuzz.shapes import WORDS, as_json, changed, torn
from vertex_launch.job.job_resource import id_of

TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
TABULAR = "gs://google-cloud-aiplatform/schema/dataset/metadata/tabular_1.0.0.yaml"
SOURCE = {"inputConfig": {"gcsSource": {"uri": ["gs://b/x"]}}}
STORE, BOARD = "metadataStores/default", "tensorboards/1"
RUN = f"{BOARD}/experiments/e/runs/r"
POINT = {"step": 1, "wallTime": "2026-11-27T12:00:00Z", "scalar": {"value": 0.5}}
SERIES = {"tensorboardTimeSeriesId": "1", "valueType": "SCALAR", "values": [POINT]}
ENTRY = {"logName": "projects/p/logs/x", "textPayload": "x", "timestamp": "2026-11-27T12:00:00Z", "severity": "ERROR"}
POOL = {"machineSpec": {"machineType": "n1-standard-8"}, "replicaCount": 1}
EVENT = {"artifact": f"{PARENT}/{STORE}/artifacts/a", "type": "INPUT"}
JOB = {"displayName": "job", "jobSpec": GOOD, "labels": {"a": "b"}}

# What a client sends to make each, in an order in which it can be sent.
CREATED: dict[str, Json] = {
    "customJobs": JOB,
    "hyperparameterTuningJobs": {"displayName": "search", **GOOD_TUNING},
    "trainingPipelines": {"displayName": "p", "trainingTaskDefinition": TASK, "trainingTaskInputs": GOOD},
    "datasets": {"displayName": "data", "metadataSchemaUri": TABULAR, "metadata": SOURCE},
    "models:upload": {"model": {"displayName": "m", "containerSpec": {"imageUri": "image"}, "artifactUri": "gs://b/m"}},
    "metadataStores?metadataStoreId=default": {},
    f"{STORE}/contexts?contextId=c": {"schemaTitle": "system.Experiment", "metadata": {"a": 1}},
    f"{STORE}/artifacts?artifactId=a": {"schemaTitle": "system.Dataset", "uri": "gs://b/x", "labels": {"a": "b"}},
    f"{STORE}/executions?executionId=e": {"schemaTitle": "system.Run", "state": "RUNNING", "metadata": {"a": [1]}},
    "tensorboards?tensorboardId=1": {"displayName": "board"},
    f"{BOARD}/experiments?tensorboardExperimentId=e": {"displayName": "e"},
    f"{BOARD}/experiments/e/runs?tensorboardRunId=r": {"displayName": "r"},
    f"{RUN}/timeSeries?tensorboardTimeSeriesId=1": {"displayName": "loss", "valueType": "SCALAR"},
    "persistentResources?persistentResourceId=r": {"resourcePools": [POOL]},
}
SENT: Mapping[str, Json] = CREATED | {
    f"{RUN}:write": {"timeSeriesData": [SERIES]},
    f"{STORE}/contexts/c:addContextArtifactsAndExecutions": {"artifacts": [f"{PARENT}/{STORE}/artifacts/a"]},
    f"{STORE}/contexts/c:addContextChildren": {"childContexts": [f"{PARENT}/{STORE}/contexts/c"]},
    f"{STORE}/executions/e:addExecutionEvents": {"events": [EVENT]},
    f"{STORE}/artifacts:purge": {"filter": "displayName=x", "force": False},
    "datasets/1:import": {"importConfigs": [{"gcsSource": {"uris": ["gs://b/x"]}, "importSchemaUri": TABULAR}]},
    "datasets/1:export": {"exportConfig": {"gcsDestination": {"outputUriPrefix": "gs://b/out"}}},
    "models/1:export": {"outputConfig": {"artifactDestination": {"outputUriPrefix": "gs://b/out"}}},
    "models/1:mergeVersionAliases": {"versionAliases": ["best", "-old"]},
    "models:copy": {"sourceModel": f"{PARENT}/models/1"},
    "models/1/evaluations:import": {"modelEvaluation": {"metrics": {"accuracy": 1}}},
    "customJobs/1:cancel": {},
    "operations/1:wait": {},
}
KINDS = ("customJobs", "hyperparameterTuningJobs", "trainingPipelines", "datasets", "models")
MADE = (
    *(f"{kind}/1" for kind in KINDS),
    *(f"{STORE}/contexts/c", f"{STORE}/artifacts/a", f"{STORE}/executions/e", BOARD, RUN, f"{RUN}/timeSeries/1"),
    "persistentResources/r",
)
LISTS = (*KINDS, f"{STORE}/contexts", f"{STORE}/artifacts", f"{RUN}/timeSeries", "datasets/1/dataItems", "operations")
ASKED = (
    *(f"{BOARD}:readSize", f"{BOARD}:batchRead", f"{RUN}/timeSeries/1:read", "models/1:listVersions"),
    *(f"{STORE}/contexts/c:queryContextLineageSubgraph", f"{STORE}/executions/e:queryExecutionInputsAndOutputs"),
)
TOKENS = """( ) AND OR NOT = != >= < : * "a" ' "2026-11-27T12:00:00Z" 1e999 ERROR severity timestamp labels.a job_id
labels."a.b" displayName create_time jsonPayload.message in_context("c") metadata.a.number_value"""
FILTERS = st.lists(st.sampled_from([*TOKENS.split(), *WORDS[:4]]), max_size=8).map(" ".join)
QUERY = st.fixed_dictionaries({}, optional={"filter": FILTERS}) | st.dictionaries(
    st.sampled_from(("pageSize", "pageToken", "orderBy", "readMask", "updateMask", "fields", "view")),
    st.sampled_from(("1", "displayName", "displayName desc, create_time", "*", "YWJj", *WORDS[:5])),
    max_size=1,
)


class Request(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {"Content-Type": "application/json"}


class Target(NamedTuple):
    """A service, and the ids that it gave to the first resources of each kind."""

    service: Service
    ids: Mapping[str, str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A service that has one resource of each kind, and in which machines never arrive, so that no job runs."""
    flags = ("--provision-seconds", "3600", "--capacity", "100000")
    with service(tmp_path_factory.mktemp("vertex"), *flags) as vertex:
        for name in ("x", "m/y"):
            send(Target(vertex, {}), Request("POST", f"{UPLOAD}?uploadType=media&name={name}", b"content"))
        made = {place: vertex.call("POST", f"/v1/{PARENT}/{place}", body) for place, body in CREATED.items()}
        assert not (refused := {place: said for place, (status, said) in made.items() if status != 200}), refused
        yield Target(vertex, {kind: id_of(vertex.get(f"{PARENT}/{kind}")[kind][0]["name"]) for kind in KINDS})
        assert "Traceback" not in (vertex.folder / "service.log").read_text()


def send(target: Target, request: Request) -> int:
    """Send a request about the first resources, and end the job that it may have made; returns the status."""
    path, vertex = request.path, target.service
    for kind, id in target.ids.items():
        path = path.replace(f"/{kind}/1", f"/{kind}/{id}")
    connection = http.client.HTTPConnection(vertex.endpoint.removeprefix("http://"), timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request(request.method, path, request.body, dict(request.headers))
        answer = connection.getresponse()
        said = answer.read()
    assert answer.status != 500, (request, said)
    if answer.status == 200 and request.method == "POST" and b"Jobs/" in said[:200]:
        vertex.call("POST", f"/v1/{json.loads(said)['name']}:cancel", {})
    return answer.status


@st.composite
def addressed(draw: st.DrawFn, path: str, queries: st.SearchStrategy[dict[str, str]]) -> str:
    """An address of which, in one case of six, one part is another word, behind which a query may stand."""
    parts = path.partition("?")[0].split("/")
    if draw(st.integers(0, 5)) == 0:
        parts[draw(st.integers(2, len(parts) - 1))] = draw(st.sampled_from(WORDS) | st.text(max_size=8))
    asked = dict(pair.split("=", 1) for pair in path.partition("?")[2].split("&") if pair) | draw(queries)
    asked |= {key: f"new-{draw(st.integers(0, 999))}" for key in asked if key.endswith("Id") and draw(st.booleans())}
    query = urlencode(asked, errors="surrogatepass")
    return quote("/".join(parts), safe="/:%", errors="surrogatepass") + (f"?{query}" if query else "")


@st.composite
def of_vertex(draw: st.DrawFn) -> Request:
    """Make or use a resource, change one, or ask for one or for a list; seldom delete one."""
    kind = draw(st.sampled_from(("sent", "sent", "changed", "asked")))
    if kind == "sent":
        place = draw(st.sampled_from([*SENT]))
        body = draw(as_json(changed(st.just(SENT[place]))))
        return Request("POST", draw(addressed(f"/v1/{PARENT}/{place}", QUERY)), body)
    if kind == "changed":
        path = f"/v1/{PARENT}/{draw(st.sampled_from(MADE))}?updateMask=labels,displayName"
        body = draw(as_json(changed(st.just({"displayName": "new", "labels": {"a": "c"}}))))
        return Request("PATCH", draw(addressed(path, QUERY)), body)
    is_last = draw(st.integers(0, 30)) == 0  # of those that others make again
    path = f"/v1/{PARENT}/{draw(st.sampled_from(MADE[len(KINDS) :] if is_last else (*MADE, *LISTS, *ASKED)))}"
    return Request("DELETE" if is_last else "GET", draw(addressed(path, QUERY)))


@st.composite
def of_logging(draw: st.DrawFn) -> Request:
    text = 'severity>=ERROR AND timestamp>"2026"' if draw(st.booleans()) else draw(FILTERS)
    listed = {"resourceNames": ["projects/p"], "filter": text, "pageSize": 5}
    next_page = {"orderBy": "timestamp desc", "pageToken": "WyIyMDI2IiwiMSJd"}
    bodies = {"list": {**listed, **next_page}, "write": {"entries": [ENTRY]}}
    method = draw(st.sampled_from(sorted(bodies)))
    return Request("POST", f"/v2/entries:{method}", draw(as_json(changed(st.just(bodies[method])))))


OBJECT, UPLOAD = "/storage/v1/b/b/o/x", "/upload/storage/v1/b/b/o"
STORED: Mapping[str, Json] = {
    "/storage/v1/b": {"name": "other", "location": "US", "labels": {"a": "b"}},
    "/storage/v1/b/b": {"labels": {"a": "b"}, "lifecycle": {"rule": []}},
    "/storage/v1/b/b/iam": {"bindings": [{"role": "roles/storage.admin", "members": ["user:x"]}]},
    f"{OBJECT}/copyTo/b/b/o/z": {},
    f"{OBJECT}/rewriteTo/b/b/o/z": {},
    "/storage/v1/b/b/o/z/compose": {"sourceObjects": [{"name": "x", "generation": 1}]},
    OBJECT: {"metadata": {"a": "b"}, "contentType": "text/plain"},
    f"{UPLOAD}?uploadType=resumable": {"name": "z", "crc32c": "AAAAAA==", "metadata": {"a": "b"}},
}
NAMES = "prefix delimiter matchGlob startOffset pageToken maxResults alt generation name uploadType upload_id fields"
STORAGE_QUERY = st.dictionaries(
    st.sampled_from((*NAMES.split(), "ifGenerationMatch", "ifGenerationNotMatch")),
    st.sampled_from(("x", "folder/", "/", "**", "[a-", "1", "0", "media", "multipart", "resumable", *WORDS[:7])),
    max_size=3,
)
RANGES: tuple[dict[str, str], ...] = ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=-5"}, {"X-Goog-Hash": "md5=a,"})
MULTIPART = b'--x\nContent-Type: application/json\n\n{"name": "z"}\n--x\nContent-Type: a/b\n\ndata\n--x--\n'
BATCH = b"--x\nContent-Type: application/http\nContent-ID: <1>\n\nGET /storage/v1/b/b/o/x HTTP/1.1\n\n\n--x--\n"
IN_PARTS = {"Content-Type": 'multipart/mixed; boundary="x"'}


@st.composite
def of_storage(draw: st.DrawFn) -> Request:
    """One of the methods with JSON, an upload, a batch, or a question."""
    kind = draw(st.sampled_from(("sent", "asked", "upload", "batch")))
    if kind == "batch":
        return Request("POST", "/batch/storage/v1", draw(torn(st.just(BATCH))), IN_PARTS)
    if kind == "upload":
        path = f"{UPLOAD}?uploadType={draw(st.sampled_from(('multipart', 'media')))}"
        return Request("POST", draw(addressed(path, STORAGE_QUERY)), draw(torn(st.just(MULTIPART))), IN_PARTS)
    path = draw(st.sampled_from([*STORED, "/storage/v1/b/b/o"]))
    body = draw(as_json(changed(st.just(STORED.get(path, {})))))
    method = draw(st.sampled_from(("POST", "PUT", "PATCH") if kind == "sent" else ("GET", "GET", "DELETE", "HEAD")))
    headers = {"Content-Type": "application/json"} | draw(st.sampled_from(RANGES))
    return Request(method, draw(addressed(path, STORAGE_QUERY)), body if kind == "sent" else b"", headers)


@example(Request("POST", f"/v1/{PARENT}/{RUN}:write", b'{"\\ud800": 1}'))
@example(Request("POST", f"/v1/{PARENT}/{RUN}:write", b'{"timeSeriesData": [{"valueType": 1e999}]}'))
@given(of_vertex())
def test_any_request_to_vertex_ai(target: Target, sent: Request) -> None:
    event(f"{send(target, sent) // 100}00")


@given(of_logging())
def test_any_request_to_cloud_logging(target: Target, sent: Request) -> None:
    event(f"{send(target, sent) // 100}00")


@given(of_storage())
def test_any_request_to_cloud_storage(target: Target, sent: Request) -> None:
    event(f"{send(target, sent) // 100}00")
