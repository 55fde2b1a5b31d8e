"""Every difference between a document and the protobuf message that it stands for, not only the first.

The message's own descriptor is the schema, so a new release of google-cloud-aiplatform brings its new fields.
"""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.descriptor import (  # type: ignore[import-untyped, unused-ignore]
    Descriptor,
    FieldDescriptor,
)
from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped, unused-ignore]

from vertex_launch.errors import Finding, Findings, did_you_mean
from vertex_launch.strict_yaml import Mapping, kind

# Messages that JSON writes in a form of their own. Source: protobuf documentation, "ProtoJSON format", 2026.
WELL_KNOWN = "google.protobuf."
DURATION, TIMESTAMP, ANY = (f"{WELL_KNOWN}{name}" for name in ("Duration", "Timestamp", "Any"))
FREE = {f"{WELL_KNOWN}Value": "", f"{WELL_KNOWN}Struct": "a mapping", f"{WELL_KNOWN}ListValue": "a list"}
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
SECONDS = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?s")
LARGEST_FLOAT = 3.4028234e38
LINES_SHOWN = 3  # of a key that is repeated
SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_STRING: "string",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_INT64: "int64",
}

Fault = tuple[str, str]  # and its cure; of a value that is right, two times ""
RIGHT = ("", "")


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def item(field: FieldDescriptor) -> FieldDescriptor:
    """The field, or of a map what each key stands for."""
    return field.message_type.fields_by_name["value"] if is_map(field) else field


def type_name(field: FieldDescriptor) -> str:
    """The message's full name, or of a scalar "enum", "string", "boolean", "double", "float", "int64" or "int32"."""
    message = field.message_type
    if message is None:
        return "enum" if field.enum_type else SCALARS.get(field.cpp_type, "int32")
    wraps = message.full_name.startswith(WELL_KNOWN) and message.full_name not in (DURATION, TIMESTAMP, ANY, *FREE)
    return type_name(message.fields_by_name["value"]) if wraps else str(message.full_name)


def findings(value: Any, message: Descriptor, place: str = "") -> Findings:
    """Every difference, in the order of the document; `place` is the value's own."""
    fields = {field.json_name: field for field in message.fields}
    if not isinstance(value, Mapping):
        yield Finding(place, f"must be a mapping, not {kind(value)}", f"its keys are {', '.join(fields)}")
        return
    yield from _repeated(value, place)
    for key, inner in value.items():
        field = fields.get(key) or message.fields_by_name.get(key)
        if field is None:
            yield Finding(place, f"unknown key {_quoted(key)}", did_you_mean(key, fields), value.lines[key])
            continue
        if key != field.json_name:
            cure = f"write {field.json_name}, as gcloud does"
            yield Finding(place, f"the key {_quoted(key)} is snake_case", cure, value.lines[key])
        yield from _of_field(inner, field, _below(place, field.json_name))
    for oneof in message.oneofs:
        given = [field.json_name for field in oneof.fields if {field.json_name, field.name} & value.keys()]
        if len(given) > 1:
            yield Finding(place, f"{' and '.join(given)} exclude each other", "keep one")


def _below(place: str, key: str) -> str:
    return f"{place}.{key}".lstrip(".")


def _repeated(mapping: Mapping, place: str) -> Findings:
    for key, lines in mapping.repeated.items():
        shown = [str(line) for line in lines[:LINES_SHOWN]]
        shown += [f"{len(lines) - LINES_SHOWN:,} more"] if len(lines) > LINES_SHOWN else []
        where = f"in lines {' and '.join(shown)}" if lines[-1] else f"there {len(lines)} times"
        yield Finding(place, f"the key {_quoted(key)} is {where}", "keep one of them", lines[-1])


def _of_field(value: Any, field: FieldDescriptor, place: str) -> Findings:
    if is_map(field) and isinstance(value, Mapping):  # of keys that the user chooses, as in labels
        yield from _repeated(value, place)
        for key, inner in value.items():
            yield from _of_value(inner, item(field), _below(place, key))
    elif is_map(field):
        yield Finding(place, f"must be a mapping, not {kind(value)}", "write name: value pairs")
    elif not field.is_repeated:
        yield from _of_value(value, field, place)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _of_value(inner, field, f"{place}[{index}]")
    else:
        yield Finding(place, f"must be a list, not {kind(value)}", "begin each of its items with a dash")


def _of_value(value: Any, field: FieldDescriptor, place: str) -> Findings:
    name = type_name(field)
    if name in FREE:
        yield from _of_free_form(value, place, FREE[name])
    elif value is None:
        yield Finding(
            place, "has no value", "write {} to leave it empty" if field.message_type else "give it one or remove it"
        )
    elif name == ANY:
        yield Finding(place, "is filled in by the service", "remove it")
    elif name in CHECKS or name == "enum":
        fault, cure = _enum_fault(value, field) if name == "enum" else CHECKS[name](value)
        if fault:
            yield Finding(place, fault, cure)
    else:
        yield from findings(value, field.message_type, place)


def _of_free_form(value: Any, place: str, wanted: str = "") -> Findings:
    """Anything goes that JSON can hold, if it is of the wanted kind."""
    if wanted and kind(value) != wanted:
        yield Finding(place, f"must be {wanted}, not {kind(value)}", "write one")
    elif isinstance(value, Mapping):
        yield from _repeated(value, place)
        for key, inner in value.items():
            yield from _of_free_form(inner, _below(place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _of_free_form(inner, f"{place}[{index}]")
    elif kind(value) == "a number" and (fault := _number_fault(value, math.inf)) != RIGHT:
        yield Finding(place, *fault)


def _text_fault(value: Any) -> Fault:
    if kind(value) == "text":
        return RIGHT
    if isinstance(value, dict | list):
        return f"must be text, not {kind(value)}", "write one value, in quotes"
    return f"must be text, and {_shown(value)} is {kind(value)}", f"quote it: {_quoted(_written(value))}"


def _whole_number_fault(value: Any, bits: int) -> Fault:
    # The API itself writes its 64-bit numbers in quotes.
    digits = kind(value) in ("a number", "text") and WHOLE_NUMBER.fullmatch(value)
    if digits and abs(int(value)) < 2 ** (bits - 1):
        return RIGHT
    return f"must be a whole number of at most {bits} bits, not {_shown(value)}", "write plain digits, such as 4"


def _number_fault(value: Any, largest: float) -> Fault:
    digits = kind(value) in ("a number", "text") and NUMBER.fullmatch(value)
    if digits and -largest < float(value) < largest:
        return RIGHT
    return f"must be a number, not {_shown(value)}", "write digits, such as 0.001 or 1.0e-3"


def _boolean_fault(value: Any) -> Fault:
    if kind(value) == "a boolean" and _written(value).lower() in ("true", "false"):
        return RIGHT
    return f"must be a boolean, not {_shown(value)}", "write true or false, without quotes"


def _duration_fault(value: Any) -> Fault:
    if kind(value) == "text" and SECONDS.fullmatch(value):
        return RIGHT
    example = f"{value}s" if kind(value) in ("a number", "text") and value.isdigit() else "3600s"
    return f"must be seconds that end in s, not {_shown(value)}", f"write {_quoted(example)}"


def _timestamp_fault(value: Any) -> Fault:
    try:
        Timestamp().FromJsonString(str(value) if kind(value) in ("a date", "text") else "")
    except ValueError:
        return f"must be a time, not {_shown(value)}", 'write one such as "2026-11-20T15:30:00Z"'
    return RIGHT


def _enum_fault(value: Any, field: FieldDescriptor) -> Fault:
    numbers = {one.name: str(one.number) for one in field.enum_type.values}
    known = {"text": [*numbers], "a number": [*numbers.values()]}
    if value in known.get(kind(value), []):
        return RIGHT
    names = [name for name, number in numbers.items() if number != "0"]  # 0 is UNSPECIFIED
    return f"unknown value {_shown(value)}", did_you_mean(str(value), names)


CHECKS: dict[str, Callable[[Any], Fault]] = {
    "string": _text_fault,
    "boolean": _boolean_fault,
    "double": partial(_number_fault, largest=math.inf),
    "float": partial(_number_fault, largest=LARGEST_FLOAT),
    "int64": partial(_whole_number_fault, bits=64),
    "int32": partial(_whole_number_fault, bits=32),
    DURATION: _duration_fault,
    TIMESTAMP: _timestamp_fault,
}


def _written(value: Any) -> str:
    """A scalar as its author wrote it; JSON's true is Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    """A value in a sentence: text in quotes, numbers and the like as written, the rest by kind."""
    if isinstance(value, dict | list):
        return kind(value)
    return _quoted(value) if kind(value) in ("text", "a special value") else _written(value)[:40]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
