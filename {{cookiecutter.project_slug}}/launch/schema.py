"""Every difference between a YAML tree and the protobuf message that it stands for, not only the first.

The message's own descriptor is the schema, so a new release of google-cloud-aiplatform brings its new fields.
"""

import json
import re
from collections.abc import Iterator

from google.protobuf.descriptor import (  # type: ignore[import-untyped, unused-ignore]
    Descriptor,
    FieldDescriptor,
)
from yaml import MappingNode, Node

from launch import document
from launch.faults import did_you_mean

DURATION = "google.protobuf.Duration"


def faults(mapping: MappingNode, message: Descriptor, place: str = "") -> Iterator[str]:
    """Sentences that begin with the place in the mapping, such as `workerPoolSpecs[1].machineSpec: `."""
    fields = {field.json_name: field for field in message.fields}
    start = f"{place}: " if place else ""
    for key, lines in document.repeated(mapping):
        yield f"{start}the key {_quoted(key)} is in lines {' and '.join(map(str, lines))}; keep one of them"
    for key, value in document.items(mapping).items():
        field = fields.get(key) or message.fields_by_name.get(key)
        if field is None:
            yield f"{start}unknown key {_quoted(key)}; {did_you_mean(key, fields)}"
            continue
        if key != field.json_name:
            yield f"{start}the key {_quoted(key)} is snake_case; write {field.json_name}, as gcloud does"
        yield from _field_faults(value, field, f"{place}.{field.json_name}".lstrip("."))
    yield from _oneof_faults(mapping, message, start)


def _oneof_faults(mapping: MappingNode, message: Descriptor, start: str) -> Iterator[str]:
    keys = document.items(mapping).keys()
    for oneof in message.oneofs:
        given = [field.json_name for field in oneof.fields if {field.json_name, field.name} & keys]
        if len(given) > 1:
            yield f"{start}{' and '.join(given)} exclude each other; keep one"


def _field_faults(node: Node, field: FieldDescriptor, place: str) -> Iterator[str]:
    if not field.is_repeated:
        yield from _value_faults(node, field, place)
    elif document.kind(node) != "a list":
        yield f"{place}: must be a list, not {document.kind(node)}; begin each of its items with a dash"
    else:
        for index, item in enumerate(node.value):
            yield from _value_faults(item, field, f"{place}[{index}]")


def _value_faults(node: Node, field: FieldDescriptor, place: str) -> Iterator[str]:
    message = field.message_type
    if document.kind(node) == "nothing":
        cure = "write {} to leave it empty" if message else "give it one or remove it"
        yield f"{place}: has no value; {cure}"
    elif message is None or message.full_name == DURATION:
        fault = _scalar_fault(node, field)
        if fault:
            yield f"{place}: {fault}"
    elif isinstance(node, MappingNode):
        yield from faults(node, message, place)
    else:
        names = ", ".join(inner.json_name for inner in message.fields)
        yield f"{place}: must be a mapping, not {document.kind(node)}; its keys are {names}"


def _scalar_fault(node: Node, field: FieldDescriptor) -> str:
    """What is wrong with one value, or "" """
    if field.message_type:
        return _duration_fault(node)
    if field.enum_type:
        return _enum_fault(node, field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean_fault(node)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text_fault(node)
    return _whole_number_fault(node, field)


def _text_fault(node: Node) -> str:
    kind = document.kind(node)
    if kind == "text":
        return ""
    if kind in ("a mapping", "a list"):
        return f"must be text, not {kind}; write one value, in quotes"
    return f"must be text, and YAML reads {_shown(node)} as {kind}; quote it: {_quoted(node.value)}"


def _whole_number_fault(node: Node, field: FieldDescriptor) -> str:
    # The API itself writes its 64-bit numbers in quotes.
    digits = document.kind(node) in ("a number", "text") and re.fullmatch(r"0|-?[1-9][0-9]{0,18}", node.value)
    bits = 64 if field.cpp_type == FieldDescriptor.CPPTYPE_INT64 else 32
    if digits and abs(int(node.value)) < 2 ** (bits - 1):
        return ""
    return f"must be a whole number of at most {bits} bits, not {_shown(node)}; write plain digits, such as 4"


def _boolean_fault(node: Node) -> str:
    if document.kind(node) == "a boolean" and node.value.lower() in ("true", "false"):
        return ""
    return f"must be a boolean, not {_shown(node)}; write true or false, without quotes"


def _duration_fault(node: Node) -> str:
    value = node.value if document.kind(node) in ("a number", "text") else ""
    if document.kind(node) == "text" and re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,9})?s", value):
        return ""
    example = f"{value}s" if value.isdigit() else "3600s"
    return f"must be seconds that end in s, not {_shown(node)}; write {_quoted(example)}"


def _enum_fault(node: Node, field: FieldDescriptor) -> str:
    values = {value.name: str(value.number) for value in field.enum_type.values}
    if document.kind(node) == "text" and node.value in values:
        return ""
    if document.kind(node) == "a number" and node.value in values.values():
        return ""
    names = [name for name, number in values.items() if number != "0"]  # 0 is UNSPECIFIED
    return f"unknown value {_shown(node)}; {did_you_mean(str(node.value), names)}"


def _shown(node: Node) -> str:
    """A value in a sentence: text in quotes, numbers and the like as written, the rest by kind."""
    kind = document.kind(node)
    if kind in ("a mapping", "a list"):
        return kind
    return _quoted(node.value) if kind in ("text", "a special value") else str(node.value)[:40]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
