"""The REST face of the local Vertex: Google's v1 JSON on top of what the other modules do."""

import json
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from google.cloud.aiplatform_v1.types import (
    CustomJob,
    Dataset,
    HyperparameterTuningJob,
    ImportDataRequest,
    Model,
    TrainingPipeline,
)
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vertex_launch import jsons, spec, strict_yaml
from vertex_launch.errors import Finding
from vertex_launch.local.api import create_validation, filters
from vertex_launch.local.api.errors import ApiError, invalid
from vertex_launch.local.api.origin_check import LARGEST_BODY, Guard
from vertex_launch.local.api.store import Resource, Store
from vertex_launch.local.jobs import logs
from vertex_launch.local.jobs.custom_jobs import Action, Jobs
from vertex_launch.local.jobs.pipelines import Pipelines
from vertex_launch.local.jobs.tuning import Tunings
from vertex_launch.local.registry import experiments
from vertex_launch.local.registry.datasets import Datasets
from vertex_launch.local.registry.models import Models
from vertex_launch.local.storage.gcs_api import routes as storage_routes
from vertex_launch.local.views import page
from vertex_launch.state_dir import StateDir

# gcloud beta and alpha use v1beta1; what is served here is the same in both.
VERSIONS = ("v1", "v1beta1")
PLACE = "projects/{project}/locations/{location}"

MESSAGES: Mapping[str, Any] = {
    "customJobs": CustomJob,
    "hyperparameterTuningJobs": HyperparameterTuningJob,
    "trainingPipelines": TrainingPipeline,
    "datasets": Dataset,
    "models": Model,
}
LONG_RUNNING = ("datasets",)  # where create answers with an operation
TYPES = "type.googleapis.com/google.cloud.aiplatform.v1."
LONGEST_DISTURBANCE = 7 * 24 * 3600  # seconds; no job lives longer
EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}


@dataclass(frozen=True)
class Vertex:
    """Everything behind the face."""

    store: Store
    state_dir: StateDir
    jobs: Jobs
    tunings: Tunings
    pipelines: Pipelines
    datasets: Datasets
    models: Models

    def close(self) -> None:
        """Stop what runs; returns when no process is left."""
        self.tunings.close()
        self.pipelines.close()
        self.jobs.close()
        self.store.close()


@dataclass(frozen=True)
class Call:
    """One request, read."""

    path: Mapping[str, str]  # the variable parts of the path, by name
    query: Mapping[str, str]
    body: str

    @property
    def parent(self) -> str:
        return f"projects/{self.path['project']}/locations/{self.path['location']}"

    @property
    def collection(self) -> str:
        return self.path["collection"]

    @property
    def name(self) -> str:
        return f"{self.parent}/{self.collection}/{self.path['id'].partition(':')[0]}"

    @property
    def verb(self) -> str:
        """`cancel` of customJobs/ID:cancel."""
        return self.path["id"].partition(":")[2]


Answer = Callable[[Call], Any]


class VertexApi:
    """The methods of the API; each takes a call and returns JSON, or raises ApiError."""

    def __init__(self, vertex: Vertex) -> None:
        self._vertex = vertex
        self._managers: dict[str, Any] = {
            "customJobs": vertex.jobs,
            "hyperparameterTuningJobs": vertex.tunings,
            "trainingPipelines": vertex.pipelines,
            "datasets": vertex.datasets,
            "models": vertex.models,
        }
        self._custom: dict[tuple[str, str, str], Answer] = {
            ("POST", "customJobs", "cancel"): self._cancel,
            ("POST", "hyperparameterTuningJobs", "cancel"): self._cancel,
            ("POST", "trainingPipelines", "cancel"): self._cancel,
            ("POST", "datasets", "import"): self._import,
            ("GET", "models", "listVersions"): self._versions,
            ("DELETE", "models", "deleteVersion"): self._delete_version,
        }
        self._operations: dict[str, Resource] = {}
        self._records = experiments.Records(vertex.store)

    def list(self, call: Call) -> Any:
        self._manager(call)
        versions = call.collection == "models"  # of which a list shows one each
        store = self._vertex.store
        found = self._vertex.models.list(call.parent) if versions else store.list(call.parent, call.collection)
        return _page(call, call.collection, found)

    def create(self, call: Call) -> Any:
        manager = self._manager(call)
        if not hasattr(manager, "create"):
            raise ApiError("UNIMPLEMENTED", f"{call.collection} are not created here but by training pipelines")
        message = create_validation.without_output(_message(call.body, MESSAGES[call.collection]))
        findings = [*create_validation.label_findings(message.labels)]
        if findings:
            raise invalid(findings)
        created = manager.create(call.parent, message)
        return self._operation(call, created) if call.collection in LONG_RUNNING else created

    def get(self, call: Call) -> Any:
        return self._other("GET", call) if call.verb else self._manager(call).get(call.name)

    def post(self, call: Call) -> Any:
        return self._other("POST", call)

    def delete(self, call: Call) -> Any:
        if call.verb:
            return self._other("DELETE", call)
        self._manager(call).delete(call.name)
        return self._operation(call, EMPTY)

    def _manager(self, call: Call) -> Any:
        try:
            return self._managers[call.collection]
        except KeyError:
            known = ", ".join(self._managers)
            raise ApiError("NOT_FOUND", f"the local Vertex has no {call.collection}; it has {known}") from None

    def _other(self, method: str, call: Call) -> Any:
        """What is not get, list, create or delete: .../ID:VERB."""
        self._manager(call)
        answer = self._custom.get((method, call.collection, call.verb))
        if answer is None:
            raise ApiError("NOT_FOUND", f'{call.collection} have no method "{call.verb}" here')
        return answer(call)

    def _cancel(self, call: Call) -> Any:
        self._manager(call).cancel(call.name)
        return {}

    def _import(self, call: Call) -> Any:
        self._vertex.datasets.import_data(call.name, _message(call.body, ImportDataRequest))
        return self._operation(call, {"@type": f"{TYPES}ImportDataResponse"})

    def _versions(self, call: Call) -> Any:
        return _page(call, "models", self._vertex.models.list_versions(call.name))

    def _delete_version(self, call: Call) -> Any:
        self._vertex.models.delete_version(call.name)
        return self._operation(call, EMPTY)

    def operation(self, call: Call) -> Any:
        """Everything here is done at once, so an operation only repeats its answer."""
        name = f"{call.parent}/operations/{call.path['operation']}"
        if name not in self._operations:
            raise ApiError("NOT_FOUND", f"{name} does not exist")
        return self._operations[name]

    def record(self, method: str, root: str) -> Answer:
        """The answer to this method on all that stands below metadataStores or tensorboards."""

        def answer(call: Call) -> Any:
            address = f"{call.parent}/{root}{call.path['below']}"
            found = self._records.answer(method, address, call.query, lambda kind: _message(call.body, kind))
            return self._operation(call, found) if "@type" in found else found

        return answer

    def entries(self, call: Call) -> Any:
        """Cloud Logging's entries.list."""
        asked = _object(call.body)
        return logs.list_entries(self._vertex.store.all("customJobs"), self._vertex.state_dir, asked)

    def disturb(self, call: Call) -> Any:
        """Not Google's: a fault on demand for one replica of a job."""
        asked = _object(call.body)
        action, replica, seconds = call.path["action"], asked.get("replica"), asked.get("seconds", 0)
        if action not in get_args(Action):
            raise ApiError("NOT_FOUND", f'nothing is called "{action}"; use {", ".join(get_args(Action))}')
        if not isinstance(replica, str):
            raise invalid([Finding("replica", "is no text", "write such as workerpool0-0")])
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DISTURBANCE:
            raise invalid([Finding("seconds", f"is no number from 0 to {LONGEST_DISTURBANCE}", "write one")])
        jobs = self._vertex.store.all("customJobs")
        name = next((job["name"] for job in jobs if job["name"].endswith(f"/{call.path['id']}")), call.path["id"])
        self._vertex.jobs.disturb(name, cast(Action, action), replica, float(seconds))
        return {}

    def _operation(self, call: Call, response: Resource) -> Resource:
        name = f"{call.parent}/operations/{self._vertex.store.new_id()}"
        kind = response.get("@type") or f"{TYPES}{MESSAGES[call.collection].__name__}"
        self._operations[name] = {"name": name, "done": True, "response": {**response, "@type": kind}}
        return self._operations[name]


def create_app(vertex: Vertex) -> Starlette:
    """The service as an ASGI application: REST face, buckets and page."""
    face = VertexApi(vertex)
    routes = [
        route
        for version in VERSIONS
        for route in (
            *_records(face, f"/{version}/{PLACE}"),
            Route(f"/{version}/{PLACE}/operations/{{operation}}", _endpoint(face.operation)),
            Route(f"/{version}/{PLACE}/{{collection}}", _endpoint(face.list)),
            Route(f"/{version}/{PLACE}/{{collection}}", _endpoint(face.create), methods=["POST"]),
            Route(f"/{version}/{PLACE}/{{collection}}/{{id}}", _endpoint(face.get)),
            Route(f"/{version}/{PLACE}/{{collection}}/{{id}}", _endpoint(face.post), methods=["POST"]),
            Route(f"/{version}/{PLACE}/{{collection}}/{{id}}", _endpoint(face.delete), methods=["DELETE"]),
        )
    ]
    app = Starlette(
        routes=[
            *routes,
            Route("/v2/entries:list", _endpoint(face.entries), methods=["POST"]),
            Route("/control/{id}/{action}", _endpoint(face.disturb), methods=["POST"]),
            *storage_routes(vertex.state_dir.buckets),
            *page.routes(vertex.store, vertex.jobs, vertex.state_dir),
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={HTTPException: _not_served, Exception: _failed},
    )
    app.router.redirect_slashes = False  # Google's does not, and clients would send a POST's body twice
    return app


def _records(face: VertexApi, place: str) -> list[Route]:
    return [
        Route(f"{place}/{root}{{below:path}}", _endpoint(face.record(method, root)), methods=[method])
        for root in experiments.ROOTS
        for method in ("GET", "POST", "PATCH", "DELETE")
    ]


def _endpoint(answer: Answer) -> Callable[[Request], Any]:
    """A Starlette endpoint that reads the request, and does all else in a thread: others are served meanwhile."""

    def respond(request: Request, body: bytes) -> Response:
        try:
            return _json(answer(Call(request.path_params, dict(request.query_params), _text(body))))
        except ApiError as error:
            return _json(error.as_json(), error.http_status)

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(respond, request, await _body(request))

    return endpoint


def _json(content: Any, status: int = 200) -> Response:
    """In ASCII: what a replica prints may hold half a character, which has no other form."""
    return Response(json.dumps(content), status, media_type="application/json")


async def _body(request: Request) -> bytes:
    """At most one chunk more than there may be; the rest is read and forgotten, as many clients want to send it."""
    read = bytearray()
    async for chunk in request.stream():
        if len(read) <= LARGEST_BODY:
            read += chunk
    return bytes(read)


def _text(body: bytes) -> str:
    if len(body) > LARGEST_BODY:
        raise ApiError("INVALID_ARGUMENT", f"the body is larger than {LARGEST_BODY // 10**6} MB; no resource is")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiError("INVALID_ARGUMENT", f"byte {error.start} of the body is not UTF-8; send JSON in UTF-8") from None


async def _not_served(request: Request, error: Exception) -> Response:
    """An address or method that is not Google's, or not among those that are served here."""
    message = f"{request.method} {request.url.path} is not served by the local Vertex"
    refused = ApiError("NOT_FOUND", message)
    return _json(refused.as_json(), refused.http_status)


async def _failed(request: Request, error: Exception) -> Response:
    """A fault of ours; its traceback is in the service's own output."""
    failed = ApiError("INTERNAL", f"the local Vertex failed: {traceback.format_exception_only(error)[-1].strip()}")
    return _json(failed.as_json(), failed.http_status)


def _page(call: Call, collection: str, resources: Sequence[Resource]) -> dict[str, Any]:
    """One page of a list, as the call's parameters want it."""
    known = frozenset(field.json_name for field in MESSAGES[collection].pb().DESCRIPTOR.fields)
    found, token = filters.page(resources, known, **call.query)
    shown = _masked(found, call.query.get("readMask", ""), known)
    return {collection: shown} | ({"nextPageToken": token} if token else {})


def _masked(resources: Sequence[Mapping[str, Any]], mask: str, known: Container[str]) -> Sequence[Mapping[str, Any]]:
    """The resources with the fields of a readMask alone; of a field within a field, all of the outer one."""
    wanted = {filters.camel(field.partition(".")[0].strip()) for field in mask.split(",") if field}
    for field in sorted(wanted - {"*"}):
        if field not in known:
            fault = f'"{field}" is no field of this resource'
            raise invalid([Finding("readMask", fault, "write such as name,displayName")])
    if not wanted or "*" in wanted:
        return resources
    return [{key: value for key, value in one.items() if key in wanted} for one in resources]


def _message(body: str, kind: Any) -> Any:
    """The body as one of the API's messages; raises ApiError with all its faults."""
    try:
        return spec.read(strict_yaml.from_json(body, spec.JobError), kind)
    except spec.JobError as error:
        raise invalid(error.findings) from None


def _object(body: str) -> dict[str, Any]:
    try:
        parsed = jsons.loads(body or "{}")
    except ValueError as error:
        raise ApiError("INVALID_ARGUMENT", f"the body is not JSON: {error}; correct it there") from None
    if not isinstance(parsed, dict):
        raise ApiError("INVALID_ARGUMENT", "the body must be a JSON object")
    return parsed
