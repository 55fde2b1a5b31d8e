"""Experiments and TensorBoards: the metadata that the SDK stores about runs.

Supported are metadataStores with contexts, artifacts and executions, and tensorboards with experiments, runs and
timeSeries: create, get, list, patch, delete, and a context's children and members. Lineage, schemas, purges and the
values of time series are refused: nothing is uploaded, and the logs of a job lie in its AIP_TENSORBOARD_LOG_DIR.
Source: google-cloud-aiplatform 2.7.0, types/metadata_service.py and tensorboard_service.py.
"""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.aiplatform_v1.types.artifact import Artifact
from google.cloud.aiplatform_v1.types.context import Context
from google.cloud.aiplatform_v1.types.execution import Execution
from google.cloud.aiplatform_v1.types.metadata_service import (
    AddContextArtifactsAndExecutionsRequest,
    AddContextChildrenRequest,
)
from google.cloud.aiplatform_v1.types.metadata_store import MetadataStore
from google.cloud.aiplatform_v1.types.tensorboard import Tensorboard
from google.cloud.aiplatform_v1.types.tensorboard_experiment import TensorboardExperiment
from google.cloud.aiplatform_v1.types.tensorboard_run import TensorboardRun
from google.cloud.aiplatform_v1.types.tensorboard_time_series import TensorboardTimeSeries

from vertex_launch.job_resource import Resource, camel
from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.spec import as_json

ROOTS = ("metadataStores", "tensorboards")  # create answers with an operation for these alone, delete for all

MESSAGES: Mapping[str, Any] = {
    "metadataStores": MetadataStore,
    "metadataStores/contexts": Context,
    "metadataStores/artifacts": Artifact,
    "metadataStores/executions": Execution,
    "tensorboards": Tensorboard,
    "tensorboards/experiments": TensorboardExperiment,
    "tensorboards/experiments/runs": TensorboardRun,
    "tensorboards/experiments/runs/timeSeries": TensorboardTimeSeries,
}
# Clients cannot set these. Etags are not compared: only over gRPC does the SDK repeat a refused update.
OUTPUT_ONLY = ("name", "createTime", "updateTime", "etag", "parentContexts")

# The field of artifacts and executions that holds their contexts; clients never see it, but filters may use it.
MEMBERSHIP = "inContext"
IN_CONTEXT = re.compile(r"""\bin_context\(\s*("[^"]*"|'[^']*')\s*\)""")

# The methods of a context: the request, and the field that links each member to the context.
LINKS: Mapping[str, tuple[Any, str]] = {
    "addContextChildren": (AddContextChildrenRequest, "parentContexts"),
    "addContextArtifactsAndExecutions": (AddContextArtifactsAndExecutionsRequest, MEMBERSHIP),
}
EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}

Read = Callable[[Any], Any]  # parses the request's body as this message type; raises ApiError


class Records:
    """All resources of the collections in MESSAGES; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._linking = threading.Lock()

    def answer(self, method: str, address: str, asked: Mapping[str, str], read: Read) -> Resource:
        """The answer to one request.

        Args:
            method: GET, POST, PATCH or DELETE.
            address: projects/P/locations/L/COLLECTION[/ID[/COLLECTION...]][:VERB].
            asked: the query parameters.

        Returns:
            JSON, with an "@type" if the API answers with an operation.

        Raises:
            ApiError: among others UNIMPLEMENTED, for what is not supported.
        """
        collection, slash, last = address.rpartition("/")  # a project's name may have a colon, too
        id, _, verb = last.partition(":")
        path = f"{collection}{slash}{id}"
        parts = path.split("/")[4:]
        message = MESSAGES.get("/".join(parts[::2]))
        match method, len(parts) % 2 == 0, verb:
            case _ if message is None:
                pass
            case "GET", True, "":
                return _shown(self._store.get(path), message)
            case "PATCH", True, "":
                return self._update(path, message, asked.get("updateMask", ""), as_json(read(message)))
            case "DELETE", True, "":
                self._store.delete(path)
                return EMPTY
            case "GET", False, "":
                return self._list(path, message, asked)
            case "POST", False, "":
                return self._create(path, message, asked, as_json(read(message)))
            case "POST", True, _ if message is Context and verb in LINKS:
                return self._link(path, verb, read)
        known = ", ".join(MESSAGES)
        fault = f"{method} {address} is not covered by the local Vertex, which stores {known}"
        raise ApiError("UNIMPLEMENTED", fault)

    def _create(self, path: str, message: Any, asked: Mapping[str, str], given: Resource) -> Resource:
        parent, _, collection = path.rpartition("/")
        if collection not in ROOTS:
            self._store.get(parent)
        etag = self._store.new_id()
        id = asked.get(f"{_field(message)}Id") or etag
        fields = {key: value for key, value in given.items() if key not in OUTPUT_ONLY}
        created = self._store.create(f"{path}/{id}", fields | {"etag": etag})
        type = {"@type": f"type.googleapis.com/{message.pb().DESCRIPTOR.full_name}"}
        return {**created, **(type if collection in ROOTS else {})}

    def _list(self, path: str, message: Any, asked: Mapping[str, str]) -> Resource:
        """One page; the parent need not exist, as the TensorBoard of a job may exist only in Google Cloud."""
        parent, _, collection = path.rpartition("/")
        wanted = {**asked, "filter": IN_CONTEXT.sub(rf"{MEMBERSHIP}:\1", asked.get("filter", ""))}
        found, token = filters.page(self._store.list(parent, collection), {*_fields(message), MEMBERSHIP}, **wanted)
        shown = {f"{_field(message).removesuffix('s')}s": [_shown(one, message) for one in found]}
        return shown | ({"nextPageToken": token} if token else {})

    def _update(self, name: str, message: Any, mask: str, given: Resource) -> Resource:
        """Replace the fields in the mask or, without a mask, those in the body."""
        named = [camel(field) for field in mask.split(",") if field]
        unknown = [field for field in named if field not in _fields(message)]
        if unknown:
            raise ApiError("INVALID_ARGUMENT", f'updateMask: "{unknown[0]}" is no field of {name}; name whole fields')
        fields = {field: given.get(field) for field in named or given if field not in OUTPUT_ONLY}
        return _shown(self._store.update(name, **fields, etag=self._store.new_id()), message)

    def _link(self, context: str, verb: str, read: Read) -> Resource:
        """Add contexts, artifacts or executions to a context."""
        request, field = LINKS[verb]
        members = {key: names for key, names in as_json(read(request)).items() if key != "context"}
        store = context.rpartition("/contexts/")[0]
        with self._linking:
            self._store.get(context)
            for resource in [self._store.get(name) for names in members.values() for name in names]:
                if not resource["name"].startswith(f"{store}/"):
                    raise ApiError("INVALID_ARGUMENT", f"{resource['name']} is not in {store}; name one that is")
                contexts = dict.fromkeys((*resource.get(field, ()), context))
                self._store.update(resource["name"], **{field: [*contexts]})
        return {}


def _fields(message: Any) -> set[str]:
    return {field.json_name for field in message.pb().DESCRIPTOR.fields}


def _shown(resource: Mapping[str, Any], message: Any) -> Resource:
    return {key: value for key, value in resource.items() if key in _fields(message)}


def _field(message: Any) -> str:
    """The message's name as a field: tensorboardRun of TensorboardRun."""
    name = str(message.__name__)
    return name[0].lower() + name[1:]
