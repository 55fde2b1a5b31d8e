"""Experiments and TensorBoards, as far as the SDK keeps its own books in them.

Covered are metadataStores with contexts, artifacts and executions, and tensorboards with experiments, runs and
timeSeries: create, get, list, patch, delete and a context's children and members. Not covered, and refused, are
lineage, schemas, purges and the values of time series: the service uploads nothing, the logs of a job lie in its
AIP_TENSORBOARD_LOG_DIR. Source: google-cloud-aiplatform 2.7.0, types/metadata_service.py and tensorboard_service.py.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud.aiplatform_v1.types import (
    AddContextArtifactsAndExecutionsRequest,
    AddContextChildrenRequest,
    Artifact,
    Context,
    Execution,
    MetadataStore,
    Tensorboard,
    TensorboardExperiment,
    TensorboardRun,
    TensorboardTimeSeries,
)
from google.protobuf import empty_pb2

from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Resource, Store
from vertex_launch.spec import as_json

ROOTS = ("metadataStores", "tensorboards")


@dataclass(frozen=True)
class Kind:
    """What the API says of one collection."""

    message: Any
    id_parameter: str = ""  # with which a caller chooses an id on create
    long_running: bool = False  # whether create answers with an operation; delete always does


KINDS: Mapping[str, Kind] = {
    "metadataStores": Kind(MetadataStore, "metadataStoreId", long_running=True),
    "metadataStores/contexts": Kind(Context, "contextId"),
    "metadataStores/artifacts": Kind(Artifact, "artifactId"),
    "metadataStores/executions": Kind(Execution, "executionId"),
    "tensorboards": Kind(Tensorboard, long_running=True),
    "tensorboards/experiments": Kind(TensorboardExperiment, "tensorboardExperimentId"),
    "tensorboards/experiments/runs": Kind(TensorboardRun, "tensorboardRunId"),
    "tensorboards/experiments/runs/timeSeries": Kind(TensorboardTimeSeries, "tensorboardTimeSeriesId"),
}
# What a caller cannot write. No etag is compared: the SDK repeats a refused update only where it speaks gRPC.
OURS = ("name", "createTime", "updateTime", "etag", "parentContexts")

# Where an artifact or execution keeps its contexts; nobody sees it, but a filter may ask for it.
MEMBERSHIP = "inContext"
IN_CONTEXT = re.compile(r"""\bin_context\(\s*("[^"]*"|'[^']*')\s*\)""")

Read = Callable[[Any], Any]  # the request's body as a message of this kind; raises ApiError


class Records:
    """All resources of these collections; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._linking = threading.Lock()

    def answer(self, method: str, address: str, asked: Mapping[str, str], read: Read) -> Resource:
        """The answer to one request.

        Args:
            method: GET, POST, PATCH or DELETE.
            address: projects/P/locations/L/COLLECTION[/ID[/COLLECTION...]][:VERB].
            asked: the parameters behind the address.

        Returns:
            JSON; it has an "@type" where the API answers with an operation that returns it.

        Raises:
            ApiError: also UNIMPLEMENTED, for what is not covered.
        """
        path, _, verb = address.partition(":")
        parts = path.split("/")[4:]
        kind = KINDS.get("/".join(parts[::2]))
        one = len(parts) % 2 == 0  # and not a collection
        if kind is None or (verb and (method, one, kind.message) != ("POST", True, Context)):
            raise _uncovered(method, address)
        match method, one:
            case "POST", True:
                return self._link(path, verb, read)
            case "GET", True:
                return _shown(self._store.get(path), kind)
            case "PATCH", True:
                return self._update(path, kind, asked.get("updateMask", ""), as_json(read(kind.message)))
            case "DELETE", True:
                return self._delete(path)
            case "GET", False:
                return self._list(path, kind, asked)
            case "POST", False:
                return self._create(path, kind, asked, as_json(read(kind.message)))
        raise _uncovered(method, address)

    def _create(self, path: str, kind: Kind, asked: Mapping[str, str], given: Resource) -> Resource:
        parent = path.rpartition("/")[0]
        if parent.count("/") > 3:  # below a resource, which must be there
            self._store.get(parent)
        etag = self._store.new_id()
        fields = {key: value for key, value in given.items() if key not in OURS}
        created = self._store.create(f"{path}/{asked.get(kind.id_parameter) or etag}", fields | {"etag": etag})
        return _typed(kind.message.pb(), created) if kind.long_running else created

    def _list(self, path: str, kind: Kind, asked: Mapping[str, str]) -> Resource:
        """One page; what does not exist has nothing below it, as the TensorBoard of a job that only Google knows."""
        parent, _, collection = path.rpartition("/")
        wanted = {**asked, "filter": IN_CONTEXT.sub(rf"{MEMBERSHIP}:\1", asked.get("filter", ""))}
        found, token = filters.page(self._store.list(parent, collection), {*_fields(kind), MEMBERSHIP}, **wanted)
        shown = {_plural(kind): [_shown(one, kind) for one in found]}
        return shown | ({"nextPageToken": token} if token else {})

    def _update(self, name: str, kind: Kind, mask: str, given: Resource) -> Resource:
        """Replace the fields of the mask, or without one those that are given."""
        named = [filters.camel(field) for field in mask.split(",") if field]
        unknown = [field for field in named if field not in _fields(kind)]
        if unknown:
            raise ApiError("INVALID_ARGUMENT", f'updateMask: "{unknown[0]}" is no field of {name}; name whole fields')
        fields = {field: given.get(field) for field in named or given if field not in OURS}
        return _shown(self._store.update(name, **fields, etag=self._store.new_id()), kind)

    def _delete(self, name: str) -> Resource:
        """Forget a resource and all below it."""
        self._store.get(name)
        for path in KINDS:
            if path.startswith("/".join(name.split("/")[4::2]) + "/"):
                for child in self._store.list(name, path.rpartition("/")[2]):
                    self._delete(child["name"])
        self._store.delete(name)
        return _typed(empty_pb2.Empty(), {})

    def _link(self, context: str, verb: str, read: Read) -> Resource:
        """Put contexts, artifacts or executions into a context."""
        self._store.get(context)
        if verb == "addContextChildren":
            self._add(context, "parentContexts", read(AddContextChildrenRequest).child_contexts)
        elif verb == "addContextArtifactsAndExecutions":
            members = read(AddContextArtifactsAndExecutionsRequest)
            self._add(context, MEMBERSHIP, [*members.artifacts, *members.executions])
        else:
            raise _uncovered("POST", f"{context}:{verb}")
        return {}

    def _add(self, context: str, field: str, names: Iterable[str]) -> None:
        store = context.rpartition("/contexts/")[0]
        with self._linking:
            for resource in [self._store.get(name) for name in names]:
                if not resource["name"].startswith(f"{store}/"):
                    raise ApiError("INVALID_ARGUMENT", f"{resource['name']} is not in {store}; name one that is")
                contexts = dict.fromkeys((*resource.get(field, ()), context))
                self._store.update(resource["name"], **{field: [*contexts]})


def _fields(kind: Kind) -> set[str]:
    return {field.json_name for field in kind.message.pb().DESCRIPTOR.fields}


def _shown(resource: Mapping[str, Any], kind: Kind) -> Resource:
    return {key: value for key, value in resource.items() if key in _fields(kind)}


def _plural(kind: Kind) -> str:
    """The field of a list's answer: tensorboardRuns of TensorboardRun."""
    name = str(kind.message.__name__)
    return f"{name[0].lower()}{name[1:].removesuffix('s')}s"


def _typed(message: Any, resource: Resource) -> Resource:
    return {"@type": f"type.googleapis.com/{message.DESCRIPTOR.full_name}", **resource}


def _uncovered(method: str, address: str) -> ApiError:
    known = ", ".join(KINDS)
    message = f"{method} {address} is not covered by the local Vertex; what is kept here are {known}"
    return ApiError("UNIMPLEMENTED", message)
