import re

import pytest
from google.cloud.aiplatform_v1 import types

from vertex_launch.local.api.create_validation import OUTPUT_ONLY, label_findings, without_output

KINDS = (types.CustomJob, types.HyperparameterTuningJob, types.TrainingPipeline, types.Dataset, types.Model)
FIELD = re.compile(r"^ {8}(\w+) \(.*?\):\n(.*?)(?=^ {8}\w+ \(|\Z)", re.MULTILINE | re.DOTALL)


def test_all_that_google_documents_as_output_is_known() -> None:
    documented = {
        name for kind in KINDS for name, text in FIELD.findall(kind.__doc__ or "") if re.search(r"Output\s+only", text)
    }
    assert documented == {*OUTPUT_ONLY}


def test_what_only_the_service_writes_is_dropped_and_the_rest_stays() -> None:
    job = types.CustomJob(name="x", state="JOB_STATE_FAILED", error={"code": 3}, display_name="d", labels={"a": "b"})
    assert without_output(job) == types.CustomJob(display_name="d", labels={"a": "b"})


def test_a_model_within_a_pipeline_loses_its_output_too() -> None:
    pipeline = types.TrainingPipeline(model_to_upload={"display_name": "m", "version_id": "9"})
    assert without_output(pipeline) == types.TrainingPipeline(model_to_upload={"display_name": "m"})
    assert "model_to_upload" not in without_output(types.TrainingPipeline(display_name="without a model"))


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"team": "vision", "cost-center_7": ""},
        {"größe": "klein", "国": "中"},
        {"a" * 64: "b" * 64},
        {"aiplatform.googleapis.com/dataset_metadata_schema": "TABLE"},
    ],
)
def test_labels_that_google_takes(labels: dict[str, str]) -> None:
    assert not [*label_findings(labels)]


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"Team": "a"}, "labels"),
        ({"": "a"}, "labels"),
        ({"a.b": "c"}, "labels"),
        ({"a" * 65: "b"}, "labels"),
        ({"a": "B"}, "labels.a"),
        ({"a": "b c"}, "labels.a"),
        ({"a": "b" * 65}, "labels.a"),
        ({f"k{i}": "v" for i in range(65)}, "labels"),
    ],
)
def test_labels_that_google_refuses_are_refused_with_their_place(labels: dict[str, str], place: str) -> None:
    assert [finding.place for finding in label_findings(labels)] == [place]
