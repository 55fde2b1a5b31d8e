"""Reads a dataset's files, which are CSV tables or import files. An import file lists image or text items.

Source: Vertex AI documentation, "Prepare training data" for each data type, and the schemas in the public bucket
google-cloud-aiplatform, schema/dataset/ioformat, mid-2026.
"""

import contextlib
import csv
import glob
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertex_launch.job.addresses import object_path
from vertex_launch.local.api.errors import ApiError
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.regular_file import read_regular

SETS = ("training", "validation", "test")
LABELS = "dataItemResourceLabels"  # the field of an item that contains its labels
ML_USE = "aiplatform.googleapis.com/ml_use"  # the label that assigns an item to a set
TITLE = re.compile(r"/(\w+?)(?:_io_format)?_\d[\d.]*\.yaml$")

# Kind of dataset -> the fields for an item's content as a URI and as a value.
ITEM_KEYS = {"image": ("imageGcsUri", ""), "text": ("textGcsUri", "textContent")}

# A part of the schema's name -> the row format of the import files.
BOXES = "bounding_box"
CSV_FORMS = {
    "classification": "[ML_USE],gs://BUCKET/FILE,LABEL",
    BOXES: "[ML_USE],gs://BUCKET/FILE,LABEL,X_MIN,Y_MIN,,,X_MAX,Y_MAX,, with coordinates from 0 to 1",
}

Item = dict[str, Any]


@dataclass(frozen=True)
class DatasetContent:
    """The contents of a dataset, which are either table rows or items (JSON objects)."""

    header: Sequence[str]  # empty for items
    rows: Sequence[Any]

    @property
    def format(self) -> str:
        """The value of AIP_DATA_FORMAT, which is also the suffix of the exported files."""
        return "csv" if self.header else "jsonl"

    def column(self, key: str) -> list[str]:
        """Return all values of a table column. If a row lacks the column, its value is "".

        Raises ApiError if the column doesn't exist.
        """
        if key not in self.header:
            columns = ", ".join(self.header) or "none"
            raise ApiError("INVALID_ARGUMENT", f'the dataset doesn\'t have a column "{key}"; its columns are {columns}')
        index = self.header.index(key)
        return [row[index] if index < len(row) else "" for row in self.rows]


def table(addresses: Iterable[str], buckets: Path) -> DatasetContent:
    """Read CSV files as one table. The first file contains the header, which the other files can repeat.

    Raises ApiError if a file isn't valid.
    """
    files = [rows for address, file in _files(addresses, buckets).items() if (rows := _rows(address, file))]
    header = files[0][0] if files else []
    return DatasetContent(header, [row for rows in files for row in (rows[1:] if rows[0] == header else rows)])


def items(configs: Iterable[Mapping[str, Any]], kind: str, buckets: Path) -> DatasetContent:
    """Read the items that the importConfigs in `configs` specify.

    Raises ApiError if a file is missing or an item isn't valid.
    """
    return DatasetContent((), [item for config in configs for item in _items(config, kind, buckets)])


def title(schema: str) -> str:
    """Return a schema's title, such as image_classification for .../annotation/image_classification_1.0.0.yaml."""
    match = TITLE.search(schema)
    return match[1] if match else ""


def _items(config: Mapping[str, Any], kind: str, buckets: Path) -> Iterator[Item]:
    """Yield the items of one import. Add the import's common labels to each item."""
    schema = config.get("importSchemaUri", "")
    if f"/{kind}_" not in schema:
        raise ApiError("INVALID_ARGUMENT", f'importSchemaUri: "{schema}" isn\'t a schema for datasets of kind {kind}')
    for address, file in _files(config.get("gcsSource", {}).get("uris", ()), buckets).items():
        for item in _csv_items(address, file, kind, schema) if file.suffix == ".csv" else _json_items(address, file):
            labels = {**config.get("dataItemLabels", {}), **item.get(LABELS, {})}
            yield item | ({LABELS: labels} if labels else {})


def _files(addresses: Iterable[str], buckets: Path) -> dict[str, Path]:
    """Return the local files for these URIs, keyed and sorted by URI. A URI can contain wildcards."""
    files: dict[str, Path] = {}
    for address in addresses:
        names: list[str] = []
        if path := object_path(address, buckets):
            with contextlib.suppress(OSError):  # the name isn't valid for a file
                pattern = path.relative_to(buckets).as_posix()
                matching = [pattern] if path.is_file() else glob.glob(pattern, root_dir=buckets, recursive=True)
                names = [name for name in matching if (buckets / name).is_file()]
        if not names:
            raise ApiError("FAILED_PRECONDITION", f"{address} isn't in the local buckets; upload the file first")
        files |= {f"gs://{name}": buckets / name for name in names}
    return dict(sorted(files.items()))


def _rows(address: str, file: Path) -> list[list[str]]:
    try:
        lines = io.StringIO(read_regular(file).decode("utf-8-sig"), newline="")
        return [row for row in csv.reader(lines, strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ApiError("FAILED_PRECONDITION", f"{address} isn't a valid UTF-8 CSV file: {error}; correct it") from None


def _json_items(address: str, file: Path) -> Iterator[Item]:
    for number, line in enumerate(read_regular(file).splitlines(), start=1):
        try:
            item = jsons.loads(line) if line.strip() else {}
        except ValueError:
            item = None
        if not (isinstance(item, dict) and isinstance(item.get(LABELS, {}), dict)):
            raise ApiError("INVALID_ARGUMENT", f"{address}: line {number} isn't a JSON item; write one item per line")
        if item:
            yield item


def _csv_items(address: str, file: Path, kind: str, schema: str) -> Iterator[Item]:
    """Yield the items in a CSV file. Raises ApiError if the schema isn't supported or a row isn't valid."""
    form = next((form for form in CSV_FORMS if form in schema), "")
    if not form:
        message = f"{address}: CSV files are supported only for classification and bounding boxes; use JSON Lines"
        raise ApiError("UNIMPLEMENTED", message)
    boxed: dict[str, Item] = {}  # image URI -> item; each row contains one box of an image
    for number, row in enumerate(_rows(address, file), start=1):
        item = _boxed_item(row) if form == BOXES else _csv_item(row, kind, "multi_label" in schema)
        if item is None:
            fault = f"{address}: row {number} isn't a valid {title(schema)} item"
            raise ApiError("INVALID_ARGUMENT", f"{fault}; use {CSV_FORMS[form]}")
        if form != BOXES:
            yield item
        elif (first := boxed.setdefault(item["imageGcsUri"], item)) is not item:
            first["boundingBoxAnnotations"] += item["boundingBoxAnnotations"]
    yield from boxed.values()


def _cells(row: Sequence[str]) -> tuple[Item, list[str]]:
    """Return a row's ML use as an item field, and the row's remaining cells.

    The first remaining cell is the item's content.
    """
    use = row[0].lower() if row[0].lower() in SETS else ""
    return {LABELS: {ML_USE: use}} if use else {}, [*(row[1:] if use or not row[0] else row), ""]


def _csv_item(row: Sequence[str], kind: str, multi_label: bool) -> Item | None:
    """Return the item in a classification row. Return None if the row isn't valid."""
    use, (content, *labels) = _cells(row)
    annotations = [{"displayName": label} for label in labels if label]
    by_address, by_value = ITEM_KEYS[kind]
    key = by_address if content.startswith("gs://") else by_value
    if not (key and content and (multi_label or len(annotations) < 2)):
        return None
    item: Item = {key: content}
    if multi_label:
        item["classificationAnnotations"] = annotations
    elif annotations:
        item["classificationAnnotation"] = annotations[0]
    return item | use


def _boxed_item(row: Sequence[str]) -> Item | None:
    """Return a row's image as an item, including its bounding box, if any. Return None if the row isn't valid."""
    use, (content, *cells) = _cells(row)
    if not content.startswith("gs://"):
        return None
    item = {"imageGcsUri": content, "boundingBoxAnnotations": []} | use
    if not any(cells):
        return item
    try:
        label, (x_min, y_min, x_max, y_max) = cells[0], [float(cells[index]) for index in (1, 2, 5, 6)]
    except (IndexError, ValueError):
        return None
    if not (label and 0 <= x_min <= x_max <= 1 and 0 <= y_min <= y_max <= 1):
        return None
    box = {"displayName": label, "xMin": x_min, "yMin": y_min, "xMax": x_max, "yMax": y_max}
    return item | {"boundingBoxAnnotations": [box]}
