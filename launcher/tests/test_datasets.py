"""Datasets and their splits: real files in a folder of buckets, messages as the SDK sends them."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform
from google.cloud.aiplatform import schema
from google.cloud.aiplatform_v1.types import Dataset, ImportDataRequest

from launcher.tests.sdk import prepare
from launcher.tests.vertex import Service, service
from vertex_launch.job.job_resource import Resource
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry import datasets
from vertex_launch.local.registry.datasets import Datasets

PARENT = "projects/p/locations/us-central1"
IMAGES, TEXTS = schema.dataset.metadata.image, schema.dataset.metadata.text
ONE_LABEL = schema.dataset.ioformat.image.single_label_classification
BOXES = schema.dataset.ioformat.image.bounding_box
LABELS = schema.dataset.ioformat.text.multi_label_classification
ML_USE = "aiplatform.googleapis.com/ml_use"


@pytest.fixture
def buckets(tmp_path: Path) -> Path:
    folder = tmp_path / "gcs"
    (folder / "b").mkdir(parents=True)
    return folder


@pytest.fixture
def ours(tmp_path: Path, buckets: Path) -> Datasets:
    return Datasets(Store(tmp_path))


def table(ours: Datasets, *addresses: str) -> Resource:
    source = {"inputConfig": {"gcsSource": {"uri": list(addresses)}}}
    message = Dataset(display_name="rows", metadata_schema_uri=schema.dataset.metadata.tabular, metadata=source)
    return ours.create(PARENT, message)


def items(ours: Datasets, kind: str, format: str, *addresses: str, **labels: str) -> Resource:
    created = ours.create(PARENT, Dataset(display_name="items", metadata_schema_uri=kind))
    config = {"gcs_source": {"uris": addresses}, "import_schema_uri": format, "data_item_labels": labels}
    ours.import_data(created["name"], ImportDataRequest(import_configs=[config]))
    return ours.get(created["name"])


def rows(buckets: Path, count: int, name: str = "rows.csv", header: str = "x,when,split,label\n") -> str:
    sets = ("training", "validation", "test", "UNUSED")
    lines = [f"{i},2026-01-{i % 28 + 1:02}T00:00:00Z,{sets[i % 4]},{'cat' if i % 4 else 'dog'}\n" for i in range(count)]
    (buckets / "b" / name).write_text(header + "".join(lines))
    return f"gs://b/{name}"


def exported(dataset: Resource, buckets: Path, **config: Any) -> dict[str, list[Any]]:
    """What a training reads: for each set, the rows behind the header, or the items."""
    env = datasets.export(dataset, {"datasetId": "1", **config}, buckets, "gs://b/run")
    found: dict[str, list[Any]] = {}
    for name in ("training", "validation", "test"):
        (file,) = buckets.glob(env[f"AIP_{name.upper()}_DATA_URI"].removeprefix("gs://"))
        with file.open(newline="") as lines:
            if env["AIP_DATA_FORMAT"] == "csv":
                assert file.name == f"{name}-00000-of-00001.csv"
                assert next(lines) == "x,when,split,label\n"
                found[name] = list(csv.reader(lines))
            else:
                found[name] = [json.loads(line) for line in lines]
    return found


def sizes(sets: dict[str, list[Any]]) -> list[int]:
    return [len(content) for content in sets.values()]


def test_a_table_is_kept_as_it_was_sent_and_found_again(ours: Datasets, buckets: Path) -> None:
    created = table(ours, "gs://b/rows.csv")
    assert created["metadata"] == {"inputConfig": {"gcsSource": {"uri": ["gs://b/rows.csv"]}}}
    assert created["labels"] == {"aiplatform.googleapis.com/dataset_metadata_schema": "TABLE"}
    assert created["createTime"] == created["updateTime"]
    assert created["etag"]
    assert ours.get(created["name"]) == created
    ours.delete(created["name"])
    with pytest.raises(ApiError, match="does not exist"):
        ours.get(created["name"])


@pytest.mark.parametrize(
    ("kind", "metadata", "place", "words"),
    [
        ("tabular", {}, "metadata.inputConfig.gcsSource.uri", "use a list such as [gs://"),
        ("tabular", {"inputConfig": {"bigquerySource": {"uri": "bq://p.d.t"}}}, "metadata.inputConfig", "BigQuery"),
        ("tabular", {"inputConfig": {"gcsSource": {"uri": "gs://b/f"}}}, "metadata.inputConfig.gcsSource.uri", "list"),
        ("tabular", "gs://b/f.csv", "metadata.inputConfig.gcsSource.uri", "list"),
        ("tabular", {"inputConfig": {"gcsSource": ["gs://b/f.csv"]}}, "metadata.inputConfig.gcsSource.uri", "list"),
        ("image", {"importConfigs": ["x"]}, "metadata", "import the items"),
        ("video", {}, "metadataSchemaUri", "use one of these"),
        ("", {}, "metadataSchemaUri", "tabular_1.0.0.yaml"),
    ],
)
def test_a_dataset_that_cannot_be_here_is_refused_with_its_place(
    ours: Datasets, kind: str, metadata: Any, place: str, words: str
) -> None:
    uri = f"gs://google-cloud-aiplatform/schema/dataset/metadata/{kind}_1.0.0.yaml"
    with pytest.raises(ApiError) as caught:
        ours.create(PARENT, Dataset(display_name="d", metadata_schema_uri=uri, metadata=metadata))
    (finding,) = caught.value.findings
    assert (caught.value.status, finding.place) == ("INVALID_ARGUMENT", place)
    assert words in finding.sentence


def test_the_variables_are_those_of_the_documentation(ours: Datasets, buckets: Path) -> None:
    dataset = table(ours, rows(buckets, 10))
    env = datasets.export(dataset, {"gcsDestination": {"outputUriPrefix": "gs://b/out/"}}, buckets, "gs://b/run")
    folder, _, pattern = env["AIP_TRAINING_DATA_URI"].rpartition("/")
    assert sorted(env) == ["AIP_DATA_FORMAT", "AIP_TEST_DATA_URI", "AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI"]
    assert (env["AIP_DATA_FORMAT"], pattern) == ("csv", "training-*")
    assert folder.startswith(f"gs://b/out/dataset-{dataset['name'].rpartition('/')[2]}-tables-20")
    assert env["AIP_TEST_DATA_URI"] == f"{folder}/test-*"


@pytest.mark.parametrize(
    ("count", "split", "expected"),
    [
        (100, {}, [80, 10, 10]),
        (7, {}, [5, 1, 1]),
        (1, {}, [1, 0, 0]),
        (10, {"trainingFraction": 0.5, "validationFraction": 0.3, "testFraction": 0.2}, [5, 3, 2]),
        (10, {"trainingFraction": 0.6}, [6, 2, 2]),
        (10, {"trainingFraction": 0.9, "testFraction": 0.1}, [9, 0, 1]),
        (10, {"trainingFraction": 1.0}, [10, 0, 0]),
    ],
)
def test_fractions_are_as_exact_as_whole_rows_can_be(
    ours: Datasets, buckets: Path, count: int, split: dict[str, float], expected: list[int]
) -> None:
    sets = exported(table(ours, rows(buckets, count)), buckets, fractionSplit=split)
    assert sizes(sets) == expected
    assert sorted(int(row[0]) for content in sets.values() for row in content) == list(range(count))


def test_the_same_rows_always_fall_into_the_same_sets_and_not_in_their_order(ours: Datasets, buckets: Path) -> None:
    dataset = table(ours, rows(buckets, 50))
    first = exported(dataset, buckets)
    assert exported(dataset, buckets) == first
    assert [row[0] for row in first["test"]] != [str(i) for i in range(45, 50)]


def test_fractions_above_the_whole_are_refused(ours: Datasets, buckets: Path) -> None:
    dataset = table(ours, rows(buckets, 10))
    with pytest.raises(ApiError, match=r"inputDataConfig: the fractions 0.9, 0.2, 0.0 aren't valid"):
        exported(dataset, buckets, fractionSplit={"trainingFraction": 0.9, "validationFraction": 0.2})


def test_a_column_may_name_the_sets_and_other_rows_are_left_out(ours: Datasets, buckets: Path) -> None:
    sets = exported(table(ours, rows(buckets, 40)), buckets, predefinedSplit={"key": "split"})
    assert sizes(sets) == [10, 10, 10]
    assert {row[2] for row in sets["validation"]} == {"validation"}


def test_in_time_the_oldest_train_and_the_newest_test(ours: Datasets, buckets: Path) -> None:
    address = rows(buckets, 28)
    with (buckets / "b/rows.csv").open("a") as file:
        file.write("28,yesterday,training,cat\n29\n")  # neither has a moment
    sets = exported(table(ours, address), buckets, timestampSplit={"key": "when"})
    assert sizes(sets) == [22, 3, 3]
    days = [[row[1] for row in content] for content in sets.values()]
    assert max(days[0]) < min(days[1]) <= max(days[1]) < min(days[2])


def test_strata_are_as_frequent_in_every_set_as_in_all(ours: Datasets, buckets: Path) -> None:
    sets = exported(table(ours, rows(buckets, 400)), buckets, stratifiedSplit={"key": "label"})
    assert sizes(sets) == [320, 40, 40]
    assert [Counter(row[3] for row in content)["dog"] for content in sets.values()] == [80, 10, 10]


def test_a_column_that_is_not_there_is_named_with_those_that_are(ours: Datasets, buckets: Path) -> None:
    dataset = table(ours, rows(buckets, 10))
    with pytest.raises(ApiError, match='have a column "lable"; its columns are x, when, split, label'):
        exported(dataset, buckets, predefinedSplit={"key": "lable"})


def test_several_files_are_one_table_whether_they_repeat_the_header_or_not(ours: Datasets, buckets: Path) -> None:
    rows(buckets, 3, "part-1.csv")
    rows(buckets, 4, "part-2.csv")
    rows(buckets, 5, "part-3.csv", header="")
    sets = exported(table(ours, "gs://b/part-*.csv"), buckets, fractionSplit={"trainingFraction": 1.0})
    assert [int(row[0]) for row in sets["training"]] == [*range(3), *range(4), *range(5)]


def test_a_cell_may_hold_commas_quotes_and_line_ends(ours: Datasets, buckets: Path) -> None:
    (buckets / "b/odd.csv").write_text('x,when,split,label\n1,"a, ""b""\nc",,ü\n')
    sets = exported(table(ours, "gs://b/odd.csv"), buckets)
    assert sets["training"] == [["1", 'a, "b"\nc', "", "ü"]]


@pytest.mark.parametrize(
    ("address", "content", "words"),
    [
        ("gs://b/missing.csv", None, "gs://b/missing.csv isn't in the local buckets; upload the file"),
        ("gs://b/../../secret.csv", None, "isn't in the local buckets"),
        ("gs://b/file.csv", b"x,when\n", "is empty; add rows"),
        ("gs://b/file.csv", b"x\n\xff\n", "gs://b/file.csv isn't a valid UTF-8 CSV file"),
        ("gs://b/file.csv", b'x\n"open', "gs://b/file.csv isn't a valid UTF-8 CSV file"),
    ],
)
def test_files_that_cannot_be_read_are_one_sentence(
    ours: Datasets, buckets: Path, address: str, content: bytes | None, words: str
) -> None:
    (buckets.parent / "secret.csv").write_text("x\n1\n")
    if content is not None:
        (buckets / "b/file.csv").write_bytes(content)
    with pytest.raises(ApiError, match=words) as caught:
        exported(table(ours, address), buckets)
    assert caught.value.status == "FAILED_PRECONDITION"


@pytest.mark.parametrize("field", ["bigqueryDestination", "savedQueryId", "annotationsFilter"])
def test_what_only_the_service_can_do_is_refused(ours: Datasets, buckets: Path, field: str) -> None:
    dataset = table(ours, rows(buckets, 10))
    with pytest.raises(ApiError, match=f"inputDataConfig.{field}: the local Vertex doesn't support this field"):
        exported(dataset, buckets, **{field: "x"})


def test_an_export_stays_in_its_bucket(ours: Datasets, buckets: Path) -> None:
    dataset = table(ours, rows(buckets, 10))
    with pytest.raises(ApiError, match=r'"gs://b/\.\./\.\." isn' "'t a folder in a bucket"):
        exported(dataset, buckets, gcsDestination={"outputUriPrefix": "gs://b/../.."})
    assert [path.name for path in buckets.iterdir()] == ["b"]


def test_images_of_a_csv_import_file_become_the_documented_items(ours: Datasets, buckets: Path) -> None:
    (buckets / "b/images.csv").write_text("training,gs://b/1.jpg,cat\ntest,gs://b/2.jpg,dog\n,gs://b/3.jpg,dog\n")
    dataset = items(ours, IMAGES, ONE_LABEL, "gs://b/images.csv")
    assert dataset["dataItemCount"] == "3"
    sets = exported(dataset, buckets, annotationSchemaUri=schema.dataset.annotation.image.classification)
    assert sets["training"] == [
        {
            "imageGcsUri": f"gs://b/{i}.jpg",
            "classificationAnnotation": {"displayName": label},
            "dataItemResourceLabels": {ML_USE: "training"},
        }
        for i, label in ((1, "cat"), (3, "dog"))
    ]
    assert [item["imageGcsUri"] for item in sets["test"]] == ["gs://b/2.jpg"]
    assert any(
        path.name.startswith("dataset-") and "-image_classification-20" in path.name
        for path in (buckets / "b/run").iterdir()
    )


def test_texts_stand_in_the_import_file_or_have_files_of_their_own(ours: Datasets, buckets: Path) -> None:
    (buckets / "b/texts.csv").write_text('validation,"so, good",nice,short\ngs://b/long.txt\n')
    sets = exported(items(ours, TEXTS, LABELS, "gs://b/texts.csv", team="ours"), buckets)
    assert sets["validation"] == [
        {
            "textContent": "so, good",
            "classificationAnnotations": [{"displayName": "nice"}, {"displayName": "short"}],
            "dataItemResourceLabels": {"team": "ours", ML_USE: "validation"},
        }
    ]
    assert [item["textGcsUri"] for item in sets["training"]] == ["gs://b/long.txt"]


def test_rows_with_boxes_become_images_with_all_their_boxes(ours: Datasets, buckets: Path) -> None:
    rows = "test,gs://b/1.jpg,cat,.1,.2,,,.3,.4,,", "gs://b/2.jpg,,,,,,,,,", "test,gs://b/1.jpg,dog,0,0,1,0,1,1,0,1"
    (buckets / "b/boxes.csv").write_text("\n".join(rows))
    dataset = items(ours, IMAGES, BOXES, "gs://b/boxes.csv")
    assert dataset["dataItemCount"] == "2"
    sets = exported(dataset, buckets)
    assert sets["test"] == [
        {
            "imageGcsUri": "gs://b/1.jpg",
            "boundingBoxAnnotations": [
                {"displayName": "cat", "xMin": 0.1, "yMin": 0.2, "xMax": 0.3, "yMax": 0.4},
                {"displayName": "dog", "xMin": 0, "yMin": 0, "xMax": 1, "yMax": 1},
            ],
            "dataItemResourceLabels": {ML_USE: "test"},
        }
    ]
    assert [item["boundingBoxAnnotations"] for item in sets["training"]] == [[]]


def test_json_lines_are_passed_on_with_the_set_they_are_in(ours: Datasets, buckets: Path) -> None:
    boxes = [{"imageGcsUri": f"gs://b/{i}.jpg", "boundingBoxAnnotations": [{"xMin": 0.5}]} for i in range(10)]
    (buckets / "b/boxes.jsonl").write_text("\n".join(map(json.dumps, boxes)))
    sets = exported(items(ours, IMAGES, BOXES, "gs://b/boxes.jsonl"), buckets)
    assert sizes(sets) == [8, 1, 1]
    (test,) = sets["test"]
    assert test.pop("dataItemResourceLabels") == {ML_USE: "test"}
    assert test in boxes


def test_filters_choose_items_by_their_labels(ours: Datasets, buckets: Path) -> None:
    (buckets / "b/images.csv").write_text("test,gs://b/1.jpg,cat\ntraining,gs://b/2.jpg,cat\n,gs://b/3.jpg,cat\n")
    dataset = items(ours, IMAGES, ONE_LABEL, "gs://b/images.csv")
    use = "labels.aiplatform.googleapis.com/ml_use"
    split = {"trainingFilter": f"{use}=training", "validationFilter": "-", "testFilter": f"{use}=test"}
    sets = exported(dataset, buckets, filterSplit=split)
    assert [[item["imageGcsUri"][-5] for item in content] for content in sets.values()] == [["2"], [], ["1"]]


def test_an_explicit_fraction_goes_before_what_items_say_of_their_use(ours: Datasets, buckets: Path) -> None:
    (buckets / "b/images.csv").write_text("".join(f"test,gs://b/{i}.jpg,cat\n" for i in range(10)))
    dataset = items(ours, IMAGES, ONE_LABEL, "gs://b/images.csv")
    assert sizes(exported(dataset, buckets)) == [0, 0, 10]
    assert sizes(exported(dataset, buckets, fractionSplit={"trainingFraction": 1.0})) == [10, 0, 0]


@pytest.mark.parametrize(
    ("kind", "format", "name", "content", "words"),
    [
        (IMAGES, ONE_LABEL, "i.csv", "gs://b/1.jpg,cat,dog\n", "row 1 isn't a valid image_classification_single_label"),
        (IMAGES, ONE_LABEL, "i.csv", "gs://b/1.jpg,cat\nhere,cat\n", "row 2 isn't a valid"),
        (IMAGES, ONE_LABEL, "i.jsonl", '{"imageGcsUri": "gs://b/1.jpg"}\n[1]\n', "line 2 isn't a JSON item"),
        (IMAGES, ONE_LABEL, "i.jsonl", '{"dataItemResourceLabels": "x"}\n', "line 1 isn't a JSON item"),
        (IMAGES, LABELS, "i.csv", "gs://b/1.jpg,cat\n", "isn't a schema for datasets of kind image"),
        (IMAGES, schema.dataset.ioformat.image.image_segmentation, "i.csv", "gs://b/1.jpg\n", "use JSON Lines"),
        (IMAGES, BOXES, "i.csv", "gs://b/1.jpg,cat,0,0\n", "LABEL,X_MIN,Y_MIN,,,X_MAX,Y_MAX,,"),
        (IMAGES, BOXES, "i.csv", "gs://b/1.jpg,cat,0,0,,,12,40,,\n", "with coordinates from 0 to 1"),
        (IMAGES, BOXES, "i.csv", "gs://b/1.jpg,cat,x,0,,,1,1,,\n", "row 1 isn't a valid image_bounding_box"),
        (IMAGES, BOXES, "i.csv", "1.jpg,cat,0,0,,,1,1,,\n", "row 1 isn't a valid image_bounding_box"),
    ],
)
def test_an_import_file_with_a_fault_adds_nothing(
    ours: Datasets, buckets: Path, kind: str, format: str, name: str, content: str, words: str
) -> None:
    (buckets / "b" / name).write_text(content)
    created = ours.create(PARENT, Dataset(display_name="items", metadata_schema_uri=kind))
    config = {"gcs_source": {"uris": [f"gs://b/{name}"]}, "import_schema_uri": format}
    with pytest.raises(ApiError, match=words):
        ours.import_data(created["name"], ImportDataRequest(import_configs=[config]))
    assert ours.get(created["name"]) == created


def test_a_table_takes_no_import(ours: Datasets) -> None:
    with pytest.raises(ApiError, match="tabular datasets don't support imports"):
        ours.import_data(table(ours, "gs://b/rows.csv")["name"], ImportDataRequest())


@pytest.mark.parametrize("name", ["a" * 5000, "*" * 300, "a" * 300 + "*"])
def test_a_name_that_no_file_can_have_is_a_file_that_is_not_there(ours: Datasets, buckets: Path, name: str) -> None:
    with pytest.raises(ApiError, match="upload the file first"):
        exported(table(ours, f"gs://b/{name}"), buckets)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as vertex:
        yield vertex


@pytest.fixture
def vertex(running: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    prepare(running, monkeypatch)
    return running


def texts(vertex: Service, lines: str = "training,so good,nice\ntest,so bad,poor\n") -> aiplatform.TextDataset:
    (vertex.state_dir / "gcs/b/texts.csv").write_text(lines)
    form = schema.dataset.ioformat.text.single_label_classification
    return aiplatform.TextDataset.create("two texts", "gs://b/texts.csv", import_schema_uri=form)


@pytest.mark.parametrize("keys", [("input_config", "gcs_source"), ("inputConfig", "gcsSource")])
def test_the_metadata_of_a_table_have_keys_of_either_case(vertex: Service, keys: tuple[str, str]) -> None:
    rows(vertex.state_dir / "gcs", 2)
    metadata = {keys[0]: {keys[1]: {"uri": ["gs://b/rows.csv"]}}}
    body = {"displayName": "rows", "metadataSchemaUri": schema.dataset.metadata.tabular, "metadata": metadata}
    status, operation = vertex.call("POST", f"/v1/{PARENT}/datasets", body)
    assert status == 200
    dataset = aiplatform.TabularDataset(operation["response"]["name"])
    assert sorted(dataset.column_names) == ["label", "split", "when", "x"]


def test_a_dataset_is_updated_and_keeps_the_services_label(vertex: Service) -> None:
    dataset = texts(vertex)
    dataset.update(display_name="renamed", description="two", labels={"team": "ours"})
    found = aiplatform.TextDataset(dataset.resource_name)
    assert (found.display_name, found.gca_resource.description) == ("renamed", "two")
    assert found.labels == {"team": "ours", "aiplatform.googleapis.com/dataset_metadata_schema": "TEXT"}
    status, answer = vertex.call("PATCH", f"/v1/{dataset.resource_name}?updateMask=metadataSchemaUri", {})
    assert (status, answer["error"]["message"].partition(";")[0]) == (
        400,
        "updateMask: a dataset's metadataSchemaUri can't be changed",
    )


def test_a_dataset_is_exported_to_a_folder_of_its_own(vertex: Service) -> None:
    (address,) = texts(vertex).export_data("gs://b/out")
    assert address.startswith("gs://b/out/export-data-two_texts-20")
    lines = (vertex.state_dir / "gcs" / address.removeprefix("gs://")).read_text().splitlines()
    assert [json.loads(line)["textContent"] for line in lines] == ["so good", "so bad"]


def test_an_export_for_a_training_is_split_as_that_of_a_pipeline(vertex: Service) -> None:
    split = {"training_fraction": 0.5, "validation_fraction": 0.0, "test_fraction": 0.5}
    response = texts(vertex).export_data_for_custom_training("gs://b/out", split=split)
    assert response["dataStats"] == {"trainingDataItemsCount": "1", "testDataItemsCount": "1"}
    assert [address.rpartition("/")[2] for address in response["exportedFiles"]] == [
        "training-*",
        "validation-*",
        "test-*",
    ]
    (file,) = (vertex.state_dir / "gcs").glob(response["exportedFiles"][0].removeprefix("gs://"))
    assert len(file.read_text().splitlines()) == 1


def test_items_are_listed_with_their_annotations(vertex: Service) -> None:
    dataset = texts(vertex)
    first, second = dataset.api_client.list_data_items(parent=dataset.resource_name)
    assert (first.payload["textContent"], dict(second.labels)) == ("so good", {ML_USE: "test"})
    (annotation,) = dataset.api_client.list_annotations(parent=second.name)
    assert annotation.payload["displayName"] == "poor"
    assert annotation.payload_schema_uri == schema.dataset.annotation.text.classification
    assert vertex.call("GET", f"/v1/{dataset.resource_name}/dataItems/3/annotations")[0] == 404
