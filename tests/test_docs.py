"""What the documents say of the rules agrees with the page that the rules write themselves."""

import re

from tests.conftest import ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_number_of_rules_is_the_same_everywhere() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", text("docs/rules.md"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    for name in ("README.md", "CHANGELOG.md", "docs/rules.md"):
        assert re.findall(r"\b(\d+) rules\b", text(name)) == [str(len(rows))]


def test_the_page_of_the_rules_is_linked() -> None:
    assert "](docs/rules.md)" in text("README.md")
