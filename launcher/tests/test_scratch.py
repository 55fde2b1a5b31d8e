"""Folders of this machine that a replica sees keep their files and modes, however the replica or its launcher ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from glob import iglob
from pathlib import Path

import pytest

from launcher.tests.running import eventually, processes, until
from vertex_launch.local.running.namespaces import Isolation, isolation

Tree = dict[str, tuple[int, str]]
DESTROY = """
import os, pathlib, shutil
for folder in {folders!r}:
    for path in pathlib.Path(folder).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.chmod(folder, 0o700)
pathlib.Path({state!r}, "ready").touch()
"""
LAUNCHER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(600)"


def tree(folder: Path) -> Tree:
    """The mode of each path, and the text of each file."""
    paths = [path for path in (folder, *folder.rglob("*")) if ".vertex" not in path.parts]
    return {str(path): (path.stat().st_mode, path.read_text() if path.is_file() else "") for path in paths}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a project, where we are, and programs; both are seen in a replica."""
    (tmp_path / "project/.vertex/home").mkdir(parents=True)
    for name in ("project/data", "programs/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
        (tmp_path / name).parent.chmod(0o751)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def isolated(host: Path) -> Isolation:
    found = isolation(host / "project/.vertex/gcs")
    if not found.layered:
        pytest.skip("this system permits no overlays")
    return found


def command(isolated: Isolation, host: Path) -> list[str]:
    """A replica that destroys all that it can, and waits."""
    folders, state = [str(host / "project/data"), str(host / "programs")], host / "project/.vertex"
    script = DESTROY.format(folders=folders, state=str(state)) + until(state / "go")
    return isolated.command([sys.executable, "-c", script])


def started(words: list[str], host: Path) -> "subprocess.Popen[bytes]":
    environ = os.environ | {"PATH": f"{host}/programs:{os.environ['PATH']}", "HOSTNAME": "here"}
    environ["HOME"] = str(host / "project/.vertex/home")
    return subprocess.Popen(words, stdin=subprocess.PIPE, env=environ)


def is_removed(host: Path) -> bool:
    """Whether nothing is left of the folder that takes what this replica writes to its home."""
    for place in iglob("/var/tmp/replica-*/*/place"):  # pathlib's own fails where folders vanish meanwhile
        with contextlib.suppress(FileNotFoundError):  # another one's, removed meanwhile
            if os.readlink(place) == str(host / "project/.vertex/home"):
                return False
    return True


@pytest.fixture
def unharmed(host: Path, isolated: Isolation) -> Iterator[None]:
    before, machine = tree(host), [Path(name).stat().st_mode for name in ("/tmp", "/var/tmp", "/etc")]
    yield
    assert eventually(lambda: is_removed(host))
    assert tree(host) == before
    assert [Path(name).stat().st_mode for name in ("/tmp", "/var/tmp", "/etc")] == machine
    assert eventually(lambda: not processes(str(host / "project/.vertex/go")))


@pytest.mark.usefixtures("unharmed")
def test_after_an_end(host: Path, isolated: Isolation) -> None:
    with started(command(isolated, host), host) as shim:
        (host / "project/.vertex/go").touch()
        assert shim.wait(60) == 0


@pytest.mark.usefixtures("unharmed")
def test_after_a_kill_of_the_shim(host: Path, isolated: Isolation) -> None:
    with started(command(isolated, host), host) as shim:
        assert eventually((host / "project/.vertex/ready").exists)
        shim.kill()


@pytest.mark.usefixtures("unharmed")
def test_after_a_kill_of_the_launcher(host: Path, isolated: Isolation) -> None:
    with started([sys.executable, "-c", LAUNCHER, *command(isolated, host)], host) as launcher:
        assert eventually((host / "project/.vertex/ready").exists)
        launcher.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("unharmed")
def test_after_a_failure_amid_the_mounts(host: Path, isolated: Isolation) -> None:
    absent = replace(isolated, folders={0: {"/mnt/nfs/x": host / "absent"}})
    with started(command(absent, host), host) as shim:
        assert shim.wait(60) == 127
