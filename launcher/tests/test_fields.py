"""Every field of a job file has its rules, or says that nothing more is known of it."""

from collections.abc import Iterator
from typing import Any

from google.cloud import aiplatform_v1, aiplatform_v1beta1

from vertex_launch.job import proto_validation
from vertex_launch.rules import RULES, explain

ELSEWHERE = {"form", "region-name", "region-words"}  # rules that look at the whole file, or at the settings


def test_every_field_of_the_api_has_its_line_and_no_other_is_there() -> None:
    assert {message: {*names} for message, names in explain.fields_of_api().items()} == {
        message: {*lines} for message, lines in explain.FIELDS.items()
    }


def beta_only(stable: Any, beta: Any, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the message and the name of each field that a message of v1beta1 has beyond v1's, at any depth."""
    known = {field.json_name: field for field in stable.fields}
    if stable.full_name in seen or stable.full_name.startswith(proto_validation.WELL_KNOWN):
        return
    seen.add(stable.full_name)
    for field in beta.fields:
        if field.json_name not in known:
            yield stable.name, field.json_name
        elif field.message_type:
            yield from beta_only(known[field.json_name].message_type, field.message_type, seen)


def test_the_fields_of_v1beta1_alone_are_known_as_such() -> None:
    name, seen = "HyperparameterTuningJob", set[str]()
    stable, beta = (getattr(api, name).pb().DESCRIPTOR for api in (aiplatform_v1, aiplatform_v1beta1))
    known = {(message, key) for message, keys in proto_validation.BETA.items() for key in keys}
    assert {*beta_only(stable, beta, seen)} == known


def test_every_rule_looks_at_a_field_or_elsewhere() -> None:
    lines = [line for lines in explain.FIELDS.values() for line in lines.values() if not isinstance(line, str)]
    assert {code for line in lines for code in line} | ELSEWHERE == RULES.keys()


def test_the_words_for_a_field_without_rules_are_few() -> None:
    words = {line for lines in explain.FIELDS.values() for line in lines.values() if isinstance(line, str)}
    assert words == {*explain.WORDS}
