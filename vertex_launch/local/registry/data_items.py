"""Items of datasets and their annotations, which clients can list: they are read again from the import files.

Source: google-cloud-aiplatform 2.7.0, types/data_item.py and types/annotation.py.
"""

from collections.abc import Sequence

from google.cloud.aiplatform_v1.types.annotation import Annotation
from google.cloud.aiplatform_v1.types.data_item import DataItem

from vertex_launch.job_resource import Resource
from vertex_launch.local.api.collection import Act, Collection
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.registry import datasets

COLLECTION = f"{datasets.COLLECTION}/*/dataItems"
SCHEMAS = "gs://google-cloud-aiplatform/schema/dataset/annotation"
# Field of an item -> what its annotations are, in the name of their schema.
ANNOTATIONS = {
    "classificationAnnotation": "classification",
    "classificationAnnotations": "classification",
    "boundingBoxAnnotations": "bounding_box",
    "segmentationAnnotation": "segmentation",
    "sentimentAnnotation": "sentiment",
    "textSegmentAnnotations": "extraction",
}
LABELS = "dataItemResourceLabels"


class DataItems(Collection):
    """Items of all datasets; tables have none. An item's id is its number in the import files."""

    collection, message = COLLECTION, DataItem

    def methods(self) -> dict[str, Act]:
        listed = f"GET {self.collection}"
        return {listed: super().methods()[listed]}

    def list(self, parent: str) -> Sequence[Resource]:
        """List a dataset's items in their order; raises ApiError, also for an import file that is gone."""
        dataset, items = self._store.get(parent), self.items(parent)
        times = {key: dataset[key] for key in ("createTime", "updateTime")}
        return [{"name": f"{parent}/dataItems/{number}", **times, **_shown(item)} for number, item in items.items()]

    def items(self, dataset: str) -> dict[str, Resource]:
        """Return a dataset's items, as in the import files, by id; raises ApiError."""
        content = datasets.read(self._store.get(dataset), self._buckets)
        return {str(number): item for number, item in enumerate(() if content.header else content.rows, start=1)}


class Annotations(DataItems):
    """Annotations of all items."""

    collection, message = f"{COLLECTION}/*/annotations", Annotation

    def list(self, parent: str) -> Sequence[Resource]:
        """List an item's annotations; raises ApiError NOT_FOUND."""
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


def _shown(item: Resource) -> Resource:
    payload = {key: value for key, value in item.items() if key not in (LABELS, *ANNOTATIONS)}
    return {"payload": payload} | ({"labels": item[LABELS]} if LABELS in item else {})
