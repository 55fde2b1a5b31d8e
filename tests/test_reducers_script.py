"""The build of an image says whether NCCL can load the plug-in of the reducers: requirements/reducers.sh."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "{{cookiecutter.project_slug}}/requirements/reducers.sh"
# The versions that the libraries pass to dlsym, read from their wheels.
ASKED = {"2.18.1": range(4, 7), "2.21.5": range(5, 9), "2.27.7": range(6, 11), "2.29.7": range(6, 12)}
WHEELS = {"2.27.7": "nvidia-nccl-cu12", "2.29.7": "nvidia-nccl-cu13"}  # of TensorFlow's image and of PyTorch's
HALVES = ("ncclNetPlugin", "ncclCollNetPlugin")
WITHOUT = "NCCL isn't installed, as in an image for CPUs: reducers would be idle but billed; use an image with CUDA, or"


def plugin(folder: Path, *names: str) -> None:
    """Compile a plug-in that exports these names."""
    source = folder / "plugin.c"
    source.write_text("\n".join(f"const int {name} = 1;" for name in names))
    path = folder / "libnccl-net.so"
    subprocess.run(("cc", "-shared", "-fPIC", "-nostdlib", "-o", path, source), check=True)


def library(folder: Path, version: str) -> None:
    """Write a stand-in for NCCL: bytes, and among them the names that this version looks for."""
    names = [f"{half}_v{number}" for half in HALVES for number in ASKED[version]]
    text = "\0".join(("", *names, "Failed to find ncclNetPlugin_v99 symbol", ""))
    (folder / "libnccl.so.2").write_bytes(os.urandom(4096) + text.encode() + os.urandom(4096))


def halves(*numbers: int) -> list[str]:
    return [f"{half}_v{number}" for half in HALVES for number in numbers]


def run(folders: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the script where the loader looks into these folders first."""
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": folders}
    return subprocess.run(("bash", SCRIPT, *words), env=environ, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("names", "version", "loads", "said"),
    [
        (halves(4), "2.18.1", True, "can load the plug-in of the reducers, net v4, CollNet v4"),
        (halves(4), "2.29.7", False, "NCCL can't load libnccl-net.so: reducers would be idle but billed; install"),
        (halves(4, 5, 6), "2.29.7", True, "net v6, CollNet v6"),
        (halves(4, 5, 6), "2.21.5", True, "net v5 v6, CollNet v5 v6"),
        (halves(9, 10), "2.29.7", True, "net v9 v10, CollNet v9 v10"),
        (
            ["ncclNetPlugin_v6", "ncclCollNetPlugin_v4"],
            "2.29.7",
            False,
            "NCCL loads net v6 of the plug-in, but not CollNet, which",
        ),
        (["ncclNetPlugin_v6", "ncclCollNetPlugin_v4"], "2.18.1", True, "net v6, CollNet v4"),
        ([], "2.29.7", False, "NCCL can't load libnccl-net.so"),
    ],
)
def test_the_names_in_both_libraries_tell_whether_nccl_loads_both_halves(
    tmp_path: Path, names: list[str], version: str, loads: bool, said: str
) -> None:
    plugin(tmp_path, *names)
    library(tmp_path, version)
    done = run(f"/nowhere:{tmp_path}")
    verdict = done.stdout.splitlines()[-1]
    assert (done.returncode, done.stderr) == (0, "")
    assert said in verdict
    assert ("idle" in verdict) != loads  # what `submit` looks for in the label of an image
    assert run(f"/nowhere:{tmp_path}", "--required").returncode == (0 if loads else 1)


def test_a_file_that_is_no_library_offers_nothing(tmp_path: Path) -> None:
    library(tmp_path, "2.29.7")
    for data in (b"", b"text", b"\x7fELF\x02", os.urandom(500)):
        (tmp_path / "libnccl-net.so").write_bytes(data)
        done = run(str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1].startswith("NCCL can't load libnccl-net.so: ")


def test_without_nccl_the_script_says_so_and_only_fails_if_it_must(tmp_path: Path) -> None:
    done = run("")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith(WITHOUT)
    assert run("", "--required").returncode == 1
    refused = run("", "--1")
    assert (refused.returncode, refused.stderr) == (
        2,
        "--1 isn't a valid argument of requirements/reducers.sh. Use --required or no argument.\n",
    )
    library(tmp_path, "2.29.7")
    assert "NCCL can't find the plug-in libnccl-net.so: reducers would be" in run(str(tmp_path)).stdout


@pytest.mark.proof
@pytest.mark.parametrize("version", WHEELS)
def test_the_libraries_that_we_ship_look_for_these_versions(tmp_path: Path, version: str) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path))
    subprocess.run((*pip, f"{WHEELS[version]}=={version}"), check=True, timeout=1200)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (tmp_path / "libnccl.so.2").write_bytes(packed.read("nvidia/nccl/lib/libnccl.so.2"))
    listed = " ".join(f"v{number}" for number in ASKED[version])
    assert f"{tmp_path}/libnccl.so.2: net {listed}, CollNet {listed}\n" in run(str(tmp_path)).stdout
