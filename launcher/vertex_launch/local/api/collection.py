"""The Vertex AI API's standard methods for a resource collection."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vertex_launch.errors import FaultError, Finding, Findings
from vertex_launch.facts import labels
from vertex_launch.job import proto_validation, spec, strict_yaml
from vertex_launch.job.addresses import object_path
from vertex_launch.job.job_resource import Resource, camel
from vertex_launch.local.api import filters
from vertex_launch.local.api.errors import ApiError, invalid, refuse
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.local.resource_file import now
from vertex_launch.rules.region_and_output import key_name_findings, key_region_findings

TYPES = "type.googleapis.com/google."
EMPTY: Resource = {"@type": f"{TYPES}protobuf.Empty"}
# The output-only fields of all messages. Source: google-cloud-aiplatform 2.7.0, types/, "Output only".
OUTPUT_ONLY = (
    *("name", "state", "error", "create_time", "start_time", "end_time", "update_time"),
    *("web_access_uris", "trials", "training_task_metadata", "data_item_count", "metadata_artifact"),
    *("satisfies_pzs", "satisfies_pzi"),
    # of a model
    *("version_id", "version_create_time", "version_update_time", "training_pipeline", "checkpoints"),
    *("deployed_models", "model_source_info", "original_model_info", "supported_export_formats"),
    *("supported_deployment_resources_types", "supported_input_storage_formats", "supported_output_storage_formats"),
)
FOREIGN = re.compile(r"[^\w.-]", re.ASCII)  # characters that a display name can contain but a local folder name can't

# A function that takes a request and the resource name in its URL. If the result contains "@type", it is an operation's
# response. If the result contains "response", it contains an operation's fields. A result of None stands for {}, or for
# EMPTY after a deletion.
Act = Callable[[Call, str], Resource | None]


class Collection:
    """A collection of resources of one type.

    A subclass defines how to create a resource and can override other methods. A method that takes a resource name
    raises ApiError NOT_FOUND if the resource doesn't exist.
    """

    collection: str  # the collection in the names: customJobs, or tensorboards/*/experiments for nested resources
    message: Any  # the type of a resource
    long_running = False  # whether `create` returns a long-running operation
    takes_ids = False  # whether a client can choose the ID of a new resource
    verbs: tuple[str, ...] = ("GET", "POST", "DELETE")  # the HTTP methods that clients can use
    output_only: tuple[str, ...] = OUTPUT_ONLY  # the fields that clients can't set
    hidden: tuple[str, ...] = ()  # internal fields that clients can filter by but can't read
    create: Callable[..., Resource]

    def __init__(self, store: Store) -> None:
        self._store, self._buckets = store, store.state_dir.buckets

    def methods(self) -> dict[str, Act]:
        """Return the handler functions, keyed by HTTP method and path. A * in a path matches any ID."""
        listed, member = self.collection, f"{self.collection}/*"
        methods: dict[str, Act] = {
            f"GET {listed}": lambda call, name: self.page(call, self.list(name.rpartition("/")[0])),
            f"GET {member}": lambda call, name: self._shown(call, [self.get(name)])[0],
            f"POST {listed}": self._created,
            f"PATCH {member}": self._updated,
            f"DELETE {member}": lambda call, name: self.delete(name),
        }
        served = {key: act for key, act in methods.items() if key.startswith(self.verbs)}
        return served | {f"POST {member}:testIamPermissions": self._permissions}

    def _permissions(self, call: Call, name: str) -> Resource:
        """Return all requested permissions, because every account has every permission."""
        self.get(name)
        return {"permissions": call.json().get("permissions") or call.query.getlist("permissions")}

    def get(self, name: str) -> Resource:
        return self._store.get(name)

    def list(self, parent: str) -> Sequence[Resource]:
        """List the resources under a parent, newest first. Return an empty list if the parent doesn't exist locally."""
        return self._store.list(parent, self.collection.rpartition("/")[2])

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def update(self, name: str, changed: Mapping[str, Any]) -> Resource:
        """Replace the given fields of a resource. Remove each field whose new value is None."""
        return self._store.update(name, **changed, etag=self._store.new_id())

    def page(self, call: Call, resources: Sequence[Resource]) -> Resource:
        """Return the page of a resource list that the call's parameters select."""
        shown, token = filters.page(resources, fields(self.message) | {*self.hidden}, **call.query)
        key = f"{field_of(self.message).removesuffix('s')}s"
        return {key: self._shown(call, shown)} | ({"nextPageToken": token} if token else {})

    def _created(self, call: Call, name: str) -> Resource:
        message = without_output(read_message(call, self.message), self.output_only)
        refuse([*labels.of_all(getattr(message, "labels", {})), *key_findings(message, name)])
        ids = {"id": call.query.get(f"{field_of(self.message)}Id", "")} if self.takes_ids else {}
        return self.typed(self.create(name.rpartition("/")[0], message, **ids))

    def typed(self, resource: Resource) -> Resource:
        """Return the public fields of a resource. Add "@type" if an operation wraps the resource."""
        kind = self.message.pb().DESCRIPTOR.full_name.removeprefix("google.")
        shown = {key: value for key, value in resource.items() if key in fields(self.message)}
        return {**shown, **({"@type": f"{TYPES}{kind}"} if self.long_running else {})}

    def _updated(self, call: Call, name: str) -> Resource:
        """Replace the fields that `updateMask` lists. Without `updateMask`, replace each field that the body sets."""
        message = without_output(read_message(call, self.message), self.output_only)
        refuse(labels.of_all(getattr(message, "labels", {})))
        body = spec.as_json(message)
        named = [camel(field) for field in call.query.get("updateMask", "").split(",") if field]
        if unknown := [field for field in named if field not in fields(self.message)]:
            raise ApiError("INVALID_ARGUMENT", f'updateMask: "{unknown[0]}" isn\'t a field of {name}; use whole fields')
        changed = {field: body.get(field) for field in named or body if field not in map(camel, self.output_only)}
        return self._shown(call, [self.update(name, changed)])[0]

    def _shown(self, call: Call, resources: Iterable[Resource]) -> Sequence[Resource]:
        """Return resources with only the fields in `readMask`. Without `readMask`, return all public fields."""
        all_fields, mask = fields(self.message), call.query.get("readMask", "")
        wanted = {camel(field.partition(".")[0].strip()) for field in mask.split(",") if field} or {"*"}
        unknown = [f'"{field}" isn\'t a field of this resource' for field in sorted(wanted - {"*", *all_fields})]
        refuse(Finding("readMask", fault, "list fields, such as name,displayName") for fault in unknown)
        shown = all_fields if "*" in wanted else wanted
        return [{key: value for key, value in resource.items() if key in shown} for resource in resources]


class Records(Collection):
    """Resources, such as metadata and TensorBoard instances, that clients can freely create, change, and delete."""

    verbs = ("GET", "POST", "PATCH", "DELETE")
    # Etags aren't compared, because the SDK retries a rejected update only over gRPC.
    output_only: tuple[str, ...] = ("name", "create_time", "update_time", "etag", "parent_contexts")
    takes_ids = True

    def create(self, parent: str, message: Any, id: str = "") -> Resource:
        """Create a resource. Raises ApiError if the parent doesn't exist or the ID is in use."""
        if "/" in self.collection:
            self._store.get(parent)
        etag = self._store.new_id()
        name = f"{parent}/{self.collection.rpartition('/')[2]}/{id or etag}"
        return self._store.create(name, spec.as_json(message) | {"etag": etag})

    def _updated(self, call: Call, name: str) -> Resource:
        return self.typed(super()._updated(call, name))


@functools.cache
def fields(message: Any) -> frozenset[str]:
    """Return the camelCase names of an API message's fields."""
    return frozenset(field.json_name for field in message.pb().DESCRIPTOR.fields)


def field_of(message: Any) -> str:
    """Convert a message name, such as TensorboardRun, to a field name, such as tensorboardRun."""
    name = str(message.__name__)
    return name[0].lower() + name[1:]


def read_message(call: Call, kind: Any) -> Any:
    """Parse the request body as an API message. Raises ApiError with all findings if the request body isn't valid."""
    try:
        document = proto_validation.relaxed(strict_yaml.from_json(call.text()), kind.pb().DESCRIPTOR)
        return spec.read(document, kind)
    except FaultError as error:
        raise invalid(error.findings) from None


def without_output(message: Any, names: Iterable[str] = OUTPUT_ONLY) -> Any:
    """Clear the output-only fields of a message and of any model that it contains. Modify the message in place."""
    pb = type(message).pb(message)
    model = "model_to_upload" in pb.DESCRIPTOR.fields_by_name and pb.HasField("model_to_upload")
    for part in (pb, pb.model_to_upload) if model else (pb,):
        for name in names:
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
    return message


def key_findings(message: Any, parent: str) -> Findings:
    """Yield findings about the encryption key of a new resource. This function doesn't check whether the key exists."""
    if "encryption_spec" in type(message).meta.fields and "encryption_spec" in message:
        key = message.encryption_spec.kms_key_name
        yield from (*key_name_findings(key), *key_region_findings(key, parent.split("/")[3], "resource"))


def new_folder(prefix: str, name: str, buckets: Path) -> tuple[str, Path]:
    """Return the URI and the local path of a new folder under `prefix`.

    The folder's name contains `name` and the current time. Raises ApiError INVALID_ARGUMENT if `prefix` isn't a folder
    in a bucket.
    """
    address = f"{prefix.rstrip('/')}/{FOREIGN.sub('_', name)}-{now()[:-4]}Z"  # milliseconds, as in the documentation
    folder = object_path(address, buckets)
    if folder is None:
        raise ApiError("INVALID_ARGUMENT", f'"{prefix}" isn\'t a folder in a bucket; use gs://BUCKET/FOLDER')
    return address, folder
