"""Locks of what the image installs; a module stands in for uv that writes down its words."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE, SOURCE

# Writes a lock, as `uv pip compile` would.
UV = """
import sys
with open("words.txt", "a") as file:
    print(*sys.argv[1:], file=file)
(path,) = (word.partition("=")[2] for word in sys.argv if word.startswith("--output-file="))
with open(path, "w") as file:
    file.write("# by uv\\ntorch==2.13.0+cu126\\nnumpy==2.4.6\\n")
sys.exit("--broken" in sys.argv and 2)
"""


def lock(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `vertex-launch lock` in a folder."""
    command, environ = [sys.executable, "-m", "vertex_launch", "lock", *words], {"PYTHONPATH": f"{folder}:{SOURCE}"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    return tmp_path


def test_both_locks_are_written_for_the_image_without_the_names_of_builds(folder: Path) -> None:
    (folder / "uv.py").write_text(UV)
    done = lock(folder, "--custom-compile-command=nox -s lock", "--upgrade", "--", "--upgrade-package", "numpy")
    assert done.returncode == 0, done.stderr
    whole, cuda = (folder / "words.txt").read_text().splitlines()
    how = "--quiet --no-annotate --index-strategy=unsafe-best-match"
    start = (
        f"pip compile --python-version=3.11 --python-platform=x86_64-manylinux_2_28 {how} --output-file=requirements/"
    )
    end = " --custom-compile-command=nox -s lock --upgrade --upgrade-package numpy"
    assert whole == f"{start}lock.txt requirements/cuda.txt requirements/trainer.txt{end}"
    assert cuda == f"{start}cuda.lock.txt requirements/cuda.txt --constraint=requirements/lock.txt{end}"
    for name in ("lock.txt", "cuda.lock.txt"):
        assert (folder / "requirements" / name).read_text() == "# by uv\ntorch==2.13.0\nnumpy==2.4.6\n"


def test_the_locks_name_the_command_that_wrote_them(folder: Path) -> None:
    (folder / "uv.py").write_text(UV)
    assert lock(folder).returncode == 0
    assert " --custom-compile-command=vertex-launch lock\n" in (folder / "words.txt").read_text()


def test_where_uv_refuses_its_exit_code_is_ours_and_no_lock_follows(folder: Path) -> None:
    (folder / "uv.py").write_text(UV)
    assert lock(folder, "--broken").returncode == 2
    assert len((folder / "words.txt").read_text().splitlines()) == 1


def test_without_uv_one_sentence_says_how_to_get_it(folder: Path) -> None:
    done = lock(folder)
    assert done.returncode == 1
    cure = f"install it: {sys.executable} -m pip install uv"
    assert done.stderr == f"uv, which resolves package versions, isn't installed in this Python environment; {cure}\n"
