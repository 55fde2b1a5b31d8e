"""Managed datasets, which a training pipeline splits into sets and exports for its job.

Tables are CSV files. Import files, in JSON Lines or CSV format, list image or text items. Clients can list a dataset's
items and their annotations. The local Vertex rereads the import files on each call.
Source: Vertex AI documentation, "Use managed datasets" and "Prepare training data", mid-2026; google-cloud-aiplatform
2.7.0, types/ (dataset.py, data_item.py, annotation.py).
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.annotation import Annotation
from google.cloud.aiplatform_v1.types.data_item import DataItem
from google.cloud.aiplatform_v1.types.dataset import Dataset
from google.cloud.aiplatform_v1.types.dataset_service import ExportDataRequest, ImportDataRequest

from vertex_launch.errors import Finding, Findings
from vertex_launch.facts.labels import name_findings
from vertex_launch.job.job_resource import Resource, id_of, tidy
from vertex_launch.job.spec import as_json
from vertex_launch.local.api.collection import TYPES, Act, Collection, Records, new_folder, read_message
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.http import Call
from vertex_launch.local.registry import dataset_files
from vertex_launch.local.registry.dataset_files import LABELS, ML_USE, SETS, DatasetContent
from vertex_launch.local.registry.splits import Assignment, assignment

COLLECTION = "datasets"
DATA_ITEMS = f"{COLLECTION}/*/dataItems"
SCHEMA = re.compile(r"/schema/dataset/metadata/(\w+)_\d[\d.]*\.yaml$")
KINDS = {"tabular": "TABLE", "image": "IMAGE", "text": "TEXT"}  # kind in the schema's name -> value of KIND_LABEL
CHANGEABLE = ("displayName", "description", "labels")
SCHEMAS = "gs://google-cloud-aiplatform/schema/dataset/annotation"
# Field of an item -> the annotation type in the schema's name.
ANNOTATIONS = {
    "classificationAnnotation": "classification",
    "classificationAnnotations": "classification",
    "boundingBoxAnnotations": "bounding_box",
    "segmentationAnnotation": "segmentation",
    "sentimentAnnotation": "sentiment",
    "textSegmentAnnotations": "extraction",
}
KIND_LABEL = "aiplatform.googleapis.com/dataset_metadata_schema"


class Datasets(Collection):
    collection, message, long_running, verbs = COLLECTION, Dataset, True, Records.verbs

    def methods(self) -> dict[str, Act]:
        def add(call: Call, name: str) -> Resource:
            return self.import_data(name, read_message(call, ImportDataRequest))

        return super().methods() | {f"POST {COLLECTION}/*:import": add, f"POST {COLLECTION}/*:export": self._export}

    def create(self, parent: str, message: Dataset) -> Resource:
        """Store a new dataset without reading its files. Raises ApiError INVALID_ARGUMENT if a field isn't valid."""
        dataset = as_json(message)
        if "metadata" in dataset:  # clients spell these keys differently, as in a pipeline's inputs
            dataset["metadata"] = tidy(dataset["metadata"])
        refuse([*name_findings(message.display_name), *_findings(dataset)])
        id = self._store.new_id()
        labels = {**dataset.get("labels", {}), KIND_LABEL: KINDS[_kind(dataset)]}
        return self._store.create(f"{parent}/{COLLECTION}/{id}", dataset | {"etag": id, "labels": labels})

    def update(self, name: str, changed: Mapping[str, Any]) -> Resource:
        """Change the display name, description, or labels of a dataset.

        The label that contains the dataset's type doesn't change. Raises ApiError if `changed` contains an immutable
        field or an invalid value.
        """
        if wrong := [field for field in changed if field not in CHANGEABLE]:
            fault = f"updateMask: a dataset's {wrong[0]} can't be changed; use {', '.join(CHANGEABLE)}"
            raise ApiError("INVALID_ARGUMENT", fault)
        if "displayName" in changed:
            refuse(name_findings(changed["displayName"] or ""))
        own = {KIND_LABEL: self._store.get(name)["labels"][KIND_LABEL]}
        labels = {"labels": {**(changed["labels"] or {}), **own}} if "labels" in changed else {}
        return super().update(name, {**changed, **labels})

    def import_data(self, name: str, message: ImportDataRequest) -> Resource:
        """Add the items in import files to an image or text dataset. Raises ApiError if a file isn't valid."""
        dataset = self._store.get(name)
        if _kind(dataset) == "tabular":
            raise ApiError("INVALID_ARGUMENT", "tabular datasets don't support imports; list files when creating one")
        metadata = dict(_object(dataset.get("metadata")))
        # Vertex AI copies the items. The local Vertex reads the files again for each export.
        metadata["importConfigs"] = [*metadata.get("importConfigs", ()), *as_json(message).get("importConfigs", ())]
        grown = {**dataset, "metadata": metadata}
        count = len(read(grown, self._buckets).rows)
        self._store.update(name, metadata=metadata, dataItemCount=str(count))
        return {"@type": f"{TYPES}cloud.aiplatform.v1.ImportDataResponse"}

    def _export(self, call: Call, name: str) -> Resource:
        """Write a dataset to a new folder in a bucket.

        If the request specifies a split, write one file for each set. Without a split, write only one file.
        """
        dataset, config = self._store.get(name), as_json(read_message(call, ExportDataRequest)).get("exportConfig", {})
        content = _content(dataset, config, "exportConfig", self._buckets)
        prefix = config.get("gcsDestination", {}).get("outputUriPrefix", "")
        address, folder = new_folder(prefix, f"export-data-{dataset['displayName']}", self._buckets)
        response: dict[str, Any] = {"@type": f"{TYPES}cloud.aiplatform.v1.ExportDataResponse"}
        if {"exportUse", "fractionSplit", "filterSplit"} & config.keys():
            sets = assignment(content, config)
            _write(content, sets, folder)
            counts = {f"{one}DataItemsCount": str(sets.count(one)) for one in SETS}
            return {**response, "exportedFiles": [f"{address}/{one}-*" for one in SETS], "dataStats": counts}
        file = f"data-00001-of-00001.{content.format}"
        _write_file(folder / file, content, content.rows)
        return {**response, "exportedFiles": [f"{address}/{file}"]}


class DataItems(Collection):
    """The items of all image and text datasets. An item's ID is its position in the import files."""

    collection, message = DATA_ITEMS, DataItem

    def methods(self) -> dict[str, Act]:
        listed = f"GET {self.collection}"
        return {listed: super().methods()[listed]}

    def list(self, parent: str) -> Sequence[Resource]:
        """List a dataset's items in order. Raises ApiError if the dataset or an import file doesn't exist."""
        dataset, items = self._store.get(parent), self.items(parent)
        times = {key: dataset[key] for key in ("createTime", "updateTime")}
        return [{"name": f"{parent}/dataItems/{number}", **times, **_shown(item)} for number, item in items.items()]

    def items(self, dataset: str) -> dict[str, Resource]:
        """Return the items in a dataset's import files, keyed by ID. Raises ApiError if an import file isn't valid."""
        content = read(self._store.get(dataset), self._buckets)
        return {str(number): item for number, item in enumerate(() if content.header else content.rows, start=1)}


class Annotations(DataItems):
    collection, message = f"{DATA_ITEMS}/*/annotations", Annotation

    def list(self, parent: str) -> Sequence[Resource]:
        """List the annotations of a dataset item. Raises ApiError NOT_FOUND if the item doesn't exist."""
        dataset, _, number = parent.partition("/dataItems/")
        item = self.items(dataset).get(number)
        if item is None:
            raise ApiError("NOT_FOUND", f"{parent} does not exist")
        kind = "text" if any(key.startswith("text") for key in item) else "image"
        found = [
            {"payloadSchemaUri": f"{SCHEMAS}/{kind}_{ANNOTATIONS[key]}_1.0.0.yaml", "payload": payload}
            for key in [key for key in ANNOTATIONS if key in item]
            for payload in (item[key] if isinstance(item[key], list) else [item[key]])
        ]
        return [{"name": f"{parent}/annotations/{index}", **one} for index, one in enumerate(found, start=1)]


def export(dataset: Resource, config: Mapping[str, Any], buckets: Path, destination: str) -> dict[str, str]:
    """Split a dataset and write the sets to a bucket. Return the environment variables that describe the sets.

    `config` is a pipeline's inputDataConfig. If `config` doesn't set a folder, write the sets to `destination`. Raises
    ApiError if a dataset file is missing or the local Vertex doesn't support the split.
    """
    content = _content(dataset, config, "inputDataConfig", buckets)
    kind = _kind(dataset)
    title = dataset_files.title(config.get("annotationSchemaUri", "")) or {"tabular": "tables"}.get(kind, kind)
    prefix = config.get("gcsDestination", {}).get("outputUriPrefix") or destination
    address, folder = new_folder(prefix, f"dataset-{id_of(dataset['name'])}-{title}", buckets)
    _write(content, assignment(content, config), folder)
    variables = {f"AIP_{name.upper()}_DATA_URI": f"{address}/{name}-*" for name in SETS}
    return {"AIP_DATA_FORMAT": content.format, **variables}


def read(dataset: Resource, buckets: Path) -> DatasetContent:
    """Read all rows or items of a dataset. Raises ApiError if a file can't be read."""
    metadata = _object(dataset.get("metadata"))
    if _kind(dataset) == "tabular":
        return dataset_files.table(metadata["inputConfig"]["gcsSource"]["uri"], buckets)
    return dataset_files.items(metadata.get("importConfigs", ()), _kind(dataset), buckets)


def _content(dataset: Resource, config: Mapping[str, Any], place: str, buckets: Path) -> DatasetContent:
    """Return the rows or items to export. Raises ApiError if the dataset is empty or a field isn't supported."""
    for field in ("bigqueryDestination", "savedQueryId", "annotationsFilter"):
        if config.get(field):
            raise ApiError(
                "UNIMPLEMENTED", f"{place}.{field}: the local Vertex doesn't support this field; remove the field"
            )
    content = read(dataset, buckets)
    if not content.rows:
        raise ApiError("FAILED_PRECONDITION", f"{dataset['name']} is empty; add rows or items")
    return content


def _kind(dataset: Resource) -> str:
    match = SCHEMA.search(dataset.get("metadataSchemaUri", ""))
    return match[1] if match else ""


def _findings(dataset: Resource) -> Findings:
    metadata = _object(dataset.get("metadata"))
    source = _object(metadata.get("inputConfig"))
    if _kind(dataset) not in KINDS:
        schemas = ", ".join(f"{kind}_1.0.0.yaml" for kind in KINDS)
        yield Finding("metadataSchemaUri", f"the local Vertex supports only datasets of {schemas}", "use one of these")
    elif _kind(dataset) != "tabular" and metadata:
        yield Finding("metadata", "applies only to tabular datasets", "remove this field and import the items")
    elif _kind(dataset) == "tabular" and "bigquerySource" in source:
        cure = "export the table to CSV files in a bucket"
        yield Finding("metadata.inputConfig", "BigQuery isn't available locally", cure)
    elif _kind(dataset) == "tabular":
        addresses = _object(source.get("gcsSource")).get("uri")
        if not (isinstance(addresses, list) and addresses and all(isinstance(uri, str) for uri in addresses)):
            cure = "use a list such as [gs://BUCKET/FILE.csv]"
            yield Finding("metadata.inputConfig.gcsSource.uri", "isn't a list of CSV files", cure)


def _object(value: Any) -> dict[str, Any]:
    """Return a google.protobuf.Value as an object. Return {} if the value isn't an object."""
    return value if isinstance(value, dict) else {}


def _write(content: DatasetContent, sets: Assignment, folder: Path) -> None:
    """Write one shard for each set. An empty set also has a shard, so every URI pattern matches a file."""
    for name in SETS:
        rows = [row for row, its_set in zip(content.rows, sets, strict=True) if its_set == name]
        if not content.header:
            rows = [{**item, LABELS: {**item.get(LABELS, {}), ML_USE: name}} for item in rows]
        _write_file(folder / f"{name}-00000-of-00001.{content.format}", content, rows)


def _write_file(file: Path, content: DatasetContent, rows: Sequence[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as written:
        if content.header:
            csv.writer(written, lineterminator="\n").writerows([content.header, *rows])
        else:
            written.writelines(f"{json.dumps(item, ensure_ascii=False)}\n" for item in rows)


def _shown(item: Resource) -> Resource:
    payload = {key: value for key, value in item.items() if key not in (LABELS, *ANNOTATIONS)}
    return {"payload": payload} | ({"labels": item[LABELS]} if LABELS in item else {})
