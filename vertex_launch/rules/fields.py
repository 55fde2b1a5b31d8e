"""Every field that a job file can have, with the rules that look at it: fields.yaml.

A release of google-cloud-aiplatform with a new field fails tests/launch/test_fields.py until it has a line there.
"""

from collections.abc import Mapping
from pathlib import Path

from google.cloud.aiplatform_v1 import types
from google.protobuf.descriptor import Descriptor

from vertex_launch.catalog import read
from vertex_launch.proto_validation import WELL_KNOWN, item

Line = tuple[str, ...] | str  # the codes of rules, or words where there is no rule

PACKAGE = "google.cloud.aiplatform.v1."
FORM = "no rule but `form`: nothing more is documented"
OUTPUT = "written by Vertex AI alone"
HERE = "not a job file's; the local Vertex checks requests"
BELOW = "its own fields are below"
WORDS = {"FORM": FORM, "OUTPUT": OUTPUT, "HERE": HERE, "BELOW": BELOW}


def _each(table: Mapping[str, Mapping[str, list[str] | str]]) -> dict[str, dict[str, Line]]:
    """Give each field a line of its own."""
    return {
        message: {
            name: WORDS[rules] if isinstance(rules, str) else tuple(rules)
            for names, rules in lines.items()
            for name in names.split(", ")
        }
        for messages, lines in table.items()
        for message in messages.split(", ")
    }


FIELDS: Mapping[str, Mapping[str, Line]] = _each(read(Path(__file__).with_suffix(".yaml")))


def of_api() -> dict[str, list[str]]:
    """Return the messages of which job files consist, and TrainingPipeline, each with the names of its fields."""
    kinds = (types.CustomJobSpec, types.HyperparameterTuningJob, types.TrainingPipeline)
    messages: list[Descriptor] = [kind.pb(kind()).DESCRIPTOR for kind in kinds]
    for message in messages:  # the list grows in the loop
        lines = FIELDS.get(_name(message), {})
        inner = [
            item(field).message_type for field in message.fields if lines.get(field.json_name) not in (OUTPUT, HERE)
        ]
        new = [one for one in inner if one and one not in messages and not one.full_name.startswith(WELL_KNOWN)]
        messages += dict.fromkeys(new)
    return {_name(message): [field.json_name for field in message.fields] for message in messages}


def _name(message: Descriptor) -> str:
    return str(message.full_name).removeprefix(PACKAGE)


def table() -> str:
    """Every field of the API's messages with its rules, in Markdown."""
    parts = []
    for message, fields in of_api().items():
        parts += ["", f"### {message}", "", "| Field | Rules |", "|---|---|"]
        for field in fields:
            line = FIELDS[message][field]
            words = line if isinstance(line, str) else ", ".join(f"`{code}`" for code in line)
            parts.append(f"| {field} | {words} |")
    return "\n".join(parts)
