"""Managed datasets."""

import json

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform import schema
from google.cloud.aiplatform_v1 import DatasetServiceClient
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Service
from tests.fidelity.usages import DOCS, NOTEBOOKS, SAMPLES, SNIPPETS, SYSTEM, put, usage

IMAGES = "gs://b/1.jpg,daisy\ngs://b/2.jpg,tulip\n"
ONE_LABEL = schema.dataset.ioformat.image.single_label_classification
TEXT_LABEL = schema.dataset.ioformat.text.single_label_classification
TABULAR = "gs://google-cloud-aiplatform/schema/dataset/metadata/tabular_1.0.0.yaml"


def table(name: str) -> aiplatform.TabularDataset:
    return aiplatform.TabularDataset.create(display_name=name, gcs_source=put(f"tables/{name}.csv", "x,y\n1,2\n"))


@usage(f"{SAMPLES}/create_and_import_dataset_tabular_gcs_sample.py")
def table_of_a_bucket(vertex: Service) -> None:
    """Create a table from a CSV file in a bucket."""
    dataset = table("one-file")
    dataset.wait()
    assert dataset.resource_name.startswith(f"{PARENT}/datasets/")
    assert sorted(dataset.column_names) == ["x", "y"]


@usage(f"{SYSTEM}/test_dataset.py")
def table_of_two_files(vertex: Service) -> None:
    """Create a table from two files, with labels."""
    files = [put(f"tables/{name}.csv", "x,y\n1,2\n") for name in ("first", "second")]
    dataset = aiplatform.TabularDataset.create(display_name="two", gcs_source=files, labels={"team": "tables"})
    assert dataset.gca_resource.metadata["inputConfig"]["gcsSource"]["uri"] == files
    assert dataset.labels["team"] == "tables"


@usage(f"{SAMPLES}/create_and_import_dataset_image_sample.py")
def images_of_a_list(vertex: Service) -> None:
    """Create a dataset of images from a list with labels."""
    dataset = aiplatform.ImageDataset.create(
        display_name="flowers", gcs_source=[put("flowers.csv", IMAGES)], import_schema_uri=ONE_LABEL, sync=True
    )
    assert aiplatform.ImageDataset(dataset.name).gca_resource.data_item_count == 2


@usage(f"{SAMPLES}/image_dataset_create_sample.py")
def empty_images(vertex: Service) -> None:
    """Create an empty dataset of images."""
    dataset = aiplatform.ImageDataset.create(display_name="empty")
    assert dataset.metadata_schema_uri == schema.dataset.metadata.image
    assert dataset.name == dataset.resource_name.rpartition("/")[2]


@usage(f"{SAMPLES}/image_dataset_import_data_sample.py")
def imported_later(vertex: Service) -> None:
    """Import images into an existing dataset."""
    dataset = aiplatform.ImageDataset.create(display_name="later")
    again = aiplatform.ImageDataset(dataset.name)
    again.import_data(gcs_source=put("later.csv", IMAGES), import_schema_uri=ONE_LABEL, sync=True)
    assert aiplatform.ImageDataset(dataset.name).gca_resource.data_item_count == 2


@usage(f"{SAMPLES}/image_dataset_create_object_detection_sample.py")
def boxes(vertex: Service) -> None:
    """Create a dataset of images with bounding boxes."""
    rows = "TRAINING,gs://b/1.jpg,daisy,0.1,0.1,,,0.3,0.3,,\nTEST,gs://b/2.jpg,tulip,0.2,0.2,,,0.6,0.6,,\n"
    dataset = aiplatform.ImageDataset.create(
        display_name="boxes",
        gcs_source=put("boxes.csv", rows),
        import_schema_uri=schema.dataset.ioformat.image.bounding_box,
    )
    assert aiplatform.ImageDataset(dataset.name).gca_resource.data_item_count == 2


@usage(f"{SAMPLES}/create_and_import_dataset_text_sample.py")
def texts_of_a_list(vertex: Service) -> None:
    """Create a dataset of texts from a list with labels."""
    rows = '"a good day",happy\n"a bad day",sad\n'
    dataset = aiplatform.TextDataset.create(
        display_name="moods", gcs_source=put("moods.csv", rows), import_schema_uri=TEXT_LABEL
    )
    assert aiplatform.TextDataset(dataset.name).gca_resource.data_item_count == 2


@usage(f"{SAMPLES}/import_data_text_classification_single_label_sample.py")
def texts_as_json(vertex: Service) -> None:
    """Import texts as JSON lines."""
    row = {"textContent": "a good day", "classificationAnnotation": {"displayName": "happy"}}
    dataset = aiplatform.TextDataset.create(display_name="json")
    dataset.import_data(gcs_source=put("moods.jsonl", json.dumps(row)), import_schema_uri=TEXT_LABEL)
    assert aiplatform.TextDataset(dataset.name).gca_resource.data_item_count == 1


@usage(f"{NOTEBOOKS}/pipelines/automl_tabular_classification_beans.ipynb")
def listed(vertex: Service) -> None:
    """List tables by display name, and get the newest table."""
    for _ in range(2):
        last = table("beans")
    found = aiplatform.TabularDataset.list(filter="display_name=beans", order_by="create_time desc")
    assert (len(found), found[0].name) == (2, last.name)


@usage(f"{NOTEBOOKS}/custom/custom-tabular-bq-managed-dataset.ipynb")
def deleted(vertex: Service) -> None:
    """Delete a dataset."""
    dataset = table("deleted")
    dataset.delete()
    with pytest.raises(NotFound):
        aiplatform.TabularDataset(dataset.name)


@usage(f"{DOCS}: google.cloud.aiplatform.TabularDataset.update")
def updated(vertex: Service) -> None:
    """Change a dataset's display name, description and labels."""
    dataset = table("before")
    dataset.update(display_name="after", description="changed", labels={"team": "tables"})
    changed = aiplatform.TabularDataset(dataset.name)
    assert (changed.display_name, changed.gca_resource.description) == ("after", "changed")
    assert changed.labels["team"] == "tables"


@usage(f"{DOCS}: google.cloud.aiplatform.ImageDataset.export_data")
def exported(vertex: Service) -> None:
    """Export a dataset of images to a folder of a bucket."""
    dataset = aiplatform.ImageDataset.create(
        display_name="exported", gcs_source=put("exported.csv", IMAGES), import_schema_uri=ONE_LABEL
    )
    files = dataset.export_data(output_dir="gs://b/exported-data")
    assert all(name.startswith("gs://b/exported-data/") for name in files)
    assert [*(vertex.state_dir / "gcs/b/exported-data").rglob("*.jsonl")]


@usage(f"{DOCS}: ListDataItems")
def items(vertex: Service) -> None:
    """List the items of a dataset of images."""
    dataset = aiplatform.ImageDataset.create(
        display_name="items", gcs_source=put("items.csv", IMAGES), import_schema_uri=ONE_LABEL
    )
    found = gapic(DatasetServiceClient, vertex).list_data_items(parent=dataset.resource_name)
    assert len([*found]) == 2


@usage(f"{SNIPPETS}/dataset_service/create_dataset_tabular_gcs_sample.py")
def table_by_gapic(vertex: Service) -> None:
    """Create a table with the generated client, with metadata in snake_case."""
    metadata = {"input_config": {"gcs_source": {"uri": [put("tables/gapic.csv", "x,y\n1,2\n")]}}}
    dataset = {"display_name": "gapic", "metadata_schema_uri": TABULAR}
    dataset["metadata"] = json_format.ParseDict(metadata, Value())
    response = gapic(DatasetServiceClient, vertex).create_dataset(parent=PARENT, dataset=dataset)
    assert response.result(timeout=60).name.startswith(f"{PARENT}/datasets/")


@usage(f"{SNIPPETS}/dataset_service/create_dataset_image_sample.py")
def images_by_gapic(vertex: Service) -> None:
    """Create a dataset of images with the generated client."""
    dataset = {"display_name": "gapic images", "metadata_schema_uri": schema.dataset.metadata.image}
    client = gapic(DatasetServiceClient, vertex)
    created = client.create_dataset(parent=PARENT, dataset=dataset).result(timeout=60)
    assert client.get_dataset(name=created.name).display_name == "gapic images"


@usage(f"{SNIPPETS}/dataset_service/import_data_text_classification_single_label_sample.py")
def import_by_gapic(vertex: Service) -> None:
    """Import texts with the generated client."""
    dataset = aiplatform.TextDataset.create(display_name="gapic texts")
    config = {"gcs_source": {"uris": [put("gapic.csv", "hello,happy\n")]}, "import_schema_uri": TEXT_LABEL}
    client = gapic(DatasetServiceClient, vertex)
    name = client.dataset_path("p", "us-central1", dataset.name)
    assert client.import_data(name=name, import_configs=[config]).result(timeout=60) is not None
    assert client.get_dataset(name=name).data_item_count == 1


@usage(f"{SNIPPETS}/dataset_service/delete_dataset_sample.py")
def deleted_by_gapic(vertex: Service) -> None:
    """Delete a dataset with the generated client."""
    dataset, client = table("gapic-delete"), gapic(DatasetServiceClient, vertex)
    client.delete_dataset(name=dataset.resource_name).result(timeout=60)
    assert [*client.list_datasets(request={"parent": PARENT, "filter": 'display_name="gapic-delete"'})] == []


@usage(f"{SAMPLES}/create_and_import_dataset_tabular_bigquery_sample.py", absent="BigQuery")
def table_of_bigquery(vertex: Service) -> None:
    """Create a table from BigQuery."""
    aiplatform.TabularDataset.create(display_name="bigquery", bq_source="bq://p.dataset.table")


@usage(f"{SAMPLES}/create_and_import_dataset_time_series_gcs_sample.py", absent="datasets of")
def time_series(vertex: Service) -> None:
    """Create a dataset of time series."""
    aiplatform.TimeSeriesDataset.create(display_name="series", gcs_source=put("series.csv", "t,y\n1,2\n"))


@usage(f"{SAMPLES}/create_and_import_dataset_video_sample.py", absent="datasets of")
def videos(vertex: Service) -> None:
    """Create a dataset of videos."""
    aiplatform.VideoDataset.create(display_name="videos")


@usage(f"{NOTEBOOKS}/datasets/get_started_with_data_labeling.ipynb", absent="dataLabelingJobs")
def labelled_by_people(vertex: Service) -> None:
    """Create a labeling job for a dataset."""
    job = {"display_name": "labels", "datasets": [f"{PARENT}/datasets/1"], "labeler_count": 1}
    more = {"instruction_uri": "gs://b/i.pdf", "inputs_schema_uri": "gs://b/s.yaml"}
    gapic(aiplatform.gapic.JobServiceClient, vertex).create_data_labeling_job(
        parent=PARENT, data_labeling_job=job | more
    )
