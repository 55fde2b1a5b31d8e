"""Managed datasets: files in buckets, and how a training pipeline hands them to its job.

Tables are CSV files; images and texts are listed in import files, JSON lines or CSV. Source: Vertex AI documentation,
"Use managed datasets" and "Prepare training data", mid 2026; google-cloud-aiplatform 2.7.0, types/dataset.py.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import Dataset, ImportDataRequest

from vertex_launch.addresses import object_path
from vertex_launch.errors import Finding, Findings
from vertex_launch.local.api import filters
from vertex_launch.local.api.create_validation import name_findings
from vertex_launch.local.api.errors import ApiError, invalid
from vertex_launch.local.api.store import Resource, Store, now
from vertex_launch.local.registry import dataset_files, splits
from vertex_launch.local.registry.dataset_files import ML_USE, DatasetContent
from vertex_launch.local.registry.splits import SETS, Assignment
from vertex_launch.spec import as_json

COLLECTION = "datasets"
SCHEMA = re.compile(r"/schema/dataset/metadata/(\w+)_\d[\d.]*\.yaml$")
KINDS = {"tabular": "TABLE", "image": "IMAGE", "text": "TEXT"}  # and the titles of their schemas
KIND_LABEL = "aiplatform.googleapis.com/dataset_metadata_schema"


class Datasets:
    """All datasets of the service."""

    def __init__(self, store: Store, buckets: Path) -> None:
        self._store = store
        self._buckets = buckets

    def create(self, parent: str, message: Dataset) -> Resource:
        """Keep a new dataset; of a table, only the addresses of its files. Raises ApiError INVALID_ARGUMENT."""
        dataset = as_json(message)
        findings = [*name_findings(message.display_name), *_findings(dataset)]
        if findings:
            raise invalid(findings)
        id = self._store.new_id()
        labels = {**dataset.get("labels", {}), KIND_LABEL: KINDS[_kind(dataset)]}
        return self._store.create(f"{parent}/{COLLECTION}/{id}", dataset | {"etag": id, "labels": labels})

    def get(self, name: str) -> Resource:
        """Raises ApiError NOT_FOUND."""
        return self._store.get(name)

    def delete(self, name: str) -> None:
        """Raises ApiError NOT_FOUND."""
        self._store.delete(name)

    def import_data(self, name: str, message: ImportDataRequest) -> None:
        """Add what import files list to a dataset of images or texts.

        Raises:
            ApiError: NOT_FOUND, INVALID_ARGUMENT, or FAILED_PRECONDITION for a file that is not in its bucket.
        """
        dataset = self._store.get(name)
        if _kind(dataset) == "tabular":
            raise ApiError("INVALID_ARGUMENT", "a table is not imported; name its files when you create the dataset")
        metadata = dict(_object(dataset.get("metadata")))
        # The service copies what it imports; here the files are read again for each export.
        metadata["importConfigs"] = [*metadata.get("importConfigs", ()), *as_json(message).get("importConfigs", ())]
        grown = dataset | {"metadata": metadata}
        count = len(read(grown, self._buckets).rows)
        self._store.update(name, metadata=metadata, dataItemCount=str(count))


def export(dataset: Resource, config: Mapping[str, Any], buckets: Path, destination: str) -> dict[str, str]:
    """Split a dataset, write the sets to a bucket, and say where, in the variables that the training reads.

    Args:
        config: a pipeline's inputDataConfig.
        destination: address of the folder to write to, where `config` names none.

    Raises:
        ApiError: a file is not in its bucket, the split is impossible, or it is one that only the service can do.
    """
    for field in ("bigqueryDestination", "savedQueryId", "annotationsFilter"):
        if config.get(field):
            raise ApiError("UNIMPLEMENTED", f"inputDataConfig.{field}: the local Vertex does not know it; leave it out")
    pieces = read(dataset, buckets)
    if not pieces.rows:
        raise ApiError("FAILED_PRECONDITION", f"{dataset['name']} is empty; add rows or items to it")
    prefix = config.get("gcsDestination", {}).get("outputUriPrefix") or destination
    kind = "tables" if _kind(dataset) == "tabular" else _kind(dataset)
    title = dataset_files.title(config.get("annotationSchemaUri", "")) or kind
    id = dataset["name"].rpartition("/")[2]
    address = f"{prefix.rstrip('/')}/dataset-{id}-{title}-{now()[:-4]}Z"  # milliseconds are enough
    folder = object_path(address, buckets)
    if folder is None:
        raise ApiError("INVALID_ARGUMENT", f'"{prefix}" is no folder in a bucket; write gs://BUCKET/FOLDER')
    _write(pieces, _assignment(pieces, config), folder)
    variables = {f"AIP_{name.upper()}_DATA_URI": f"{address}/{name}-*" for name in SETS}
    return {"AIP_DATA_FORMAT": pieces.format, **variables}


def read(dataset: Resource, buckets: Path) -> DatasetContent:
    """All rows or items of a dataset; raises ApiError for what cannot be read."""
    metadata = _object(dataset.get("metadata"))
    if _kind(dataset) == "tabular":
        return dataset_files.table(metadata["inputConfig"]["gcsSource"]["uri"], buckets)
    return dataset_files.items(metadata.get("importConfigs", ()), _kind(dataset), buckets)


def _kind(dataset: Resource) -> str:
    match = SCHEMA.search(dataset.get("metadataSchemaUri", ""))
    return match[1] if match else ""


def _findings(dataset: Resource) -> Findings:
    metadata = _object(dataset.get("metadata"))
    source = _object(metadata.get("inputConfig"))
    if _kind(dataset) not in KINDS:
        known = ", ".join(f"{kind}_1.0.0.yaml" for kind in KINDS)
        yield Finding("metadataSchemaUri", f"the local Vertex has only datasets of {known}", "use one of them")
    elif _kind(dataset) != "tabular" and metadata:
        yield Finding("metadata", "belongs to tables", "leave it out and import the items")
    elif _kind(dataset) == "tabular" and "bigquerySource" in source:
        cure = "export the table to CSV files in a bucket"
        yield Finding("metadata.inputConfig", "BigQuery is not on this machine", cure)
    elif _kind(dataset) == "tabular":
        addresses = _object(source.get("gcsSource")).get("uri")
        if not (isinstance(addresses, list) and addresses and all(isinstance(one, str) for one in addresses)):
            cure = "write such as gs://BUCKET/FILE.csv"
            yield Finding("metadata.inputConfig.gcsSource.uri", "is no list of CSV files", cure)


def _object(value: Any) -> dict[str, Any]:
    """A part of a free form; what is no object has no fields."""
    return value if isinstance(value, dict) else {}


def _assignment(pieces: DatasetContent, config: Mapping[str, Any]) -> Assignment:
    """The set of each piece, by the split that the pipeline asks for; raises ApiError for one that cannot be."""
    try:
        return _table_assignment(pieces, config) if pieces.header else _item_assignment(pieces, config)
    except ValueError as error:
        raise ApiError("INVALID_ARGUMENT", f"inputDataConfig: {error}") from None


def _table_assignment(pieces: DatasetContent, config: Mapping[str, Any]) -> Assignment:
    if "predefinedSplit" in config:
        return splits.by_value(pieces.column(config["predefinedSplit"].get("key", "")))
    if "timestampSplit" in config:
        split = config["timestampSplit"]
        moments = [_moment(value) for value in pieces.column(split.get("key", ""))]
        return splits.by_time(moments, splits.fractions(split))
    if "stratifiedSplit" in config:
        split = config["stratifiedSplit"]
        return splits.by_stratum(pieces.column(split.get("key", "")), splits.fractions(split))
    if "filterSplit" in config:
        raise ValueError("filterSplit is for images and texts only; use fractionSplit")
    return splits.by_fraction(len(pieces.rows), splits.fractions(config.get("fractionSplit", {})))


def _item_assignment(pieces: DatasetContent, config: Mapping[str, Any]) -> Assignment:
    """Without a split, an item that says its use has it, and the others are dealt out."""
    for split in ("predefinedSplit", "timestampSplit", "stratifiedSplit"):
        if split in config:
            raise ValueError(f"{split} is for tables only; use fractionSplit or filterSplit")
    if "filterSplit" in config:
        return _filtered(pieces.rows, config["filterSplit"])
    dealt = splits.by_fraction(len(pieces.rows), splits.fractions(config.get("fractionSplit", {})))
    if "fractionSplit" in config:
        return dealt
    uses = splits.by_value(item.get("dataItemResourceLabels", {}).get(ML_USE, "") for item in pieces.rows)
    rest = iter(splits.by_fraction(uses.count(None), splits.DEFAULT))
    return [use or next(rest) for use in uses]


def _filtered(items: Sequence[Resource], split: Mapping[str, str]) -> Assignment:
    """The first set whose filter takes an item has it; "-" takes none."""
    wanted = {name: split.get(f"{name}Filter", "-") for name in SETS}
    known = frozenset(("labels",))
    tests = {name: filters.predicate(text, known) for name, text in wanted.items() if text != "-"}
    resources = [{"labels": _nested(item.get("dataItemResourceLabels", {}))} for item in items]
    return [next((name for name, takes in tests.items() if takes(one)), None) for one in resources]


def _nested(labels: Mapping[str, str]) -> dict[str, Any]:
    """A filter takes the dots of `labels.aiplatform.googleapis.com/ml_use` for steps downwards."""
    nested: dict[str, Any] = {}
    for label, value in labels.items():
        *steps, last = label.split(".")
        inner = nested
        for step in steps:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return nested


def _moment(text: str) -> datetime | None:
    """RFC 3339 with the offset Z, as a timestamp split demands; None for anything else."""
    try:
        return datetime.fromisoformat(text) if text.endswith("Z") and "T" in text else None
    except ValueError:
        return None


def _write(pieces: DatasetContent, assignment: Assignment, folder: Path) -> None:
    """One file a set, named as shards are; also where a set is empty, so that its address is never in vain."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        rows = [row for row, its_set in zip(pieces.rows, assignment, strict=True) if its_set == name]
        with (folder / f"{name}-00000-of-00001.{pieces.format}").open("w", encoding="utf-8", newline="") as file:
            if pieces.header:
                csv.writer(file, lineterminator="\n").writerows([pieces.header, *rows])
            else:
                file.writelines(f"{json.dumps(_used(item, name), ensure_ascii=False)}\n" for item in rows)


def _used(item: Resource, name: str) -> Resource:
    return item | {"dataItemResourceLabels": {**item.get("dataItemResourceLabels", {}), ML_USE: name}}
