"""Resources that clients create, change and delete as they like: metadata and TensorBoards."""

from typing import Any

from vertex_launch.job_resource import Resource, camel
from vertex_launch.local.api.collection import Act, Collection, fields, read_message
from vertex_launch.local.api.create_validation import without_output
from vertex_launch.local.api.errors import ApiError
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
        """Replaces the fields in the mask or, without a mask, those in the body."""
        body = as_json(without_output(read_message(call, self.message), self.output_only))
        named = [camel(field) for field in call.query.get("updateMask", "").split(",") if field]
        if unknown := [field for field in named if field not in fields(self.message)]:
            raise ApiError("INVALID_ARGUMENT", f'updateMask: "{unknown[0]}" is no field of {name}; name whole fields')
        changed = {field: body.get(field) for field in named or body if field not in map(camel, self.output_only)}
        updated = self._store.update(name, **changed, etag=self._store.new_id())
        return self.typed(self._shown(call, [updated])[0])
