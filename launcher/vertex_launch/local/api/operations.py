"""Long-running operations.

An operation is already done when a client receives it. Therefore, an operation stores only a response.

Source: googleapis, google/longrunning/operations.proto.
"""

import contextlib
import re
from collections import deque
from typing import Any

from vertex_launch.job.job_resource import Resource, collection_of, id_of
from vertex_launch.local.api import filters
from vertex_launch.local.api.collection import TYPES, Act
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.local.resource_file import now

KEPT = 1000  # a client reads an operation once, right after the call that created it
FIELDS = ("name", "done", "metadata", "response")
OPERATION = re.compile(r".*/(?=operations(/\*)?$)")  # the path before the operations collection


class Operations:
    """The server's most recent long-running operations. An operation's name begins with the name of its resource."""

    def __init__(self, store: Store, kept: int = KEPT) -> None:
        self._store = store
        self._done: deque[Resource] = deque(maxlen=kept)

    def methods(self) -> dict[str, Act]:
        """Return the handlers of google.longrunning.Operations, in the same format as `Collection.methods`."""
        return {
            "GET operations": self._list,
            "GET operations/*": lambda call, name: self.get(name),
            "POST operations/*:wait": lambda call, name: self.get(name),
            "POST operations/*:cancel": lambda call, name: {} if self.get(name) else None,
            "DELETE operations/*": lambda call, name: self._delete(name),
        }

    def wrapped(self, answer: Resource, path: str, did: str = "Create", version: str = "v1") -> Resource:
        """Wrap a method's result in a new operation if the method is long-running.

        Otherwise, return the result unchanged. `did` is the verb in the method's name, such as Create. The operation's
        types match `version`, because a v1beta1 client can't unpack v1 types.
        """
        fields: dict[str, Any] = {"response": answer} if "@type" in answer else {**answer}
        if "response" not in fields or "done" in fields:
            return answer
        about = str(answer.get("name") or answer.get("model") or path).partition("@")[0]
        kind = _metadata_type(fields["response"]["@type"], did, collection_of(path))
        times = dict.fromkeys(("createTime", "updateTime"), now())
        metadata = {"@type": kind, "genericMetadata": times, **fields.get("metadata", {})}
        parts = {"metadata": metadata, "response": fields["response"]}
        typed = {key: {**part, "@type": part["@type"].replace(".v1.", f".{version}.")} for key, part in parts.items()}
        operation = {"name": f"{about}/operations/{self._store.new_id()}", "done": True, **typed}
        self._done.append(operation)
        return operation

    def get(self, name: str) -> Resource:
        """Return an operation. Raises ApiError NOT_FOUND if the operation doesn't exist.

        `name` can contain only the location and the operation ID, as in gcloud's requests.
        """
        above, _, id = name.rpartition("operations/")
        for operation in [*self._done]:
            if operation["name"].startswith(above) and id_of(operation["name"]) == id:
                return operation
        raise ApiError("NOT_FOUND", f"{name} does not exist")

    def _list(self, call: Call, name: str) -> Resource:
        """List the operations of a resource and of all resources under it, newest first."""
        above = name.removesuffix("operations")
        below = [operation for operation in reversed([*self._done]) if operation["name"].startswith(above)]
        shown, token = filters.page(below, FIELDS, **call.query)
        return {"operations": shown} | ({"nextPageToken": token} if token else {})

    def _delete(self, name: str) -> Resource:
        with contextlib.suppress(ValueError):  # a concurrent request deleted the operation
            self._done.remove(self.get(name))
        return {}


def _metadata_type(response: str, did: str, collection: str) -> str:
    """Return the type of an operation's metadata. Source: google-cloud-aiplatform 2.7.0, services/*/client.py."""
    kind = response.rpartition(".")[2].replace("Empty", "MetadataStore" if collection == "metadataStores" else "")
    name = kind.removesuffix("Response") if kind.endswith("Response") else f"{did}{kind}"  # CreateDataset, Delete
    return f"{TYPES}cloud.aiplatform.v1.{name}{'' if name.startswith('Purge') else 'Operation'}Metadata"
