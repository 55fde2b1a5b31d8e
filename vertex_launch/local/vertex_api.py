"""Vertex AI's v1 REST API and Cloud Logging's entries.list, over what the other modules do."""

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from google.cloud.aiplatform_v1.types.dataset_service import ImportDataRequest
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from vertex_launch import spec, strict_yaml
from vertex_launch.errors import FaultError, Finding
from vertex_launch.job_resource import Resource, camel, id_of
from vertex_launch.local.api import create_validation, filters, http
from vertex_launch.local.api.errors import ApiError, invalid, refuse
from vertex_launch.local.api.http import Call, Route
from vertex_launch.local.api.origin_check import origin_checked
from vertex_launch.local.api.store import Store
from vertex_launch.local.context import Context
from vertex_launch.local.jobs import logs
from vertex_launch.local.jobs.custom_jobs import Action, Jobs
from vertex_launch.local.jobs.pipelines import Pipelines
from vertex_launch.local.jobs.tuning import Tunings
from vertex_launch.local.registry import experiments
from vertex_launch.local.registry.datasets import Datasets
from vertex_launch.local.registry.models import Models
from vertex_launch.local.storage.gcs_api import GcsApi
from vertex_launch.local.views import page

AT = "/v1(?:beta1)?/{parent:parent}"  # gcloud beta and alpha use v1beta1; both versions are the same here
CANCELLED = "(?P<collection>customJobs|hyperparameterTuningJobs|trainingPipelines)"
LONG_RUNNING = ("datasets",)  # where create answers with an operation
TYPES = "type.googleapis.com/google.cloud.aiplatform.v1."
KEPT_OPERATIONS = 1000  # a client reads an operation once, right after the call that made it
LONGEST_DISTURBANCE = 7 * 24 * 3600  # seconds; no job lives longer


class Vertex:
    """Everything behind the API, in the state that the folder holds; without an endpoint, for no client.

    Raises:
        FaultError: the state folder cannot be used.
    """

    def __init__(self, context: Context, endpoint: str = "") -> None:
        self.state_dir, buckets = context.state_dir, context.state_dir.buckets
        self.store = Store(self.state_dir.folder, endpoint)
        (buckets / context.settings.bucket).mkdir(parents=True, exist_ok=True)
        # So that google-cloud-storage and gcsfs in a job reach the same folders.
        reached = {"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"} if endpoint else {}
        self.jobs = Jobs(self.store, replace(context, environ={**context.environ, **reached}))
        self.tunings = Tunings(self.store, self.state_dir, self.jobs)
        self.datasets, self.models = Datasets(self.store, buckets), Models(self.store, buckets)
        self.pipelines = Pipelines(self.store, self.jobs, self.models, buckets)

    def close(self) -> None:
        """Stop what runs; returns when no process is left."""
        self.tunings.close()
        self.pipelines.close()
        self.jobs.close()
        self.store.close()


class Operations:
    """The newest long-running operations. All are done at once, so an operation only repeats its response."""

    def __init__(self, store: Store, kept: int = KEPT_OPERATIONS) -> None:
        self._store = store
        self._kept = kept
        self._done: OrderedDict[str, Resource] = OrderedDict()

    def add(self, parent: str, response: Resource) -> Resource:
        """A new operation with this response, which has an "@type"."""
        name = f"{parent}/operations/{self._store.new_id()}"
        self._done[name] = {"name": name, "done": True, "response": response}
        if len(self._done) > self._kept:
            self._done.popitem(last=False)
        return self._done[name]

    def get(self, name: str) -> Resource:
        """Raises ApiError NOT_FOUND."""
        if name not in self._done:
            raise ApiError("NOT_FOUND", f"{name} does not exist")
        return self._done[name]


class VertexApi:
    """The methods of the API. Each takes a call and the parts of its address; returns JSON or raises ApiError."""

    def __init__(self, vertex: Vertex) -> None:
        self._vertex = vertex
        managers = (vertex.jobs, vertex.tunings, vertex.pipelines, vertex.datasets, vertex.models)
        self._managers: dict[str, Any] = {one.collection: one for one in managers}
        self._operations = Operations(vertex.store)
        self._records = experiments.Records(vertex.store)

    def routes(self) -> list[Route]:
        """All methods; the first route that matches counts."""
        below = f"{AT}/(?P<below>(?:{'|'.join(experiments.ROOTS)}).*)"
        return [
            *((method, below, self.record) for method in ("GET", "POST", "PATCH", "DELETE")),
            ("GET", f"{AT}/operations/{{id}}", self.operation),
            ("POST", f"{AT}/{CANCELLED}/{{id}}:cancel", self.cancel),
            ("POST", f"{AT}/datasets/{{id}}:import", self.import_data),
            ("GET", f"{AT}/models/{{id}}:listVersions", self.list_versions),
            ("DELETE", f"{AT}/models/{{id}}:deleteVersion", self.delete_version),
            ("GET", f"{AT}/{{collection}}", self.list),
            ("POST", f"{AT}/{{collection}}", self.create),
            ("GET", f"{AT}/{{collection}}/{{id}}", self.get),
            ("DELETE", f"{AT}/{{collection}}/{{id}}", self.delete),
            ("POST", "/v2/entries:list", self.entries),
            ("POST", "/control/{id}/{action}", self.disturb),
        ]

    def list(self, call: Call, parent: str, collection: str) -> Any:
        manager = self._manager(collection)
        models, store = self._vertex.models, self._vertex.store
        # A list shows one version of each model.
        return _page(call, manager, models.list(parent) if manager is models else store.list(parent, collection))

    def create(self, call: Call, parent: str, collection: str) -> Any:
        manager = self._manager(collection)
        if not hasattr(manager, "create"):
            raise ApiError("UNIMPLEMENTED", f"{collection} are not created here but by training pipelines")
        message = create_validation.without_output(_message(call.text(), manager.message))
        refuse(create_validation.label_findings(message.labels))
        created = manager.create(parent, message)
        kind = {"@type": f"{TYPES}{manager.message.__name__}"}
        return self._operations.add(parent, created | kind) if collection in LONG_RUNNING else created

    def get(self, call: Call, parent: str, collection: str, id: str) -> Any:
        return self._manager(collection).get(f"{parent}/{collection}/{id}")

    def delete(self, call: Call, parent: str, collection: str, id: str) -> Any:
        self._manager(collection).delete(f"{parent}/{collection}/{id}")
        return self._operations.add(parent, experiments.EMPTY)

    def cancel(self, call: Call, parent: str, collection: str, id: str) -> Any:
        self._manager(collection).cancel(f"{parent}/{collection}/{id}")
        return {}

    def import_data(self, call: Call, parent: str, id: str) -> Any:
        self._vertex.datasets.import_data(f"{parent}/datasets/{id}", _message(call.text(), ImportDataRequest))
        return self._operations.add(parent, {"@type": f"{TYPES}ImportDataResponse"})

    def list_versions(self, call: Call, parent: str, id: str) -> Any:
        models = self._vertex.models
        return _page(call, models, models.list_versions(f"{parent}/models/{id}"))

    def delete_version(self, call: Call, parent: str, id: str) -> Any:
        self._vertex.models.delete_version(f"{parent}/models/{id}")
        return self._operations.add(parent, experiments.EMPTY)

    def operation(self, call: Call, parent: str, id: str) -> Any:
        return self._operations.get(f"{parent}/operations/{id}")

    def record(self, call: Call, parent: str, below: str) -> Any:
        """Every method on every address below metadataStores and tensorboards."""
        address, read = f"{parent}/{below}", lambda kind: _message(call.text(), kind)
        found = self._records.answer(call.method, address, call.query, read)
        return self._operations.add(parent, found) if "@type" in found else found

    def entries(self, call: Call) -> Any:
        """Cloud Logging's entries.list."""
        return logs.list_entries(self._vertex.store.all("customJobs"), self._vertex.state_dir, call.json())

    def disturb(self, call: Call, id: str, action: str) -> Any:
        """Not Google's: a fault on demand for one replica of a job."""
        asked = call.json()
        replica, seconds = asked.get("replica"), asked.get("seconds", 0)
        if action not in get_args(Action):
            raise ApiError("NOT_FOUND", f'there is no action "{action}"; use {", ".join(get_args(Action))}')
        if not isinstance(replica, str):
            raise invalid([Finding("replica", "is not text", "write a name such as workerpool0-0")])
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DISTURBANCE:
            raise invalid([Finding("seconds", f"is not a number from 0 to {LONGEST_DISTURBANCE}", "write one")])
        jobs = {id_of(job["name"]): job for job in self._vertex.store.all("customJobs")}
        if id not in jobs:
            running = ", ".join(key for key, job in jobs.items() if job["state"] == "JOB_STATE_RUNNING")
            cure = f"those that run are {running}" if running else "no job runs now"
            raise ApiError("NOT_FOUND", f'there is no custom job "{id}"; {cure}')
        self._vertex.jobs.disturb(jobs[id]["name"], cast(Action, action), replica, float(seconds))
        return {}

    def _manager(self, collection: str) -> Any:
        try:
            return self._managers[collection]
        except KeyError:
            known = ", ".join(self._managers)
            raise ApiError("NOT_FOUND", f"the local Vertex has no {collection}; it has {known}") from None


def create_app(vertex: Vertex) -> ASGIApp:
    """The service as an ASGI application: both APIs and the page."""
    views = page.routes(vertex.store, vertex.jobs, vertex.state_dir)
    router = http.Router([*VertexApi(vertex).routes(), *GcsApi(vertex.state_dir.buckets).routes(), *views])
    return ServerErrorMiddleware(origin_checked(router), handler=http.failed)


def _page(call: Call, manager: Any, resources: Sequence[Resource]) -> dict[str, Any]:
    """One page of a list, by the call's parameters."""
    known = frozenset(field.json_name for field in manager.message.pb().DESCRIPTOR.fields)
    found, token = filters.page(resources, known, **call.query)
    shown = _masked(found, call.query.get("readMask", ""), known)
    return {manager.collection: shown} | ({"nextPageToken": token} if token else {})


def _masked(resources: Sequence[Mapping[str, Any]], mask: str, known: Container[str]) -> Sequence[Mapping[str, Any]]:
    """The resources with only the fields of a readMask; a field within a field stands for all of the outer one."""
    wanted = {camel(field.partition(".")[0].strip()) for field in mask.split(",") if field}
    unknown = [f'"{field}" is not a field of this resource' for field in sorted(wanted - {"*"}) if field not in known]
    refuse(Finding("readMask", fault, "write fields as in name,displayName") for fault in unknown)
    if not wanted or "*" in wanted:
        return resources
    return [{key: value for key, value in one.items() if key in wanted} for one in resources]


def _message(body: str, kind: Any) -> Any:
    """The body as one of the API's messages; raises ApiError with all its faults."""
    try:
        return spec.read(strict_yaml.from_json(body), kind)
    except FaultError as error:
        raise invalid(error.findings) from None
