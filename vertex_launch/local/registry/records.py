"""Resources that clients create, change and delete as they like: metadata and TensorBoards."""

from typing import Any

from vertex_launch.job_resource import Resource
from vertex_launch.local.api.collection import Act, Collection
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.spec import as_json


class Records(Collection):
    """Resources of one kind; without a subclass, nothing about them is special."""

    # Etags are not compared: only over gRPC does the SDK repeat a refused update.
    output_only: tuple[str, ...] = ("name", "create_time", "update_time", "etag", "parent_contexts")
    takes_ids = True

    def __init__(self, store: Store, collection: str, message: Any) -> None:
        super().__init__(store)
        self.collection, self.message = collection, message
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

    def _updated(self, call: Call, name: str) -> Resource:
        return self.typed(super()._updated(call, name))
