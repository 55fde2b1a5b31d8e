import re

import pytest
from google.cloud.aiplatform_v1 import types

from vertex_launch.facts import labels
from vertex_launch.local.api.collection import OUTPUT_ONLY, key_findings, without_output

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
    "given",
    [
        {},
        {"team": "vision", "cost-center_7": ""},
        {"größe": "klein", "国": "中"},
        {"a" * 63: "b" * 63},
        {"2026": "-"},
        {"aiplatform.googleapis.com/dataset_metadata_schema": "TABLE"},
    ],
)
def test_labels_that_google_takes(given: dict[str, str]) -> None:
    assert not [*labels.of_all(given)]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"Team": "a"}, '"Team"'),
        ({"": "a"}, '""'),
        ({"a.b": "c"}, '"a.b"'),
        ({"-x": "y"}, "begin with a letter or a digit"),
        ({"_x": "y"}, "begin with a letter or a digit"),
        ({"a" * 64: "b"}, "63 characters"),
        ({"国" * 43: "b"}, "127 bytes"),
        ({"a": "B"}, '"B"'),
        ({"a": "b c"}, '"b c"'),
        ({"a": "b" * 64}, "63 characters"),
        ({f"k{i}": "v" for i in range(65)}, "65 labels"),
    ],
)
def test_labels_that_google_refuses_are_refused(given: dict[str, str], word: str) -> None:
    (finding,) = labels.of_all(given)
    assert finding.place.startswith("labels")
    assert word in str(finding)


KEY = "projects/p/locations/us-central1/keyRings/ring/cryptoKeys/key"


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_could_not_encrypt_it_is_refused_for_each_kind(kind: type) -> None:
    def faults(key: str) -> list[str]:
        message = kind(encryption_spec={"kms_key_name": key})
        return [found.fault for found in key_findings(message, "projects/p/locations/us-central1/customJobs")]

    assert faults(KEY) == []
    assert faults("key") == ['"key" isn\'t the full name of a key']
    assert faults(KEY.replace("us-central1", "eu")) == ["the key is in eu, but the resource is in us-central1"]
    assert [*key_findings(kind(), "projects/p/locations/us-central1/customJobs")] == []
