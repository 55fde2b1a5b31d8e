"""Experiments and TensorBoards: the metadata that the SDK stores about runs.

Supported are metadataStores with contexts, artifacts and executions, and tensorboards with experiments, runs and
timeSeries: create, get, list, patch, delete, and a context's children and members. Lineage, schemas, purges and the
values of time series are refused: nothing is uploaded, and the logs of a job lie in its AIP_TENSORBOARD_LOG_DIR.
Source: google-cloud-aiplatform 2.7.0, types/metadata_service.py and tensorboard_service.py.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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

from vertex_launch.job_resource import Resource
from vertex_launch.local.api.collection import Act, Collection, read_message
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.spec import as_json

CONTEXTS = "metadataStores/*/contexts"
MESSAGES: Mapping[str, Any] = {
    "metadataStores": MetadataStore,
    CONTEXTS: Context,
    "metadataStores/*/artifacts": Artifact,
    "metadataStores/*/executions": Execution,
    "tensorboards": Tensorboard,
    "tensorboards/*/experiments": TensorboardExperiment,
    "tensorboards/*/experiments/*/runs": TensorboardRun,
    "tensorboards/*/experiments/*/runs/*/timeSeries": TensorboardTimeSeries,
}

# The field of artifacts and executions that holds their contexts.
MEMBERSHIP = "inContext"
IN_CONTEXT = re.compile(r"""\bin_context\(\s*("[^"]*"|'[^']*')\s*\)""")

# The methods of a context: the request, and the field that links each member to the context.
LINKS: Mapping[str, tuple[Any, str]] = {
    "addContextChildren": (AddContextChildrenRequest, "parentContexts"),
    "addContextArtifactsAndExecutions": (AddContextArtifactsAndExecutionsRequest, MEMBERSHIP),
}


def records(store: Store) -> list[Collection]:
    """All collections in MESSAGES."""
    return [(Contexts if collection == CONTEXTS else Records)(store, collection) for collection in MESSAGES]


class Records(Collection):
    """Resources that clients create and change as they like."""

    # Etags are not compared: only over gRPC does the SDK repeat a refused update.
    output_only = ("name", "create_time", "update_time", "etag", "parent_contexts")
    hidden, takes_ids = (MEMBERSHIP,), True

    def __init__(self, store: Store, collection: str) -> None:
        super().__init__(store)
        self.collection, self.message = collection, MESSAGES[collection]
        self.long_running = self._is_root = "/" not in collection

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"PATCH {self.collection}/*": self._updated}

    def create(self, parent: str, message: Any, id: str = "") -> Resource:
        """Raises ApiError NOT_FOUND for a parent that is none, or ALREADY_EXISTS."""
        if not self._is_root:
            self._store.get(parent)
        etag = self._store.new_id()
        name = f"{parent}/{self.collection.rpartition('/')[2]}/{id or etag}"
        return self._store.create(name, as_json(message) | {"etag": etag})

    def page(self, call: Call, resources: Sequence[Resource]) -> Resource:
        wanted = IN_CONTEXT.sub(rf"{MEMBERSHIP}:\1", call.query.get("filter", ""))
        return super().page(replace(call, query={**call.query, "filter": wanted}), resources)


class Contexts(Records):
    """Experiments and their runs, which artifacts, executions and other contexts join."""

    _linking = threading.Lock()

    def methods(self) -> dict[str, Act]:
        links = {f"POST {CONTEXTS}/*:{verb}": partial(self._link, *link) for verb, link in LINKS.items()}
        return super().methods() | links

    def _link(self, request: Any, field: str, call: Call, context: str) -> Resource:
        """Adds contexts, artifacts or executions to a context."""
        members = {key: names for key, names in as_json(read_message(call, request)).items() if key != "context"}
        store = context.rpartition("/contexts/")[0]
        with self._linking:
            self._store.get(context)
            for resource in [self._store.get(name) for names in members.values() for name in names]:
                if not resource["name"].startswith(f"{store}/"):
                    raise ApiError("INVALID_ARGUMENT", f"{resource['name']} is not in {store}; name one that is")
                contexts = dict.fromkeys((*resource.get(field, ()), context))
                self._store.update(resource["name"], **{field: [*contexts]})
        return {}
