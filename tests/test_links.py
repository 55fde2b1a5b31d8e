"""The links of a project lead to the pages of the template that it was baked from, wherever that was."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.conftest import ROOT, cookiecutter, copy_template
from tests.gits import commit, done
from tests.test_docs import address, anchors
from tests.test_launcher_line import CRUFT, Origin, origin, reach

__all__ = ["origin"]  # a fixture

FALLBACK = f"{address()}/blob/main"  # for what no browser can look into
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def links(project: Path) -> list[str]:
    """Return the links of a project to pages of the template."""
    text = (project / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE)
    assert len(found) > 20
    return found


def pages(project: Path) -> str:
    """Return what all of them begin with."""
    (found,) = {re.split("/(?:docs|launcher)/", link)[0] for link in links(project)}
    return found


def test_each_link_of_a_project_from_a_folder_opens_a_page_at_a_heading(tmp_path: Path) -> None:
    template = copy_template(tmp_path / "a template")
    shutil.copytree(ROOT / "docs", template / "docs")
    baked = cookiecutter(tmp_path, "--no-input", template=str(template))
    for page, _, fragment in (link.partition("#") for link in links(baked.project)):
        assert page.startswith(f"{template.as_uri()}/")
        path = Path(unquote(page.removeprefix("file://")))
        assert path.is_file(), page
        assert not fragment or fragment in anchors(path), f"{page}#{fragment}"
    assert "requirements/laptop.txt and README.md contain a path on this machine." in baked.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("{folder}", "{folder_uri}"),
        ("git+{folder_uri}", "{folder_uri}"),
        ("git+{bare_uri}", FALLBACK),
        ("{archive}", FALLBACK),
        ("https://git.example.com/org/tpl.git", "https://git.example.com/org/tpl/blob/{commit}"),
        ("git@github.com:org/tpl.git", "https://github.com/org/tpl/blob/{commit}"),
    ],
)
def test_links_follow_the_template(
    origin: Origin, tmp_path: Path, typed: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {**origin._asdict(), "folder_uri": origin.folder.as_uri(), "bare_uri": origin.bare.as_uri()}
    if ".com" in typed:
        reach(origin, typed, tmp_path, monkeypatch)
    baked = cookiecutter(tmp_path, "--no-input", template=typed.format_map(names))
    assert pages(baked.project) == found.format_map(names)
    assert ("README.md contain" in baked.stdout) == found.startswith("{folder")


@pytest.mark.slow
def test_an_update_changes_no_link_of_a_project_that_follows_the_template(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = "https://git.example.com/org/tpl.git"
    bare = Path(shutil.copytree(origin.bare, tmp_path / "bare.git"))
    reach(origin._replace(bare=bare), there, tmp_path, monkeypatch)
    done(tmp_path, *CRUFT, "create", there, "--no-input")
    project = tmp_path / "distributed-training"
    assert pages(project) == "https://git.example.com/org/tpl/blob/HEAD"
    commit(project, "Created")
    newer = tmp_path / "newer"
    done(tmp_path, "git", "clone", "--quiet", str(bare), str(newer))
    with (newer / "launcher/README.md").open("a", encoding="utf-8") as file:
        file.write("\nNewer.\n")
    commit(newer, "Newer")
    done(newer, "git", "push", "--quiet", "origin", "main")
    done(project, *CRUFT, "update", "--skip-apply-ask")
    assert done(project, "git", "diff", "--name-only", "HEAD").split() == [".cruft.json", "requirements/laptop.txt"]


def hook(**answers: str) -> dict[str, Any]:
    """Return the names of the hook, with these answers."""
    text = (ROOT / "hooks/post_gen_project.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "hook"}
    exec(text.replace("{{ cookiecutter | tojson }}", json.dumps(answers)), names)
    return names


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("https://github.com/org/tpl", f"https://github.com/org/tpl/blob/{COMMIT}"),
        ("git+https://ada:secret@example.com:8443/org/tpl.git/", f"https://example.com:8443/org/tpl/blob/{COMMIT}"),
        ("https://gitlab.com/org/team/tpl.git", f"https://gitlab.com/org/team/tpl/-/blob/{COMMIT}"),
        ("ssh://git@gitlab.example.com:2222/org/tpl.git", f"https://gitlab.example.com/org/tpl/-/blob/{COMMIT}"),
        ("git@bitbucket.org:org/tpl.git", f"https://bitbucket.org/org/tpl/src/{COMMIT}"),
        ("git://codeberg.org/org/tpl", f"https://codeberg.org/org/tpl/src/{COMMIT}"),
        ("http://git.local/tpl", f"http://git.local/tpl/blob/{COMMIT}"),
        ("/no/such folder", "FALLBACK"),
    ],
)
def test_an_address_of_git_is_one_of_the_web(typed: str, found: str) -> None:
    names = hook(_pages="FALLBACK")
    assert names["pages"](names["at_commit"](typed, COMMIT)) == found


@pytest.mark.parametrize(
    ("archive", "found"),
    [
        ("https://github.com/org/tpl/archive/refs/heads/main.zip", "https://github.com/org/tpl/blob/main"),
        (f"https://github.com/org/tpl/archive/{COMMIT}.zip", f"https://github.com/org/tpl/blob/{COMMIT}"),
        ("https://gitlab.com/org/tpl/-/archive/v1.2/tpl-v1.2.zip", "https://gitlab.com/org/tpl/-/blob/v1.2"),
        ("https://example.com/tpl.zip", "FALLBACK"),
    ],
)
def test_an_archive_of_a_host_of_git_has_its_pages_there(archive: str, found: str) -> None:
    names = hook(_pages="FALLBACK", _template=archive)
    assert names["pages"](names["origin"](archive)) == found
