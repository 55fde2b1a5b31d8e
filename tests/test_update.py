"""A project that its owner has changed takes over what the template has changed since, with cruft.

The older template had the launcher in the project; since November 2026 a project depends on it.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, cookiecutter, copy_template, give_environment
from tests.gits import commit, done

WORKERS, HOROVOD = Path("jobs/workers.yaml"), Path("jobs/horovod.yaml")
MODEL, LOOP = Path("trainer/model.py"), Path("trainer/train.py")
OWN = (WORKERS, HOROVOD, MODEL)
LAUNCHER = Path("requirements/laptop.txt")
MINE = "\n\nmine = 1  # the owner's own last line\n"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def make_older(template: Path) -> None:
    """The template as it could have been: other timeouts, another loop and model, the launcher in the project."""
    project = template / PROJECT
    for job in (project / WORKERS, project / "frameworks/pytorch/parts" / HOROVOD):
        change(job, "timeout: 3600s", "timeout: 7200s")
    for code in (f"examples/images/frameworks/pytorch/{MODEL}", f"frameworks/pytorch/{LOOP}"):
        with (project / code).open("a", encoding="utf-8") as file:
            file.write("\n\nolder = 1\n")
    shutil.move(template / "launcher/vertex_launch", project)
    change(template / "cookiecutter.json", '["*.py"]', '["*.py", "vertex_launch"]')
    change(project / LAUNCHER, "vertex-launch\n", "typer==0.29.2\n")


def edit_as_its_owner(project: Path) -> None:
    change(project / WORKERS, 'args: ["', 'args: ["--steps", "30", "')
    (project / HOROVOD).unlink()
    with (project / MODEL).open("a", encoding="utf-8") as file:
        file.write(MINE)


@pytest.fixture
def updated(tmp_path: Path) -> Path:
    """A project of an older template, changed by its owner, then updated to the template as it is."""
    template = copy_template(tmp_path / "template")
    shutil.copytree(template, tmp_path / "present")
    make_older(template)
    commit(template, "Older")
    cruft = (sys.executable, "-m", "cruft")
    words = ("create", str(template), "--no-input", "--extra-context", '{"parts": "all"}')
    assert "cd distributed-training" in done(tmp_path, *cruft, *words, PWD=str(tmp_path))
    project = tmp_path / "distributed-training"
    commit(project, "Created")  # git merges an update with what it has in its history
    edit_as_its_owner(project)
    commit(project, "Mine")
    shutil.rmtree(template / PROJECT / "vertex_launch")
    shutil.copytree(tmp_path / "present", template, dirs_exist_ok=True)
    commit(template, "Present")
    said = done(project, *cruft, "update", "--skip-apply-ask", PWD=str(project))
    assert "cd " not in said  # into the temporary folders in which cruft bakes
    return project


def files(project: Path) -> dict[str, bytes]:
    """Every file, by its path, but those of git and cruft."""
    paths = [path for path in project.rglob("*") if path.is_file() and ".git/" not in f"{path}/"]
    return {str(path.relative_to(project)): path.read_bytes() for path in paths if path.name != ".cruft.json"}


@pytest.mark.slow
def test_an_update_brings_what_is_new_and_keeps_what_its_owner_changed(updated: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"  # to which links lead
    launcher = f"git+file://{template}@{done(template, 'git', 'rev-parse', 'HEAD').strip()}#subdirectory=launcher"
    answers = ("parts=all", f"launcher={launcher}")
    fresh = files(cookiecutter(tmp_path, "--no-input", *answers, template=str(template)).project)
    found = files(updated)
    assert {name for name in fresh | found if fresh.get(name) != found.get(name)} == {*map(str, OWN)}
    assert str(HOROVOD) not in found
    assert found[str(WORKERS)] == fresh[str(WORKERS)].replace(b'args: ["', b'args: ["--steps", "30", "')
    assert found[str(MODEL)] == fresh[str(MODEL)] + f"\n\nolder = 1\n{MINE}".encode()
    done(updated, sys.executable, "-m", "vertex_launch", "check", *map(str, sorted(updated.glob("jobs/*.yaml"))))


@pytest.mark.slow
@pytest.mark.proof
def test_an_updated_project_trains(updated: Path, tmp_path: Path) -> None:
    give_environment(updated, "pytorch", tmp_path)
    command = (str(updated / ".venv/bin/python"), "-m", "vertex_launch", "run", str(WORKERS), "--max-replicas", "2")
    assert "Job succeeded" in done(updated, *command, "--", "--warmup", "5")


@pytest.mark.slow
@pytest.mark.proof
def test_a_project_of_the_core_gets_all_parts_later(tmp_path: Path) -> None:
    template = copy_template(tmp_path / "template")
    commit(template, "Present")
    cruft = (sys.executable, "-m", "cruft")
    done(tmp_path, *cruft, "create", str(template), "--no-input", PWD=str(tmp_path))
    project = tmp_path / "distributed-training"
    commit(project, "Created")
    assert not (project / HOROVOD).exists()
    answer = ("--variables-to-update", '{"parts": "all"}')
    done(project, *cruft, "update", "--skip-apply-ask", *answer, PWD=str(project))
    launcher = f"git+file://{template}@{done(template, 'git', 'rev-parse', 'HEAD').strip()}#subdirectory=launcher"
    answers = ("parts=all", f"launcher={launcher}")
    fresh = files(cookiecutter(tmp_path, "--no-input", *answers, template=str(template)).project)
    assert files(project) == fresh
