"""The model registry, which stores the models and model versions that pipelines and clients upload.

A version is stored under the name projects/P/locations/L/models/ID@VERSION. The evaluations that clients import for a
version are stored under the version's name.
Source: google-cloud-aiplatform 2.7.0, types/model.py, model_evaluation.py and model_service.py.
"""

import re
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import model_service as service
from google.cloud.aiplatform_v1.types.model import Model
from google.cloud.aiplatform_v1.types.model_evaluation import ModelEvaluation
from google.cloud.aiplatform_v1.types.model_evaluation_slice import ModelEvaluationSlice

from vertex_launch.errors import Finding
from vertex_launch.facts import labels
from vertex_launch.facts.labels import name_findings
from vertex_launch.job.addresses import object_path
from vertex_launch.job.job_resource import Resource, camel, id_of
from vertex_launch.job.spec import as_json
from vertex_launch.local.api.collection import TYPES, Act, Collection, fields, new_folder, read_message, without_output
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.http import Call

COLLECTION = "models"
EVALUATIONS = "/evaluations"
DEFAULT = "default"  # the alias of the default version
ID = re.compile("[a-z_][a-z0-9_-]{0,62}")
ALIAS = re.compile("[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
EXPORT_FORMAT = "custom-trained"

# Fields that clients can change in all versions of a model (False) or in one version (True). Source:
# UpdateModelRequest.
CHANGEABLE = {False: ("displayName", "description", "labels"), True: ("versionDescription", "labels")}
NOT_COPIED = {"versionAliases", "etag", *map(camel, Collection.output_only)}
# Fields that Vertex AI sets for a model with a container; inferred from public outputs of `models describe`.
OF_CONTAINERS = {
    "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES"],
    "supportedInputStorageFormats": ["jsonl", "bigquery", "csv", "tf-record", "tf-record-gzip", "file-list"],
    "supportedOutputStorageFormats": ["jsonl", "bigquery"],
}


class Models(Collection):
    """A thread-safe collection of all models in the registry."""

    collection, message, hidden, verbs = COLLECTION, Model, ("model",), ("GET", "PATCH", "DELETE")
    _lock = threading.Lock()  # one lock for all instances, because they share a store

    def methods(self) -> dict[str, Act]:
        member = f"{COLLECTION}/*"
        return super().methods() | {
            f"GET {member}:listVersions": lambda call, name: self.page(call, self.list_versions(name)),
            f"DELETE {member}:deleteVersion": lambda call, name: self.delete_version(name),
            f"POST {member}:mergeVersionAliases": self._merge_aliases,
            f"POST {member}:export": self._export,
            f"POST {COLLECTION}:upload": self._upload,
            f"POST {COLLECTION}:copy": self._copy,
        }

    def upload(self, parent: str, model: Resource, model_id: str = "", parent_model: str = "") -> Resource:
        """Register a model, or a new version of `parent_model`, with the artifacts in the model's folder, if any.

        Raises ApiError if the model isn't valid or the artifact folder is empty.
        """
        if model.get("artifactUri"):
            self._folder(model["artifactUri"])
        with self._lock:
            self.check(parent, model, model_id, parent_model, "model")
            name = parent_model.partition("@")[0] or f"{parent}/{COLLECTION}/{model_id or self._store.new_id()}"
            versions = self._versions(name)
            version = str(max((int(stored["versionId"]) for stored in versions), default=0) + 1)
            aliases = [*dict.fromkeys((*model.get("versionAliases", ()), *(() if versions else (DEFAULT,))))]
            added = {"versionId": version, "versionAliases": aliases, "etag": version}
            created = self._store.create(f"{name}@{version}", {**model, **added})
            self._take(aliases, versions)
            return self._as_model(created)

    def check(
        self, parent: str, model: Resource, model_id: str = "", parent_model: str = "", place: str = "modelToUpload"
    ) -> None:
        """Raise ApiError if `upload` would reject the model regardless of the contents of its artifact folder."""
        findings = [*name_findings(model.get("displayName", "")), *labels.of_all(model.get("labels", {}))]
        refuse(finding.below(place) for finding in findings)
        models = f"{parent}/{COLLECTION}"
        if parent_model and not parent_model.startswith(f"{models}/"):
            raise ApiError("INVALID_ARGUMENT", f'parentModel: "{parent_model}" isn\'t under {models}')
        if parent_model and not self._versions(parent_model.partition("@")[0]):
            raise ApiError("NOT_FOUND", f"{parent_model} does not exist")
        if model_id and not ID.fullmatch(model_id):
            raise ApiError(
                "INVALID_ARGUMENT",
                f'modelId: "{model_id}" isn\'t a valid ID; begin with a-z or _, and use only a-z, 0-9, -, and _',
            )
        if model_id and not parent_model and self._versions(f"{models}/{model_id}"):
            raise ApiError("ALREADY_EXISTS", f"{models}/{model_id} already exists; set it as parentModel")
        _check_aliases(model.get("versionAliases", ()))

    def get(self, name: str) -> Resource:
        """Return a model version.

        NAME selects the default version. NAME@NUMBER and NAME@ALIAS select a specific version. If `name` selects a
        specific version, the name in the returned model ends with @NUMBER. Raises ApiError NOT_FOUND if the version
        doesn't exist.
        """
        return self._as_model(self.version(name), versioned="@" in name)

    def version(self, name: str) -> Resource:
        """Return a model version in the store's format. Raises ApiError NOT_FOUND if the version doesn't exist."""
        model, _, version = name.partition("@")
        for stored in self._versions(model):
            if version == stored["versionId"] or (version or DEFAULT) in stored["versionAliases"]:
                return stored
        raise ApiError("NOT_FOUND", f"{name} does not exist")

    def list(self, parent: str) -> Sequence[Resource]:
        """List the default version of every model, newest first."""
        versions = self._store.list(parent, COLLECTION)
        return [self._as_model(version) for version in versions if DEFAULT in version["versionAliases"]]

    def list_versions(self, name: str) -> Sequence[Resource]:
        """List all versions of a model, oldest first. The names of the versions end with @VERSION.

        Raises ApiError NOT_FOUND if the model doesn't exist.

        Source: tests/system/aiplatform/test_model_version_management.py of google-cloud-aiplatform 2.7.0.
        """
        model = self.get(name.partition("@")[0])["name"]
        return [self._as_model(version, versioned=True) for version in reversed(self._versions(model))]

    def update(self, name: str, changed: Mapping[str, Any]) -> Resource:
        """Change all versions of a model. If `name` is NAME@VERSION, change only that version.

        Raises ApiError if `changed` contains an immutable field.
        """
        versioned = "@" in name and not name.endswith("@-")
        if wrong := [field for field in changed if field not in CHANGEABLE[versioned]]:
            kind, allowed = "version" if versioned else "model", ", ".join(CHANGEABLE[versioned])
            raise ApiError("FAILED_PRECONDITION", f"updateMask: a {kind}'s {wrong[0]} can't be changed; use {allowed}")
        if "displayName" in changed:
            refuse(name_findings(changed["displayName"] or ""))
        name = name.removesuffix("@-")
        with self._lock:
            version = self.version(name)
            for stored in [version] if versioned else self._versions(name):
                super().update(stored["name"], changed)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Delete a model and all its versions. Raises ApiError NOT_FOUND if the model doesn't exist."""
        with self._lock:
            for version in self._versions(self.get(name.partition("@")[0])["name"]):
                self._store.delete(version["name"])

    def delete_version(self, name: str) -> None:
        """Delete a version. Raises ApiError if the version doesn't exist or is the default version."""
        with self._lock:
            version = self.version(name)
            if DEFAULT in version["versionAliases"]:
                message = f"{name} is the default version; delete the model, or move the alias to a different version"
                raise ApiError("FAILED_PRECONDITION", message)
            self._store.delete(version["name"])

    def _merge_aliases(self, call: Call, name: str) -> Resource:
        """Move aliases from other versions to this one. Remove the aliases that begin with a minus sign."""
        changes = read_message(call, service.MergeVersionAliasesRequest).version_aliases
        removed = {alias[1:] for alias in changes if alias.startswith("-")}
        added = [alias for alias in changes if not alias.startswith("-")]
        _check_aliases([*added, *removed])
        with self._lock:
            version = self.version(name)
            if DEFAULT in removed & {*version["versionAliases"]}:
                message = f"{name} is the default version; to move the alias, assign it to a different version"
                raise ApiError("FAILED_PRECONDITION", message)
            aliases = [alias for alias in dict.fromkeys((*version["versionAliases"], *added)) if alias not in removed]
            self._store.update(version["name"], versionAliases=aliases)
            others = [other for other in self._versions(name.partition("@")[0]) if other["name"] != version["name"]]
            self._take(added, others)
        return self._shown(call, [self.get(name)])[0]

    def _copy(self, call: Call, name: str) -> Resource:
        """Register a copy of a version, usually in a different location. The version's artifacts aren't copied."""
        message, parent = read_message(call, service.CopyModelRequest), name.rpartition("/")[0]
        source = self.get(message.source_model)
        if source["name"].split("/")[:2] != parent.split("/")[:2]:
            raise ApiError("INVALID_ARGUMENT", f"sourceModel: {message.source_model} is in another project")
        model = {key: value for key, value in source.items() if key in fields(Model) - NOT_COPIED}
        model["originalModelInfo"] = {"model": message.source_model}
        return _answer("CopyModelResponse", self.upload(parent, model, message.model_id, message.parent_model))

    def _export(self, call: Call, name: str) -> Resource:
        """Copy a version's artifacts to a new folder in a bucket, and return the folder's URI."""
        model, config = self.get(name), read_message(call, service.ExportModelRequest).output_config
        formats = [str(format["id"]) for format in model.get("supportedExportFormats", ())]
        if config.export_format_id not in formats:
            cure = f"use {formats[0]}" if formats else "to export a model, add artifacts and a container"
            refuse([Finding("outputConfig.exportFormatId", f'"{config.export_format_id}" isn\'t supported', cure)])
        name, prefix = f"model-export-{model['displayName']}", config.artifact_destination.output_uri_prefix
        address, target = new_folder(prefix, name, self._buckets)
        # The target folder can be inside the model's own folder.
        shutil.copytree(
            self._folder(model["artifactUri"]), target, symlinks=True, ignore=shutil.ignore_patterns(target.name)
        )
        kind = f"{TYPES}cloud.aiplatform.v1.ExportModel"
        metadata = {"@type": f"{kind}OperationMetadata", "outputInfo": {"artifactOutputUri": address}}
        return {"response": {"@type": f"{kind}Response"}, "metadata": metadata}

    def _upload(self, call: Call, name: str) -> Resource:
        message = read_message(call, service.UploadModelRequest)
        model, parent = as_json(without_output(message.model)), name.rpartition("/")[0]
        return _answer("UploadModelResponse", self.upload(parent, model, message.model_id, message.parent_model))

    def _folder(self, artifact_uri: str) -> Path:
        """Return the folder that contains a model's artifacts.

        Raises ApiError FAILED_PRECONDITION if the folder is empty.
        """
        folder = object_path(artifact_uri, self._buckets)
        if folder is None or not any(path.is_file() for path in folder.rglob("*")):
            cure = "save the model in that folder. A training job must save the model in $AIP_MODEL_DIR"
            raise ApiError("FAILED_PRECONDITION", f"{artifact_uri} is empty, so it doesn't contain a model; {cure}")
        return folder

    def _versions(self, model: str) -> Sequence[Resource]:
        """Return the stored versions of a model, newest first."""
        parent = model.rpartition(f"/{COLLECTION}/")[0]
        return [stored for stored in self._store.list(parent, COLLECTION) if stored["name"].partition("@")[0] == model]

    def _take(self, aliases: Iterable[str], versions: Iterable[Resource]) -> None:
        """Remove aliases from these versions.

        Call this function only after another version has received the aliases. Otherwise, the model might
        temporarily lack a default version.
        """
        for version in versions:
            kept = [alias for alias in version["versionAliases"] if alias not in aliases]
            if kept != version["versionAliases"]:
                self._store.update(version["name"], versionAliases=kept)

    def _as_model(self, version: Resource, versioned: bool = False) -> Resource:
        """Convert a stored version to the API's format, with the model's name, times, and supported formats."""
        name = version["name"].partition("@")[0]
        times = {"versionCreateTime": version["createTime"], "versionUpdateTime": version["updateTime"]}
        shown = {**version, **times, "createTime": self._versions(name)[-1]["createTime"], "model": id_of(name)}
        if version.get("containerSpec", {}).get("imageUri"):
            shown |= OF_CONTAINERS
            if "artifactUri" in version:
                shown["supportedExportFormats"] = [{"id": EXPORT_FORMAT, "exportableContents": ["ARTIFACT"]}]
        return shown if versioned else shown | {"name": name}


class Evaluations(Collection):
    """All evaluations in the model registry. A model name without a version refers to the default version."""

    collection, message, verbs = f"{COLLECTION}/*{EVALUATIONS}", ModelEvaluation, ("GET",)

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"POST {self.collection}:import": self._import}

    def get(self, name: str) -> Resource:
        return super().get(self._stored_name(name))

    def list(self, parent: str) -> Sequence[Resource]:
        """List a version's evaluations, newest first. Raises ApiError NOT_FOUND if the version doesn't exist."""
        return super().list(Models(self._store).version(parent)["name"])

    def _import(self, call: Call, name: str) -> Resource:
        message = read_message(call, service.ImportModelEvaluationRequest).model_evaluation
        evaluation = as_json(without_output(message))
        return self._store.create(f"{self._stored_name(name)}/{self._store.new_id()}", evaluation)

    def _stored_name(self, name: str) -> str:
        model, below, id = name.rpartition(EVALUATIONS)
        return f"{Models(self._store).version(model)['name']}{below}{id}"


class Slices(Collection):
    """The evaluation slices. This list is always empty, because only Google's service creates slices."""

    collection, message, verbs = f"{Evaluations.collection}/*/slices", ModelEvaluationSlice, ("GET",)


def _check_aliases(aliases: Iterable[str]) -> None:
    """Raise ApiError INVALID_ARGUMENT for the first alias that isn't valid."""
    for alias in aliases:
        if not ALIAS.fullmatch(alias):
            raise ApiError("INVALID_ARGUMENT", f'versionAliases: "{alias}" isn\'t a valid alias; use a-z, 0-9, and -')


def _answer(kind: str, model: Resource) -> Resource:
    versions = {"model": model["name"], "modelVersionId": model["versionId"]}
    return {"@type": f"{TYPES}cloud.aiplatform.v1.{kind}", **versions}
