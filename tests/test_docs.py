"""Documents name the rules and tests that exist, give the rules' number nowhere by hand, and link to what is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import project_tree
from tests.conftest import CACHES, PROJECT, ROOT, bake
from vertex_launch.facts import catalog
from vertex_launch.rules import explain

RULES = "launcher/docs/rules.md"
PAGES = [
    *(
        path.relative_to(ROOT)
        for place in ("*.md", "docs/*.md", "launcher/*.md", "launcher/docs/*.md")
        for path in ROOT.glob(place)
    ),
    Path(PROJECT, "README.md"),
]
LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)


def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def address() -> str:
    """Return the address of this repository, or of a fork, as the launcher's README gives it to pip."""
    found = re.search(r'pip install "git\+(https://[^#"]+)#subdirectory=launcher"', text("launcher/README.md"))
    assert found
    return found[1]


# A page that is read elsewhere too, on an index or in a project, names its target in full.
HERE = f"{address()}/"


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
    full = text(page).replace("{{ cookiecutter._pages }}", json.loads(text("cookiecutter.json"))["_pages"])
    links = [link for link in LINK.findall(full) if link.startswith(HERE) or ":" not in link]
    for path, _, fragment in (link.partition("#") for link in links):
        assert target(page, path).exists(), path
        assert not fragment or fragment in anchors(target(page, path)), f"{path}#{fragment}"


def test_every_promise_has_a_proof_and_every_proof_that_is_named_exists() -> None:
    files = [path for folder in ("tests", "launcher/tests", PROJECT) for path in (ROOT / folder).rglob("test_*.py")]
    tests = {name for path in files for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8"))}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.*) \|$", text("docs/proofs.md"), re.MULTILINE)[1:]
    assert len(rows) > 40
    for promise, proof, _ in rows:
        named = set(re.findall(r"`(test_[\w.]+)`", proof))
        assert named, promise
        assert named <= tests | {path.name for path in files}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A project of each framework with the defaults, as nox -s tree bakes them."""
    names = project_tree.FRAMEWORKS
    return {name: bake(tmp_path_factory.mktemp(name), framework=name.lower()).project for name in names}


def lines_of_the_tree() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file and folder in the tree of docs/project.md."""
    above: list[str] = []
    for line in text("docs/project.md").partition("```text\n")[2].partition("```")[0].splitlines():
        if found := re.match(r"((?:  )*)(\S+) *(.*)", line[: project_tree.COLUMN]):
            above = [*above[: len(found[1]) // 2], found[2]]
            yield "".join(above), line[project_tree.COLUMN :]


@pytest.mark.slow  # a fork with files of its own begins with nox -s tree
def test_the_tree_of_a_project_has_a_line_for_every_file(projects: dict[str, Path]) -> None:
    found = {str(path.relative_to(each)) for each in projects.values() for path in files(each)}
    lines = [path.removesuffix("/") for path, _ in lines_of_the_tree()]
    assert len(lines) == len(set(lines))
    assert {path.removesuffix("/__init__.py") for path in found} <= set(lines)
    assert [path for path, purpose in lines_of_the_tree() if not purpose] == []
    assert project_tree.ROWS.keys() - {path for path, _ in lines_of_the_tree()} == set()  # rows of files that are gone


@pytest.mark.slow
def test_the_tree_of_a_project_says_what_its_files_say(projects: dict[str, Path]) -> None:
    page = text("docs/project.md")
    assert page == project_tree.page(page, projects), "run nox -s tree"


def test_the_address_of_this_repository_is_where_contributing_says_and_nowhere_else() -> None:
    found = {str(path.relative_to(ROOT)) for path in files(ROOT) if owner_and_name().encode() in path.read_bytes()}
    assert found == {*address_places()}


def owner_and_name() -> str:
    """Return this repository's owner and name."""
    return address().removeprefix("https://").partition("/")[2]


def address_places() -> list[str]:
    """Return the files with the address, of which CONTRIBUTING.md speaks."""
    row = re.search(r"^\| the URL of your repository \| (.+?) \|", text("CONTRIBUTING.md"), re.MULTILINE)
    assert row
    return re.findall("`(.+?)`", row[1])


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of the repository, without the caches of checks that ran in place."""
    names = [path.name for path in folder.iterdir()]
    skipped = {*CACHES(str(folder), names), ".git", "demo"}
    for path in folder.iterdir():
        if path.name not in skipped:
            yield from files(path) if path.is_dir() else [path]
