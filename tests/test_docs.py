"""Documents name the rules and tests that exist, give the rules' number nowhere by hand, and link to what is there."""

import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT
from vertex_launch import catalog
from vertex_launch.rules import explain

RULES = "docs/launcher/rules.md"
PAGES = [
    *(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))),
    *(Path("vertex_launch/README.md"), Path(PROJECT, "README.md")),
]
# A page that is read elsewhere too, on an index or in a project, names its target in full.
HERE = "https://github.com/org/vertex-dist-template/"
LINK = re.compile(r"\](?:\(|: )([^)\s]+)")


def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_page_of_the_rules_is_what_they_say() -> None:
    assert text(RULES) == explain.page(catalog.standard())  # nox -s docs writes it anew


def test_no_other_page_gives_the_number_of_rules() -> None:
    assert [page for page in PAGES if str(page) != RULES and re.search(r"\d rules\b", text(page))] == []


def test_the_page_of_the_rules_is_linked() -> None:
    assert f"]({RULES})" in text("README.md")


def anchors(path: Path) -> set[str]:
    """Return the fragments that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def target(page: Path, link: str) -> Path:
    """Return the file of this repository to which a link of a page leads."""
    if link.startswith(HERE):
        return ROOT.joinpath(*link.removeprefix(HERE).split("/")[2:])  # behind blob/main
    return ROOT / page.parent / link if link else ROOT / page


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    links = [link for link in LINK.findall(text(page)) if link.startswith(HERE) or ":" not in link]
    for path, _, fragment in (link.partition("#") for link in links):
        assert target(page, path).exists(), path
        assert not fragment or fragment in anchors(target(page, path)), f"{path}#{fragment}"


def test_every_promise_has_a_proof_and_every_proof_that_is_named_exists() -> None:
    files = [path for folder in ("tests", PROJECT) for path in (ROOT / folder).rglob("test_*.py")]
    tests = {name for path in files for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.*) \|$", text("docs/proofs.md"), re.MULTILINE)[1:]
    assert len(rows) > 40
    for promise, proof, _ in rows:
        named = set(re.findall(r"`(test_[\w.]+)`", proof))
        assert named, promise
        assert named <= tests | {path.name for path in files}
