"""The JSON Schema for job files. Editors use this schema to complete and explain keys and to underline errors.

The schema is generated from the same descriptors that proto_validation.py uses. As far as JSON Schema allows, the
schema accepts the same documents as proto_validation.py. The schema is stricter only for enums: it rejects
numbers and the unspecified value. `vertex-launch schema` prints the schema. `vertex-launch check` writes the schema to
the schema file that a job file refers to. yaml-language-server 1.25, which VS Code uses, supports JSON Schema draft 7
completely.
Source: JSON Schema, draft 7, 2026.
"""

import inspect
import json
import re
from functools import reduce
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from vertex_launch.job import proto_validation as proto
from vertex_launch.job.proto_validation import DURATION, FORMS, FREE, TIMESTAMP, short_name
from vertex_launch.job.spec import TUNING_KEYS

Schema = dict[str, Any]

FREE_TYPES = {"": {}, "a mapping": {"type": "object"}, "a list": {"type": "array"}}

# One attribute in a message's docstring: `name (type):` and the attribute's first paragraph, which is indented.
ATTRIBUTE = re.compile(r"^ {4}(\w+) \(.+\):\n((?: {8}.+\n?)+)", re.MULTILINE)
MARKUP = (
    (re.compile(r"`([^`<]+?)\s*<[^>]*>`__?"), r"\1"),  # `text <address>`__
    (re.compile(r"\[([^\]]+)\]\[[^\]]*\]"), r"\1"),  # [name][full name]
    (re.compile(r"``(.+?)``"), r"`\1`"),
)


def job_schema() -> Schema:
    """Return the JSON Schema for job files, which define custom jobs or tuning jobs.

    If a file contains a key of a tuning job, the schema for tuning jobs applies.
    """
    custom, tuning = (kind.pb(kind()).DESCRIPTOR for kind in (types.CustomJobSpec, types.HyperparameterTuningJob))
    messages = {short_name(message): _message(message) for message in proto.messages_below([custom, tuning])}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "if": {"anyOf": [{"required": [key]} for key in sorted(TUNING_KEYS)]},
        "then": _reference(short_name(tuning)),
        "else": _reference(short_name(custom)),
        "definitions": _scalars() | messages,
    }


def text(mark: str) -> str:
    """Return the text of a schema file. The text contains `mark`, which identifies the launcher."""
    return json.dumps({"$comment": mark} | job_schema(), indent=2, ensure_ascii=False) + "\n"


def _message(message: Descriptor) -> Schema:
    explained = _descriptions(message)
    properties = {field.json_name: _field(field) | explained.get(field.name, {}) for field in message.fields}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    exclusions = {
        field.json_name: {"properties": {later.json_name: False for later in oneof.fields[index + 1 :]}}
        for oneof in message.oneofs
        for index, field in enumerate(oneof.fields[:-1])
    }
    return schema | ({"dependencies": exclusions} if exclusions else {})


def _field(field: FieldDescriptor) -> Schema:
    value = _value(proto.item(field))
    if proto.is_map(field):
        return {"type": "object", "additionalProperties": value}
    return {"type": "array", "items": value} if field.is_repeated else value


def _value(field: FieldDescriptor) -> Schema:
    name = proto.type_name(field)
    if name in FREE:
        return FREE_TYPES[FREE[name]]
    if name == proto.ANY:
        return {"not": {}}
    if name == "enum":
        return {"enum": [value.name for value in field.enum_type.values if value.number]}  # 0 is UNSPECIFIED
    if name in ("boolean", "string"):
        return {"type": name}
    return _reference({"double": "number", "float": "number"}.get(name, name.removeprefix(proto.PACKAGE)))


def _scalars() -> Schema:
    """Return the schemas of scalars, keyed by type. Only editors use the `patternErrorMessage` keyword."""
    patterns = {name: {"pattern": f"^({form.pattern})$"} for name, form in FORMS.items()}
    limits = {name: {"minimum": -form.largest, "maximum": form.largest} for name, form in FORMS.items()}
    examples = {DURATION: "3600s", TIMESTAMP: "2026-11-20T15:30:00Z"}
    hints = {name: f'Must be {FORMS[name].noun}, such as "{example}".' for name, example in examples.items()}
    return {
        **{name: {"type": ["integer", "string"], **patterns[name], **limits[name]} for name in ("int32", "int64")},
        "number": {"type": ["number", "string"], **patterns["double"]},
        **{name: {"type": "string", **patterns[name], "patternErrorMessage": hints[name]} for name in examples},
    }


def _descriptions(message: Descriptor) -> dict[str, Schema]:
    """Return descriptions of fields, keyed by field name.

    A field's description is the first paragraph about it in Google's docstring.
    """
    if not message.full_name.startswith(proto.PACKAGE):
        return {}
    documented = reduce(getattr, short_name(message).split("."), types)
    attributes = inspect.cleandoc(documented.__doc__ or "").partition("\nAttributes:\n")[2]
    return {name.rstrip("_"): {"description": _plain(paragraph)} for name, paragraph in ATTRIBUTE.findall(attributes)}


def _plain(paragraph: str) -> str:
    """Join the lines of a paragraph, and remove reStructuredText markup."""
    line = " ".join(paragraph.split())
    return reduce(lambda text, mark: mark[0].sub(mark[1], text), MARKUP, line)


def _reference(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}
