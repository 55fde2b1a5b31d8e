"""What the documents say of rules and of proofs agrees with the rules and the tests themselves."""

import re

from tests.conftest import PROJECT, ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_number_of_rules_is_the_same_everywhere() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", text("docs/rules.md"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    for name in ("README.md", "CHANGELOG.md", "docs/rules.md"):
        assert re.findall(r"\b(\d+) rules\b", text(name)) == [str(len(rows))]


def test_the_page_of_the_rules_is_linked() -> None:
    assert "](docs/rules.md)" in text("README.md")


def test_every_promise_has_a_proof_and_every_proof_that_is_named_exists() -> None:
    files = [path for folder in ("tests", PROJECT) for path in (ROOT / folder).rglob("test_*.py")]
    tests = {name for path in files for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.*) \|$", text("docs/proofs.md"), re.MULTILINE)[1:]
    assert len(rows) > 40
    for promise, proof, _ in rows:
        named = set(re.findall(r"`(test_[\w.]+)`", proof))
        assert named, promise
        assert named <= tests | {path.name for path in files}
