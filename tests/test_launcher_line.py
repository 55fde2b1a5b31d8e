"""A bake installs the launcher from where its template came: each way to bake, the line that it writes, a check."""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import bake, cookiecutter, copy_template
from tests.gits import commit, done

CRUFT = (sys.executable, "-m", "cruft")
OFFLINE = ("--quiet", "--no-deps", "--no-build-isolation")  # with the libraries and the hatchling of these tests


class Origin(NamedTuple):
    """A template in a folder, as a bare repository, in an archive."""

    folder: Path
    bare: Path
    archive: Path
    commit: str


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    tmp = tmp_path_factory.mktemp("origin with spaces")
    folder = copy_template(tmp / "template")
    newest = commit(folder, "All")
    done(tmp, "git", "clone", "--quiet", "--bare", str(folder), "bare.git")
    archive = shutil.make_archive(str(tmp / "template"), "zip", tmp, "template")
    return Origin(folder, tmp / "bare.git", Path(archive), newest)


def line(project: Path) -> str:
    """Return the line of a project's requirements that brings the launcher, without the extras that it always has."""
    lines = (project / "requirements/laptop.txt").read_text(encoding="utf-8").splitlines()
    (found,) = [one for one in lines if one.startswith("vertex-launch[plots,search]")]
    return found.replace("[plots,search]", "", 1)


def check(project: Path, tmp: Path, **environ: str) -> None:
    """Install the launcher by that line alone, and check the project's jobs with it."""
    tmp.mkdir(exist_ok=True)
    where = ("--target", str(tmp / "installed"), "--cache-dir", str(tmp / "cache"))
    done(tmp, sys.executable, "-m", "pip", "install", *OFFLINE, *where, line(project), **environ)
    path = {"PYTHONPATH": str(tmp / "installed")}
    source = done(project, sys.executable, "-c", "import vertex_launch; print(vertex_launch.__file__)", **path)
    assert source.startswith(str(tmp / "installed"))
    jobs = [f"jobs/{path.name}" for path in sorted(project.glob("jobs/*.yaml"))]
    said = done(project, str(tmp / "installed/bin/vertex-launch"), "check", *jobs, **path)
    assert "jobs/workers.yaml: ok" in said.splitlines()


@pytest.mark.slow
def test_a_folder_is_named_and_the_owner_is_told_to_name_an_address_before_sharing(
    origin: Origin, tmp_path: Path
) -> None:
    baked = cookiecutter(tmp_path, "--no-input", template=str(origin.folder))
    assert line(baked.project) == f"vertex-launch @ {origin.folder.as_uri()}/launcher"
    assert "Before you share the project, replace this path with the template's git URL." in baked.stdout
    check(baked.project, tmp_path)


def test_a_relative_folder_is_named_by_its_whole_path(tmp_path: Path) -> None:
    template = copy_template(tmp_path / "template")
    baked = cookiecutter(tmp_path, "--no-input", template="../../template")
    assert line(baked.project) == f"vertex-launch @ {template.as_uri()}/launcher"


@pytest.mark.slow
def test_a_bare_clone_is_named_at_the_commit_that_was_baked(origin: Origin, tmp_path: Path) -> None:
    baked = cookiecutter(tmp_path, "--no-input", template=f"git+file://{origin.bare}")
    assert line(baked.project) == f"vertex-launch @ git+{origin.bare.as_uri()}@{origin.commit}#subdirectory=launcher"
    check(baked.project, tmp_path)


@pytest.mark.slow
@pytest.mark.proof
def test_a_zip_archive_is_named(origin: Origin, tmp_path: Path) -> None:
    baked = cookiecutter(tmp_path, "--no-input", template=str(origin.archive))
    assert line(baked.project) == f"vertex-launch @ {origin.archive.as_uri()}#subdirectory=launcher"
    check(baked.project, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("gh:org/tpl", "https://github.com/org/tpl.git"),
        pytest.param("gl:org/tpl", "https://gitlab.com/org/tpl.git", marks=pytest.mark.proof),
        ("bb:org/tpl.git", "https://bitbucket.org/org/tpl.git"),  # without .git, cookiecutter looks for Mercurial
    ],
)
def test_an_abbreviation_is_named_by_what_it_stands_for(
    origin: Origin, tmp_path: Path, typed: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(origin, address, tmp_path, monkeypatch)
    project = cookiecutter(tmp_path, "--no-input", template=typed).project
    assert line(project) == f"vertex-launch @ git+{address}@{origin.commit}#subdirectory=launcher"
    if typed.startswith("gh:"):
        check(project, tmp_path)


def reach(origin: Origin, address: str, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git find the template at an address of the internet."""
    (tmp / "gitconfig").write_text(f'[url "{origin.bare.as_uri()}"]\n\tinsteadOf = {address}\n', encoding="utf-8")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp / "gitconfig"))


def test_a_password_in_the_address_is_not_written_down(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(origin, "https://ada:secret@example.com/tpl.git", tmp_path, monkeypatch)
    project = cookiecutter(tmp_path, "--no-input", template="https://ada:secret@example.com/tpl.git").project
    assert line(project) == f"vertex-launch @ git+https://example.com/tpl.git@{origin.commit}#subdirectory=launcher"


@pytest.mark.slow
@pytest.mark.proof
def test_cruft_creates_a_project_and_links_another(origin: Origin, tmp_path: Path) -> None:
    done(tmp_path, *CRUFT, "create", str(origin.bare), "--no-input")
    project = tmp_path / "distributed-training"
    assert line(project) == f"vertex-launch @ git+{origin.bare.as_uri()}@{origin.commit}#subdirectory=launcher"
    linked = bake(tmp_path, project_slug="linked").project
    before = line(linked)
    done(linked, *CRUFT, "link", str(origin.bare), "--no-input")
    assert line(linked) == before
    for one in (project, linked):
        check(one, tmp_path / f"check-{one.name}")


@pytest.mark.slow
@pytest.mark.proof
def test_cruft_updates_the_line_with_the_project(origin: Origin, tmp_path: Path) -> None:
    template = tmp_path / "template"
    shutil.copytree(origin.folder, template)
    hook = template / "hooks/post_gen_project.py"
    present = hook.read_text(encoding="utf-8")
    hook.write_text(present.replace("{launcher(source)}", "{source}"), encoding="utf-8")  # as until November 2026
    older = commit(template, "Older")
    done(tmp_path, *CRUFT, "create", str(template), "--no-input")
    project = tmp_path / "distributed-training"
    assert line(project) == f"vertex-launch @ git+{template.as_uri()}@{older}"
    commit(project, "Created")
    hook.write_text(present, encoding="utf-8")
    newest = commit(template, "Newer")
    done(project, *CRUFT, "update", "--skip-apply-ask")
    assert line(project) == f"vertex-launch @ git+{template.as_uri()}@{newest}#subdirectory=launcher"
    check(project, tmp_path)


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ("0.2.0", "vertex-launch==0.2.0"),
        (">=0.2,<0.3", "vertex-launch>=0.2,<0.3"),
        ("vertex-launch~=0.2", "vertex-launch~=0.2"),
        ("https://example.com/vertex_launch-0.2.0-py3-none-any.whl",) * 2,
        ("vertex-launch @ git+ssh://git@example.com/tpl@v1", "git+ssh://git@example.com/tpl@v1"),
    ],
)
def test_an_answer_is_written_as_pip_takes_it(tmp_path: Path, answer: str, written: str) -> None:
    found = line(bake(tmp_path, launcher=answer).project)
    assert found == (f"vertex-launch @ {written}" if "://" in written else written)


@pytest.mark.slow
@pytest.mark.proof
def test_a_wheel_of_this_machine_is_named_by_its_whole_path(origin: Origin, tmp_path: Path) -> None:
    done(
        tmp_path,
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *OFFLINE,
        "--wheel-dir",
        "work/dist",
        str(origin.folder / "launcher"),
    )
    (wheel,) = tmp_path.glob("work/dist/*.whl")
    project = bake(tmp_path, project_slug="with-a-wheel", launcher=f"../dist/{wheel.name}").project
    assert line(project) == f"vertex-launch @ {wheel.as_uri()}"
    check(project, tmp_path)


def test_a_template_that_is_no_clone_is_named_by_its_folder(tmp_path: Path) -> None:
    kept = copy_template(tmp_path / "home/.cookiecutters/kept")  # where cookiecutter finds it by its name alone
    assert (
        line(cookiecutter(tmp_path, "--no-input", template="kept").project)
        == f"vertex-launch @ {kept.as_uri()}/launcher"
    )
