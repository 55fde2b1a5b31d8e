"""The model registry as training pipelines fill it: models and their versions.

A version is stored under the name projects/P/locations/L/models/ID@VERSION. Source: google-cloud-aiplatform 2.7.0,
types/model.py and types/model_service.py.
"""

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.model import Model

from vertex_launch import labels
from vertex_launch.addresses import object_path
from vertex_launch.job_resource import Resource
from vertex_launch.labels import name_findings
from vertex_launch.local.api.collection import Act, Collection
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.store import Store

COLLECTION = "models"
DEFAULT = "default"  # the alias of the version that a model's plain name refers to
ID = re.compile("[a-z_][a-z0-9_-]{0,62}")
ALIAS = re.compile("[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")


class Models(Collection):
    """All models of the service; thread-safe."""

    collection, message = COLLECTION, Model

    def __init__(self, store: Store, buckets: Path) -> None:
        super().__init__(store)
        self._buckets = buckets
        self._lock = threading.Lock()

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"GET {COLLECTION}/*:listVersions": lambda call, name: self.page(call, self.list_versions(name)),
            f"DELETE {COLLECTION}/*:deleteVersion": lambda call, name: self.delete_version(name),
        }

    def upload(
        self, parent: str, model: Resource, artifact_uri: str, model_id: str = "", parent_model: str = "", **more: Any
    ) -> Resource:
        """Register the content of a folder as a model, or as a new version of `parent_model`.

        A client set the fields of `model`, the service those of `more`. Raises ApiError, also for an empty folder.
        """
        folder = object_path(artifact_uri, self._buckets)
        if folder is None or not any(path.is_file() for path in folder.rglob("*")):
            message = f"{artifact_uri} is empty, so there is no model; save it in the folder that AIP_MODEL_DIR names"
            raise ApiError("FAILED_PRECONDITION", message)
        with self._lock:
            self.check(parent, model, model_id, parent_model)
            name = parent_model.partition("@")[0] or f"{parent}/{COLLECTION}/{model_id or self._store.new_id()}"
            version = str(max((int(stored["versionId"]) for stored in self._versions(name)), default=0) + 1)
            aliases = self._take_aliases(name, model.get("versionAliases", ()))
            added = {"artifactUri": artifact_uri, "versionId": version, "versionAliases": aliases, "etag": version}
            return self._as_model(self._store.create(f"{name}@{version}", {**model, **more, **added}))

    def check(self, parent: str, model: Resource, model_id: str = "", parent_model: str = "") -> None:
        """Raises ApiError for a model that `upload` would refuse whatever the folder holds."""
        findings = [*name_findings(model.get("displayName", "")), *labels.of_all(model.get("labels", {}))]
        refuse(finding.below("modelToUpload") for finding in findings)
        models = f"{parent}/{COLLECTION}"
        if parent_model and not parent_model.startswith(f"{models}/"):
            raise ApiError("INVALID_ARGUMENT", f'parentModel: "{parent_model}" is not below {models}')
        if parent_model and not self._versions(parent_model.partition("@")[0]):
            raise ApiError("NOT_FOUND", f"{parent_model} does not exist")
        if model_id and not ID.fullmatch(model_id):
            raise ApiError("INVALID_ARGUMENT", f'modelId: "{model_id}" is no id; use a-z, 0-9, - and _, a letter first')
        if model_id and not parent_model and self._versions(f"{models}/{model_id}"):
            raise ApiError("ALREADY_EXISTS", f"{models}/{model_id} exists already; name it as parentModel")
        for alias in model.get("versionAliases", ()):
            if not ALIAS.fullmatch(alias):
                raise ApiError("INVALID_ARGUMENT", f'versionAliases: "{alias}" is no alias; use a-z, 0-9 and -')

    def get(self, name: str) -> Resource:
        """Return the version of a model for NAME@NUMBER, NAME@ALIAS or NAME, the default version; raises ApiError."""
        model, _, version = name.partition("@")
        for stored in self._versions(model):
            if version == stored["versionId"] or (version or DEFAULT) in stored["versionAliases"]:
                return self._as_model(stored)
        raise ApiError("NOT_FOUND", f"{name} does not exist")

    def list(self, parent: str) -> Sequence[Resource]:
        """List every model in its default version, newest first."""
        versions = self._store.list(parent, COLLECTION)
        return [self._as_model(version) for version in versions if DEFAULT in version["versionAliases"]]

    def list_versions(self, name: str) -> Sequence[Resource]:
        """List all versions of a model, newest first; here alone their names end in @VERSION. Raises ApiError."""
        model = self.get(name)["name"]
        return [{**self._as_model(version), "name": version["name"]} for version in self._versions(model)]

    def delete(self, name: str) -> None:
        """Delete a model with all its versions; raises ApiError NOT_FOUND."""
        with self._lock:
            for version in self._versions(self.get(name)["name"]):
                self._store.delete(version["name"])

    def delete_version(self, name: str) -> None:
        """Delete a version that is not the default; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        with self._lock:
            version = self.get(name)
            if DEFAULT in version["versionAliases"]:
                message = f"{name} is the default version; delete the model, or give the alias to another version"
                raise ApiError("FAILED_PRECONDITION", message)
            self._store.delete(f"{version['name']}@{version['versionId']}")

    def _versions(self, model: str) -> Sequence[Resource]:
        """Return the stored versions of a model, newest first."""
        parent = model.rpartition(f"/{COLLECTION}/")[0]
        return [stored for stored in self._store.list(parent, COLLECTION) if stored["name"].partition("@")[0] == model]

    def _take_aliases(self, model: str, wanted: Sequence[str]) -> Sequence[str]:
        """Move these aliases from the other versions to a new one; the first version also gets the default alias."""
        versions = self._versions(model)
        aliases = [*wanted] if versions or DEFAULT in wanted else [*wanted, DEFAULT]
        for version in versions:
            kept = [alias for alias in version["versionAliases"] if alias not in aliases]
            if kept != version["versionAliases"]:
                self._store.update(version["name"], versionAliases=kept)
        return aliases

    def _as_model(self, version: Resource) -> Resource:
        """A stored version as the API shows it: with the model's name, and the times of both."""
        name = version["name"].partition("@")[0]
        times = {"versionCreateTime": version["createTime"], "versionUpdateTime": version["updateTime"]}
        return {**version, **times, "name": name, "createTime": self._versions(name)[-1]["createTime"]}
