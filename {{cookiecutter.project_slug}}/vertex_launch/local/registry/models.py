"""The model registry, as far as training fills it: models, each with its versions.

A version is kept under the name projects/P/locations/L/models/ID@VERSION. Source: google-cloud-aiplatform 2.7.0,
types/model.py and types/model_service.py.
"""

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertex_launch.addresses import object_path
from vertex_launch.local.api.create_validation import label_findings, name_findings
from vertex_launch.local.api.errors import ApiError, invalid
from vertex_launch.local.api.store import Resource, Store

COLLECTION = "models"
DEFAULT = "default"  # the alias of the version that a name without a version means
ID = re.compile("[a-z_][a-z0-9_-]{0,62}")
ALIAS = re.compile("[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")


class Models:
    """All models of the service; thread-safe."""

    def __init__(self, store: Store, buckets: Path) -> None:
        self._store = store
        self._buckets = buckets
        self._lock = threading.Lock()

    def upload(
        self,
        parent: str,
        model: Resource,
        artifact_uri: str,
        *,
        model_id: str = "",
        parent_model: str = "",
        **more: Any,
    ) -> Resource:
        """Register what lies in a folder as a model, or as a new version of `parent_model`.

        Args:
            parent: projects/P/locations/L.
            model: what the client says of it; `more` are the fields that the service adds.
            artifact_uri: address of the folder.

        Raises:
            ApiError: FAILED_PRECONDITION for an empty folder, NOT_FOUND, ALREADY_EXISTS or INVALID_ARGUMENT.
        """
        folder = object_path(artifact_uri, self._buckets)
        if folder is None or not any(path.is_file() for path in folder.rglob("*")):
            message = f"{artifact_uri} is empty, so there is no model; save it in the folder that AIP_MODEL_DIR names"
            raise ApiError("FAILED_PRECONDITION", message)
        with self._lock:
            name = parent_model.partition("@")[0] or f"{parent}/{COLLECTION}/{model_id or self._store.new_id()}"
            self.check(parent, model, model_id=model_id, parent_model=parent_model)
            version = str(max((int(one["versionId"]) for one in self._of(name)), default=0) + 1)
            aliases = self._take_aliases(name, model.get("versionAliases", ()))
            added = {"artifactUri": artifact_uri, "versionId": version, "versionAliases": aliases, "etag": version}
            fields = {key: value for key, value in model.items() if key != "name"}
            self._store.create(f"{name}@{version}", {**fields, **more, **added})
            return self._shown(f"{name}@{version}")

    def check(self, parent: str, model: Resource, *, model_id: str = "", parent_model: str = "") -> None:
        """What `upload` will refuse for other reasons than an empty folder; raises ApiError."""
        findings = [*name_findings(model.get("displayName", "")), *label_findings(model.get("labels", {}))]
        if findings:
            raise invalid(finding.below("modelToUpload") for finding in findings)
        if parent_model and not parent_model.startswith(f"{parent}/{COLLECTION}/"):
            raise ApiError("INVALID_ARGUMENT", f'parentModel: "{parent_model}" is not below {parent}/{COLLECTION}')
        if parent_model and not self._of(parent_model.partition("@")[0]):
            raise ApiError("NOT_FOUND", f"{parent_model} does not exist")
        if model_id and not ID.fullmatch(model_id):
            raise ApiError("INVALID_ARGUMENT", f'modelId: "{model_id}" is no id; use a-z, 0-9, - and _, a letter first')
        if model_id and not parent_model and self._of(f"{parent}/{COLLECTION}/{model_id}"):
            raise ApiError("ALREADY_EXISTS", f"{parent}/{COLLECTION}/{model_id} exists already; name it as parentModel")
        for alias in model.get("versionAliases", ()):
            if not ALIAS.fullmatch(alias):
                raise ApiError("INVALID_ARGUMENT", f'versionAliases: "{alias}" is none; use a-z, 0-9 and -')

    def get(self, name: str) -> Resource:
        """A model's version, by its number or alias behind an @; by default the default version. Raises ApiError."""
        model, _, version = name.partition("@")
        for one in self._of(model):
            if version == one["versionId"] or (version or DEFAULT) in one["versionAliases"]:
                return self._shown(one["name"])
        raise ApiError("NOT_FOUND", f"{name} does not exist")

    def list(self, parent: str) -> Sequence[Resource]:
        """Every model in its default version, newest first."""
        versions = self._store.list(parent, COLLECTION)
        return [self._shown(one["name"]) for one in versions if DEFAULT in one["versionAliases"]]

    def list_versions(self, name: str) -> Sequence[Resource]:
        """All versions of a model, newest first; unlike elsewhere, their names end in @VERSION. Raises ApiError."""
        model = self.get(name)["name"]
        return [self._shown(one["name"]) | {"name": one["name"]} for one in self._of(model)]

    def delete(self, name: str) -> None:
        """Forget a model with all its versions; raises ApiError NOT_FOUND."""
        with self._lock:
            for one in self._of(self.get(name)["name"]):
                self._store.delete(one["name"])

    def delete_version(self, name: str) -> None:
        """Forget a version that is not the default; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        with self._lock:
            version = self.get(name)
            if DEFAULT in version["versionAliases"]:
                message = f"{name} is the default version; delete the model, or give the alias to another version"
                raise ApiError("FAILED_PRECONDITION", message)
            self._store.delete(f"{version['name']}@{version['versionId']}")

    def _of(self, model: str) -> Sequence[Resource]:
        """The versions of a model as they are kept, newest first."""
        parent = model.rpartition(f"/{COLLECTION}/")[0]
        return [one for one in self._store.list(parent, COLLECTION) if one["name"].partition("@")[0] == model]

    def _take_aliases(self, model: str, wanted: Sequence[str]) -> Sequence[str]:
        """The aliases of a new version; others lose them, and the first version is the default."""
        versions = self._of(model)
        aliases = [*wanted] if versions or DEFAULT in wanted else [*wanted, DEFAULT]
        for one in versions:
            kept = [alias for alias in one["versionAliases"] if alias not in aliases]
            if kept != one["versionAliases"]:
                self._store.update(one["name"], versionAliases=kept)
        return aliases

    def _shown(self, version: str) -> Resource:
        """A version as the API shows it: its name is the model's, and times are those of both."""
        kept = self._store.get(version)
        oldest = self._of(version.partition("@")[0])[-1]
        times = {"versionCreateTime": kept["createTime"], "versionUpdateTime": kept["updateTime"]}
        return {**kept, **times, "name": version.partition("@")[0], "createTime": oldest["createTime"]}
