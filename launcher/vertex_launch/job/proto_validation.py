"""Validation of a document against a protobuf message.

This module finds all errors in a document, not only the first one. The protobuf message's descriptor is the schema.
Therefore, this module automatically supports fields that a new google-cloud-aiplatform release adds.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from vertex_launch.errors import Finding, Findings, did_you_mean
from vertex_launch.facts import aliases
from vertex_launch.job.job_resource import camel
from vertex_launch.job.strict_yaml import Mapping, kind

PACKAGE = "google.cloud.aiplatform.v1."
# Messages with a special form in JSON. Source: protobuf documentation, "ProtoJSON format", 2026.
WELL_KNOWN = "google.protobuf."
DURATION, TIMESTAMP, ANY = (f"{WELL_KNOWN}{name}" for name in ("Duration", "Timestamp", "Any"))
VALUE = f"{WELL_KNOWN}Value"
FREE = {VALUE: "", f"{WELL_KNOWN}Struct": "a mapping", f"{WELL_KNOWN}ListValue": "a list"}
# Enums for which users often write different value names.
CURES = {"AcceleratorType": aliases.accelerator_cure, "Strategy": aliases.strategy_cure}
# Messages whose lists accept only numbers -> the field to use for text.
FOR_TEXT = {"DiscreteValueSpec": "use a categoricalValueSpec for text"}
FOR_TEXT |= dict.fromkeys(
    ("DiscreteValueCondition", "IntValueCondition"),
    "for text, use parentCategoricalValues under the parameter that has these values",
)
BETA = aliases.FACTS["beta"]  # fields that exist only in v1beta1, keyed by message, each with a solution
LINES_SHOWN = 3  # of a repeated key
NAMES = ("string", "double", "float", "int64", "enum")
SCALARS = {getattr(FieldDescriptor, f"CPPTYPE_{name.upper()}"): name for name in NAMES}
SCALARS[FieldDescriptor.CPPTYPE_BOOL] = "boolean"


@dataclass(frozen=True)
class Form:
    """The text format of a scalar type. Numbers can be quoted, because the API quotes 64-bit numbers."""

    noun: str
    pattern: str
    cure: str
    kinds: tuple[str, ...] = ("a number", "text")
    largest: float = math.inf  # math.inf if the scalar isn't a number

    def fits(self, value: Any) -> bool:
        if kind(value) not in self.kinds or not re.fullmatch(self.pattern, _written(value)):
            return False
        return self.largest == math.inf or abs(type(self.largest)(value)) <= self.largest  # an int for exact types


NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
WHOLE_NUMBER = r"0|-?[1-9][0-9]{0,18}"
RFC_3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[-+][0-9]{2}:[0-9]{2})"
PLAIN, DIGITS = "write plain digits, such as 4", "write digits, such as 0.001 or 1.0e-3"
FORMS = {
    "boolean": Form("a boolean", "(?i:true|false)", "write true or false, without quotes", ("a boolean",)),
    "double": Form("a number", NUMBER, DIGITS, largest=1.7976931348623157e308),
    "float": Form("a number", NUMBER, DIGITS, largest=3.4028234e38),
    "int64": Form("a whole number of at most 64 bits", WHOLE_NUMBER, PLAIN, largest=2**63 - 1),
    "int32": Form("a whole number of at most 32 bits", WHOLE_NUMBER, PLAIN, largest=2**31 - 1),
    DURATION: Form("seconds with the suffix s", r"[0-9]{1,11}(\.[0-9]{1,9})?s", 'write "3600s"', ("text",)),
    TIMESTAMP: Form("a time", RFC_3339, 'write a time such as "2026-11-20T15:30:00Z"', ("a date", "text")),
}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def item(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field that describes the values of a map. If the field isn't a map, return the field itself."""
    return field.message_type.fields_by_name["value"] if is_map(field) else field


def message_in(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of the API messages in a field or in a map's values.

    Return None for scalars and for messages that have a special form in JSON.
    """
    message = item(field).message_type
    return None if message is None or message.full_name.startswith(WELL_KNOWN) else message


def messages_below(
    roots: Iterable[Descriptor], inside: Callable[[FieldDescriptor], Descriptor | None] = message_in
) -> list[Descriptor]:
    """Return the root messages and all messages that they contain, without duplicates.

    `inside` returns the message that a field contains.
    """
    messages = [*roots]
    for message in messages:  # the list grows in the loop
        found = filter(None, map(inside, message.fields))
        messages += dict.fromkeys(one for one in found if one not in messages)
    return messages


def short_name(message: Descriptor) -> str:
    return str(message.full_name).removeprefix(PACKAGE)


def type_name(field: FieldDescriptor) -> str:
    """Return the full name of a field's message. For a scalar field, return the type, such as int64 or enum."""
    message = field.message_type
    if message is None:
        return SCALARS.get(field.cpp_type, "int32")
    wraps = message.full_name.startswith(WELL_KNOWN) and message.full_name not in (DURATION, TIMESTAMP, ANY, *FREE)
    return type_name(message.fields_by_name["value"]) if wraps else str(message.full_name)


def findings(value: Any, message: Descriptor, place: str = "") -> Findings:
    """Yield a finding for every error in a value, in document order. `place` is the value's path."""
    fields = {field.json_name: field for field in message.fields}
    known = {field.name: field for field in message.fields} | fields
    if not isinstance(value, Mapping):
        yield Finding(place, f"must be a mapping, not {kind(value)}", f"its keys are {', '.join(fields)}")
        return
    yield from _repeated(value, place)
    for key, inner in value.items():
        field = known.get(key)
        if field is None:
            yield Finding(place, *_unknown(key, message.name, fields), value.lines[key])
            continue
        if key != field.json_name:
            cure = f"write {field.json_name}, as gcloud does"
            yield Finding(place, f"the key {_quoted(key)} is snake_case", cure, value.lines[key])
        yield from _of_field(inner, field, _below(place, field.json_name))
    for oneof in message.oneofs:
        present = [field.json_name for field in oneof.fields if {field.json_name, field.name} & value.keys()]
        if len(present) > 1:
            yield Finding(place, f"{' and '.join(present)} can't be set together", "keep only one")


def _unknown(key: str, message: str, fields: Iterable[str]) -> tuple[str, str]:
    """Return the problem and the advice for a key that isn't a field of the message."""
    if cure := BETA.get(message, {}).get(camel(key)):
        return f"the field {camel(key)} exists only in v1beta1, but jobs are read as v1", cure
    return f"unknown key {_quoted(key)}", did_you_mean(key, fields)


def relaxed(value: Any, message: Descriptor) -> Any:
    """Convert the keys of a document to camelCase and remove nulls, as protobuf's JSON parser does.

    A key that occurs in both camelCase and snake_case is treated as a repeated key.
    Source: protobuf documentation, "ProtoJSON format", 2026.
    """
    if not isinstance(value, Mapping):
        return value
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    names = {key: fields[key].json_name if key in fields else key for key in value}
    pairs = [
        (names[key], _relaxed_field(inner, fields[key]) if key in fields else inner)
        for key, inner in value.items()
        if inner is not None or (key in fields and type_name(fields[key]) == VALUE)
    ]
    return Mapping(pairs, [(names[key], line) for key in value for line in value.repeated.get(key, [value.lines[key]])])


def _relaxed_field(value: Any, field: FieldDescriptor) -> Any:
    """Apply `relaxed` to the messages in a field. Don't change maps or messages whose JSON form is special."""
    message = None if is_map(field) else message_in(field)
    if message is None:
        return value
    return [relaxed(item, message) for item in value] if isinstance(value, list) else relaxed(value, message)


def _below(place: str, key: str) -> str:
    return f"{place}.{key}".lstrip(".")


def _repeated(mapping: Mapping, place: str) -> Findings:
    for key, lines in mapping.repeated.items():
        shown = [str(line) for line in lines[:LINES_SHOWN]]
        shown += [f"{len(lines) - LINES_SHOWN:,} more"] if len(lines) > LINES_SHOWN else []
        where = f"in lines {' and '.join(shown)}" if lines[-1] else f"{len(lines)} times"
        yield Finding(place, f"the key {_quoted(key)} occurs {where}", "keep one of them", lines[-1])


def _inside(value: Mapping | list[Any], place: str, check: Callable[[Any, str], Findings]) -> Findings:
    """Yield the findings of `check` for each value in a list or in a mapping with user-defined keys."""
    if isinstance(value, Mapping):
        yield from _repeated(value, place)
        entries = [(_below(place, key), inner) for key, inner in value.items()]
    else:
        entries = [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
    for below, inner in entries:
        yield from check(inner, below)


def _of_field(value: Any, field: FieldDescriptor, place: str) -> Findings:
    of_value = partial(_of_value, item(field))
    if not field.is_repeated:
        yield from of_value(value, place)
    elif isinstance(value, Mapping if is_map(field) else list):
        yield from _inside(value, place, of_value)
    elif is_map(field):
        yield Finding(place, f"must be a mapping, not {kind(value)}", "write name: value pairs")
    else:
        keys = [*field.message_type.fields_by_camelcase_name] if field.message_type else []
        lone = isinstance(value, Mapping) and any(key in keys for key in value)
        cure = (
            "begin the item with a dash, because only gcloud accepts an item without one"
            if lone
            else "begin each item with a dash"
        )
        yield Finding(place, f"must be a list, not {kind(value)}", cure)


def _of_value(field: FieldDescriptor, value: Any, place: str) -> Findings:
    name = type_name(field)
    if name in FREE:
        yield from _of_free_form(FREE[name], value, place)
    elif value is None:
        cure = "write {} to leave it empty" if field.message_type else "add a value or remove the field"
        yield Finding(place, "has no value", cure)
    elif name == ANY:
        yield Finding(place, "only the service sets this field", "remove the field")
    elif name == "string":
        yield from _of_text(value, place)
    elif name == "enum":
        yield from _of_enum(value, field, place)
    elif name in FORMS:
        in_its_place = FOR_TEXT.get(field.containing_type.name, "")
        form = replace(FORMS[name], cure=in_its_place) if in_its_place and kind(value) == "text" else FORMS[name]
        yield from _of_form(value, form, place)
    else:
        yield from findings(value, field.message_type, place)


def _of_free_form(wanted: str, value: Any, place: str) -> Findings:
    """Yield the findings about a free-form value.

    The value can be any JSON value of the expected kind. If the expected kind is "", every value is valid.
    """
    if wanted and kind(value) != wanted:
        yield Finding(place, f"must be {wanted}, not {kind(value)}", "write one")
    elif isinstance(value, Mapping | list):
        yield from _inside(value, place, partial(_of_free_form, ""))
    elif kind(value) == "a number":
        yield from _of_form(value, FORMS["double"], place)


def _of_text(value: Any, place: str) -> Findings:
    if isinstance(value, dict | list):
        yield Finding(place, f"must be text, not {kind(value)}", "write one value in quotes")
    elif kind(value) != "text":
        cure = f"quote it: {_quoted(_written(value))}"
        yield Finding(place, f"must be text, but {_shown(value)} is {kind(value)}", cure)


def _of_enum(value: Any, field: FieldDescriptor, place: str) -> Findings:
    numbers = {member.name: str(member.number) for member in field.enum_type.values}
    allowed = {"text": [*numbers], "a number": [*numbers.values()]}
    if value not in allowed.get(kind(value), []):
        names = [name for name, number in numbers.items() if number != "0"]  # 0 is UNSPECIFIED
        cure = CURES.get(field.enum_type.name, did_you_mean)
        yield Finding(place, f"unknown value {_shown(value)}", cure(str(value), names))


def _of_form(value: Any, form: Form, place: str) -> Findings:
    if not form.fits(value):
        meant = form is FORMS[DURATION] and str(value).isdigit()
        yield Finding(place, f"must be {form.noun}, not {_shown(value)}", f'write "{value}s"' if meant else form.cure)


def _written(value: Any) -> str:
    """Return a scalar as text, in the form that the user's document uses.

    Convert a Python boolean to its JSON form.
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    """Return a value as text for an error message.

    Put text in quotes, and write other scalars as they appear in the user's document. For a list or a mapping, return
    only the value's kind.
    """
    if isinstance(value, dict | list):
        return kind(value)
    return _quoted(value) if kind(value) in ("text", "a special value") else _written(value)[:40]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
