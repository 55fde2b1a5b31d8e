"""What the files of a dataset hold: rows of CSV tables, or images and texts that import files list.

Source: Vertex AI documentation, "Prepare training data" for each kind, and the schemas in the public bucket
google-cloud-aiplatform, schema/dataset/ioformat, mid 2026.
"""

import csv
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertex_launch import jsons
from vertex_launch.addresses import object_path
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.registry.splits import SETS

ML_USE = "aiplatform.googleapis.com/ml_use"
TITLE = re.compile(r"/(\w+?)(?:_io_format)?_\d[\d.]*\.yaml$")

# Where an item of each kind says what it is: by address, and by value.
ITEM_KEYS = {"image": ("imageGcsUri", ""), "text": ("textGcsUri", "textContent")}

Item = dict[str, Any]


@dataclass(frozen=True)
class DatasetContent:
    """The content of a dataset: rows of a table, or items as JSON objects."""

    header: Sequence[str]  # empty for items
    rows: Sequence[Any]

    @property
    def format(self) -> str:
        """AIP_DATA_FORMAT, which is also the ending of the files."""
        return "csv" if self.header else "jsonl"

    def column(self, key: str) -> list[str]:
        """All values of one column, "" where a row is too short; raises ApiError for a column that is not there."""
        if key not in self.header:
            columns = ", ".join(self.header) or "none"
            raise ApiError("INVALID_ARGUMENT", f'the dataset has no column "{key}"; its columns are {columns}')
        index = self.header.index(key)
        return [row[index] if index < len(row) else "" for row in self.rows]


def table(addresses: Iterable[str], buckets: Path) -> DatasetContent:
    """CSV files as one table: the header is that of the first, the others repeat it or have none.

    Raises:
        ApiError: FAILED_PRECONDITION for a file that is not there or no CSV.
    """
    header: list[str] = []
    rows: list[list[str]] = []
    for address, file in _files(addresses, buckets).items():
        content = _rows(address, file)
        header = header or (content[0] if content else [])
        rows += content[1:] if content[:1] == [header] else content
    return DatasetContent(header, rows)


def items(configs: Iterable[Mapping[str, Any]], kind: str, buckets: Path) -> DatasetContent:
    """What these importConfigs list; raises ApiError for what is not there or no item of this kind."""
    return DatasetContent((), [item for config in configs for item in _items(config, kind, buckets)])


def title(schema: str) -> str:
    """image_classification of .../annotation/image_classification_1.0.0.yaml."""
    match = TITLE.search(schema)
    return match[1] if match else ""


def _items(config: Mapping[str, Any], kind: str, buckets: Path) -> Iterator[Item]:
    """What one import lists, each with the labels that go for all of it."""
    schema = config.get("importSchemaUri", "")
    if f"/{kind}_" not in schema:
        raise ApiError("INVALID_ARGUMENT", f'importSchemaUri: "{schema}" does not fit a dataset of kind {kind}')
    for address, file in _files(config.get("gcsSource", {}).get("uris", ()), buckets).items():
        found = _csv_items(address, file, kind, schema) if file.suffix == ".csv" else _json_items(address, file)
        for item in found:
            labels = {**config.get("dataItemLabels", {}), **item.get("dataItemResourceLabels", {})}
            yield item | ({"dataItemResourceLabels": labels} if labels else {})


def _files(addresses: Iterable[str], buckets: Path) -> dict[str, Path]:
    """The files that stand for these addresses, in which * may stand for anything, in the order of their names."""
    found: dict[str, Path] = {}
    for address in addresses:
        try:
            files = _matching(object_path(address, buckets), buckets)
        except OSError:  # a name that no file can have
            files = []
        if not files:
            raise ApiError("FAILED_PRECONDITION", f"{address} is not in the local buckets; upload it first")
        found |= {f"gs://{file.relative_to(buckets).as_posix()}": file for file in files}
    return dict(sorted(found.items()))


def _matching(path: Path | None, buckets: Path) -> list[Path]:
    if path is None:
        return []
    if path.is_file():
        return [path]
    pattern = path.relative_to(buckets).as_posix()
    matching = [buckets / name for name in sorted(glob.glob(pattern, root_dir=buckets, recursive=True))]
    return [file for file in matching if file.is_file()]


def _rows(address: str, file: Path) -> list[list[str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return [row for row in csv.reader(lines, strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ApiError("FAILED_PRECONDITION", f"{address}: is no CSV file in UTF-8 ({error}); mend it") from None


def _json_items(address: str, file: Path) -> Iterator[Item]:
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            item = jsons.loads(line) if line.strip() else {}
        except ValueError:
            item = None
        if not (isinstance(item, dict) and isinstance(item.get("dataItemResourceLabels", {}), dict)):
            raise ApiError("INVALID_ARGUMENT", f"{address}: line {number} is no item in JSON; write one item a line")
        if item:
            yield item


def _csv_items(address: str, file: Path, kind: str, schema: str) -> Iterator[Item]:
    """Lines of the form [ML_USE],ADDRESS,LABEL..., as classification has them."""
    if "classification" not in schema:
        raise ApiError("UNIMPLEMENTED", f"{address}: of CSV only classification is read here; import JSON lines")
    for number, row in enumerate(_rows(address, file), start=1):
        item = _csv_item(row, kind, "multi_label" in schema)
        if item is None:
            cure = "write [ML_USE],gs://BUCKET/FILE,LABEL"
            raise ApiError("INVALID_ARGUMENT", f"{address}: row {number} is no item of {title(schema)}; {cure}")
        yield item


def _csv_item(row: Sequence[str], kind: str, several: bool) -> Item | None:
    """One item, None if the row is none; with `several`, it may have more than one label."""
    use = row[0].lower() if row[0].lower() in SETS else ""
    content, *labels = [*(row[1:] if use or not row[0] else row), ""]
    annotations = [{"displayName": label} for label in labels if label]
    by_address, by_value = ITEM_KEYS[kind]
    key = by_address if content.startswith("gs://") else by_value
    if not (key and content and (several or len(annotations) < 2)):
        return None
    item: Item = {key: content}
    if several:
        item["classificationAnnotations"] = annotations
    elif annotations:
        item["classificationAnnotation"] = annotations[0]
    return item | ({"dataItemResourceLabels": {ML_USE: use}} if use else {})
