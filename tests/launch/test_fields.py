"""Every field of a job file has its rules, or says that nothing more is known of it."""

from vertex_launch.rules import RULES, fields

ELSEWHERE = {"form", "region-name", "region-words"}  # rules that look at the whole file, or at the settings


def test_every_field_of_the_api_has_its_line_and_no_other_is_there() -> None:
    assert {message: {*names} for message, names in fields.of_api().items()} == {
        message: {*lines} for message, lines in fields.FIELDS.items()
    }


def test_every_rule_looks_at_a_field_or_elsewhere() -> None:
    lines = [line for lines in fields.FIELDS.values() for line in lines.values() if not isinstance(line, str)]
    assert {code for line in lines for code in line} | ELSEWHERE == RULES.keys()


def test_the_words_for_a_field_without_rules_are_few() -> None:
    words = {line for lines in fields.FIELDS.values() for line in lines.values() if isinstance(line, str)}
    assert words == {fields.FORM, fields.OUTPUT, fields.HERE, fields.BELOW}
