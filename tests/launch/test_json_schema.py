"""jobs/schema.json is what the API's messages say now, and every job file names it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.launch.running import JOBS, PROJECT
from vertex_launch import json_schema

FILE = PROJECT / "jobs/schema.json"
DEFINITIONS = json_schema.job_schema()["definitions"]


def test_the_file_is_what_the_messages_say_now() -> None:
    command = [sys.executable, "-m", "vertex_launch", "schema"]
    printed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed == FILE.read_text(encoding="utf-8"), "run python -m vertex_launch schema > jobs/schema.json"


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_every_job_file_names_the_schema_in_its_first_line(job: Any) -> None:
    assert job.read_text(encoding="utf-8").splitlines()[0] == f"# yaml-language-server: $schema={FILE.name}"


def references(schema: Any) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key == "$ref":
            yield value.removeprefix("#/definitions/")
        elif isinstance(value, dict | list):
            yield from references(value)


def test_nothing_is_defined_in_vain_and_nothing_is_missing() -> None:
    assert set(references(json.loads(FILE.read_text(encoding="utf-8")))) == DEFINITIONS.keys()


PLACES = [
    ("Scheduling", "timeout", {"$ref": "#/definitions/google.protobuf.Duration"}),
    ("WorkerPoolSpec", "replicaCount", {"$ref": "#/definitions/int64"}),
    ("MachineSpec", "acceleratorCount", {"$ref": "#/definitions/int32"}),
    ("Scheduling", "disableRetries", {"type": "boolean"}),
    ("ContainerSpec", "args", {"type": "array", "items": {"type": "string"}}),
    ("HyperparameterTuningJob", "labels", {"type": "object", "additionalProperties": {"type": "string"}}),
    ("StudySpec.StudyStoppingConfig", "shouldStopAsap", {"type": "boolean"}),
    ("StudySpec.MetricSpec", "goal", {"enum": ["MAXIMIZE", "MINIMIZE"]}),
    ("StudySpec.ParameterSpec.DoubleValueSpec", "minValue", {"$ref": "#/definitions/number"}),
]


@pytest.mark.parametrize(("message", "key", "schema"), PLACES, ids=lambda one: one if isinstance(one, str) else "")
def test_each_kind_of_field_has_its_form(message: str, key: str, schema: dict[str, Any]) -> None:
    found = dict(DEFINITIONS[message]["properties"][key])
    found.pop("description")
    assert found == schema


def test_the_fields_are_explained_in_googles_words_without_their_markup() -> None:
    said = {
        f"{message}.{key}": field.get("description", "")
        for message, schema in DEFINITIONS.items()
        for key, field in schema.get("properties", {}).items()
        if not message.startswith("google.")
    }
    assert [place for place, text in said.items() if not text] == []
    assert [place for place, text in said.items() if "``" in text or "`_" in text or "][" in text] == []
    assert said["Scheduling.timeout"] == "Optional. The maximum job running time. The default is 7 days."
    assert said["StudySpec.ParameterSpec.doubleValueSpec"] == "The value spec for a 'DOUBLE' parameter."


def test_of_keys_that_exclude_each_other_the_later_is_refused() -> None:
    exclusions = DEFINITIONS["WorkerPoolSpec"]["dependencies"]
    assert exclusions == {"containerSpec": {"properties": {"pythonPackageSpec": False}}}
