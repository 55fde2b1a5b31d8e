"""Documents agree with the rules: docs/rules.md is their own page, the others link to it and count nothing by hand."""

import re

import pytest

from tests.conftest import ROOT
from vertex_launch import catalog
from vertex_launch.rules import explain


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_of_the_rules_is_what_they_say() -> None:
    assert text("docs/rules.md") == explain.page(catalog.standard())  # nox -s docs writes it anew


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_the_number_of_rules_is_written_by_no_hand(name: str) -> None:
    assert re.findall(r"\b\d+ rules\b", text(name)) == []


def test_the_page_of_the_rules_is_linked() -> None:
    assert "](docs/rules.md)" in text("README.md")
