"""Every difference between a YAML tree and the protobuf message that it stands for, not only the first.

The message's own descriptor is the schema, so a new release of google-cloud-aiplatform brings its new fields.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import (  # type: ignore[import-untyped, unused-ignore]
    Descriptor,
    FieldDescriptor,
)
from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped, unused-ignore]
from yaml import MappingNode, Node

from vertex_launch import yaml_nodes
from vertex_launch.errors import did_you_mean

# Messages that JSON writes in a form of their own. Source: protobuf documentation, "ProtoJSON format", 2026.
WELL_KNOWN = "google.protobuf."
DURATION, TIMESTAMP, ANY = (f"{WELL_KNOWN}{name}" for name in ("Duration", "Timestamp", "Any"))
FREE = {f"{WELL_KNOWN}Value": "", f"{WELL_KNOWN}Struct": "a mapping", f"{WELL_KNOWN}ListValue": "a list"}
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
SECONDS = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?s")
LARGEST_FLOAT = 3.4028234e38


class Fault(NamedTuple):
    """Where in the document, such as `workerPoolSpecs[1].machineSpec` or "" for its top, and what is wrong there."""

    place: str
    text: str
    line: int = 0  # where that is not the line of the place

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


Faults = Iterator[Fault]


def faults(mapping: MappingNode, message: Descriptor, place: str = "") -> Faults:
    """Every difference, in the order of the document; `place` is the mapping's own."""
    fields, lines = {field.json_name: field for field in message.fields}, yaml_nodes.lines_of_keys(mapping)
    yield from _repeated(mapping, place)
    for key, value in yaml_nodes.items(mapping).items():
        field = fields.get(key) or message.fields_by_name.get(key)
        if field is None:
            text = f"unknown key {_quoted(key)}; {did_you_mean(key, fields)}"
            yield Fault(place, text, lines[key])
            continue
        if key != field.json_name:
            text = f"the key {_quoted(key)} is snake_case; write {field.json_name}, as gcloud does"
            yield Fault(place, text, lines[key])
        yield from _field_faults(value, field, _below(place, field.json_name))
    yield from _oneof_faults(mapping, message, place)


def _below(place: str, key: str) -> str:
    return f"{place}.{key}".lstrip(".")


def _repeated(mapping: MappingNode, place: str) -> Faults:
    for key, where, line in yaml_nodes.repeated(mapping):
        yield Fault(place, f"the key {_quoted(key)} is {where}; keep one of them", line)


def _oneof_faults(mapping: MappingNode, message: Descriptor, place: str) -> Faults:
    keys = yaml_nodes.items(mapping).keys()
    for oneof in message.oneofs:
        given = [field.json_name for field in oneof.fields if {field.json_name, field.name} & keys]
        if len(given) > 1:
            yield Fault(place, f"{' and '.join(given)} exclude each other; keep one")


def _field_faults(node: Node, field: FieldDescriptor, place: str) -> Faults:
    kind = yaml_nodes.kind(node)
    if is_map(field):
        yield from _map_faults(node, field, place)
    elif not field.is_repeated:
        yield from _value_faults(node, field, place)
    elif kind != "a list":
        yield Fault(place, f"must be a list, not {kind}; begin each of its items with a dash")
    else:
        for index, item in enumerate(node.value):
            yield from _value_faults(item, field, f"{place}[{index}]")


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _map_faults(node: Node, field: FieldDescriptor, place: str) -> Faults:
    """Keys that the user chooses, as in labels."""
    if not isinstance(node, MappingNode):
        yield Fault(place, f"must be a mapping, not {yaml_nodes.kind(node)}; write name: value pairs")
        return
    yield from _repeated(node, place)
    for key, value in yaml_nodes.items(node).items():
        yield from _value_faults(value, field.message_type.fields_by_name["value"], _below(place, key))


def _value_faults(node: Node, field: FieldDescriptor, place: str) -> Faults:
    message = field.message_type
    name = message.full_name if message else ""
    if name in FREE:
        yield from _free_faults(node, place, FREE[name])
    elif yaml_nodes.kind(node) == "nothing":
        cure = "write {} to leave it empty" if message else "give it one or remove it"
        yield Fault(place, f"has no value; {cure}")
    elif name == ANY:
        yield Fault(place, "is filled in by the service; remove it")
    elif message is None or name.startswith(WELL_KNOWN):
        fault = _scalar_fault(node, field)
        if fault:
            yield Fault(place, fault)
    elif isinstance(node, MappingNode):
        yield from faults(node, message, place)
    else:
        names = ", ".join(inner.json_name for inner in message.fields)
        yield Fault(place, f"must be a mapping, not {yaml_nodes.kind(node)}; its keys are {names}")


def _free_faults(node: Node, place: str, wanted: str = "") -> Faults:
    """Anything goes that JSON can hold, if it is of the wanted kind."""
    kind = yaml_nodes.kind(node)
    if wanted and kind != wanted:
        yield Fault(place, f"must be {wanted}, not {kind}; write one")
    elif isinstance(node, MappingNode):
        yield from _repeated(node, place)
        for key, value in yaml_nodes.items(node).items():
            yield from _free_faults(value, _below(place, key))
    elif kind == "a list":
        for index, item in enumerate(node.value):
            yield from _free_faults(item, f"{place}[{index}]")
    elif kind == "a number" and not math.isfinite(_number(node)):
        yield Fault(place, _not_a_number(node))


def _scalar_fault(node: Node, field: FieldDescriptor) -> str:
    """What is wrong with one value, or "" """
    message = field.message_type
    if message and message.full_name == DURATION:
        return _duration_fault(node)
    if message and message.full_name == TIMESTAMP:
        return _timestamp_fault(node)
    if message:  # a wrapper, such as google.protobuf.BoolValue
        return _scalar_fault(node, message.fields_by_name["value"])
    if field.enum_type:
        return _enum_fault(node, field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean_fault(node)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text_fault(node)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _number_fault(node, field)
    return _whole_number_fault(node, field)


def _text_fault(node: Node) -> str:
    kind = yaml_nodes.kind(node)
    if kind == "text":
        return ""
    if kind in ("a mapping", "a list"):
        return f"must be text, not {kind}; write one value, in quotes"
    return f"must be text, and {_shown(node)} is {kind}; quote it: {_quoted(node.value)}"


def _whole_number_fault(node: Node, field: FieldDescriptor) -> str:
    # The API itself writes its 64-bit numbers in quotes.
    digits = yaml_nodes.kind(node) in ("a number", "text") and WHOLE_NUMBER.fullmatch(node.value)
    bits = 64 if field.cpp_type == FieldDescriptor.CPPTYPE_INT64 else 32
    if digits and abs(int(node.value)) < 2 ** (bits - 1):
        return ""
    return f"must be a whole number of at most {bits} bits, not {_shown(node)}; write plain digits, such as 4"


def _number_fault(node: Node, field: FieldDescriptor) -> str:
    largest = LARGEST_FLOAT if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else math.inf
    if yaml_nodes.kind(node) in ("a number", "text") and -largest < _number(node) < largest:
        return ""
    return _not_a_number(node)


def _not_a_number(node: Node) -> str:
    return f"must be a number, not {_shown(node)}; write digits, such as 0.001 or 1.0e-3"


def _number(node: Node) -> float:
    """NaN for text or for digits in a way that only YAML reads."""
    return float(node.value) if NUMBER.fullmatch(node.value) else math.nan


def _boolean_fault(node: Node) -> str:
    if yaml_nodes.kind(node) == "a boolean" and node.value.lower() in ("true", "false"):
        return ""
    return f"must be a boolean, not {_shown(node)}; write true or false, without quotes"


def _duration_fault(node: Node) -> str:
    value = node.value if yaml_nodes.kind(node) in ("a number", "text") else ""
    if yaml_nodes.kind(node) == "text" and SECONDS.fullmatch(value):
        return ""
    example = f"{value}s" if value.isdigit() else "3600s"
    return f"must be seconds that end in s, not {_shown(node)}; write {_quoted(example)}"


def _timestamp_fault(node: Node) -> str:
    try:
        Timestamp().FromJsonString(node.value if yaml_nodes.kind(node) in ("a date", "text") else "")
    except ValueError:
        return f'must be a time, not {_shown(node)}; write one such as "2026-11-20T15:30:00Z"'
    return ""


def _enum_fault(node: Node, field: FieldDescriptor) -> str:
    values = {value.name: str(value.number) for value in field.enum_type.values}
    if yaml_nodes.kind(node) == "text" and node.value in values:
        return ""
    if yaml_nodes.kind(node) == "a number" and node.value in values.values():
        return ""
    names = [name for name, number in values.items() if number != "0"]  # 0 is UNSPECIFIED
    return f"unknown value {_shown(node)}; {did_you_mean(str(node.value), names)}"


def _shown(node: Node) -> str:
    """A value in a sentence: text in quotes, numbers and the like as written, the rest by kind."""
    kind = yaml_nodes.kind(node)
    if kind in ("a mapping", "a list"):
        return kind
    return _quoted(node.value) if kind in ("text", "a special value") else str(node.value)[:40]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
