"""The files of a replica: the machine's and the project's, under whatever it writes itself, and the buckets' limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.tests.running import SETTINGS, SOURCE, ends_together, job
from vertex_launch.local.running.namespaces import Isolation, isolation

GONE = "were discarded when this replica exited, as in a container. To keep files, write them under /gcs"
LAYERED = ".", "/tmp", "/var/tmp", "/dev/shm", "/opt", "~", "~/.cache"
WRITE = f"""
import os, pathlib
folders = [pathlib.Path(name).expanduser() / "run" for name in {LAYERED}]
seen = [str(folder) for folder in folders if folder.exists()]
for folder in folders:
    if os.access(next(parent for parent in folder.parents if parent.exists()), os.W_OK):
        folder.mkdir(parents=True)
        (folder / "part").write_text("x")
"""
SAVE = """
import os, pathlib
unfinished = pathlib.Path("/gcs/b/run/tmp")
unfinished.mkdir(parents=True)
(unfinished / "weights").write_text("w")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    if not isolation(tmp_path / ".vertex/gcs").layered:
        pytest.skip("this system permits no overlays")
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    (tmp_path / "data.txt").write_text("the project's")
    return tmp_path


def run(
    project: Path, script: str, *options: str, workers: int = 0, code: int = 0, python: str | Path = sys.executable
) -> list[str]:
    """The lines of a job, whose replicas all run this script."""
    (pool,) = job(command=["python", "-c", script])["workerPoolSpecs"]
    pools = [pool, {**pool, "replicaCount": workers}] if workers else [pool]
    output = {"baseOutputDirectory": {"outputUriPrefix": "gs://b/run"}}
    (project / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": pools, **output}))
    command = [python, "-m", "vertex_launch", "run", "job.yaml", *options]
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def printed(lines: list[str]) -> list[str]:
    """What the replicas print, sorted."""
    return sorted(line for line in lines if line.startswith("[workerpool"))


def notes(lines: list[str]) -> list[str]:
    """The lines after that on the job's end and its traceback."""
    end = next(number for number, line in enumerate(lines) if line.startswith("Job "))
    return [line for line in lines[end + 1 :] if not line.startswith((" ", "logs:", "Fix the cause"))]


def test_what_a_replica_changes_in_the_project_is_gone_with_it_and_named(project: Path) -> None:
    files = sorted(path.name for path in project.iterdir())
    script = """
import pathlib
pathlib.Path("data.txt").write_text("another")
pathlib.Path("vertex.toml").unlink()
pathlib.Path("a/b").mkdir(parents=True)
for number in range(3): pathlib.Path(f"a/b/{number}").write_text("x")
print(pathlib.Path("data.txt").read_text())
"""
    assert printed(run(project, script)) == [
        f"[workerpool0-0] a/b/0, a/b/1, a/b/2 and 1 more: files in the working directory {GONE}",
        "[workerpool0-0] another",
    ]
    assert sorted(path.name for path in project.iterdir()) == sorted([*files, "job.yaml"])
    assert (project / "data.txt").read_text() == "the project's"


def test_a_replica_finds_an_environment_behind_links_in_a_folder_for_temporary_files(project: Path) -> None:
    (project / "real/kept").mkdir(parents=True)
    (project / "real/kept/python").symlink_to(sys.prefix)
    (project / "linked").symlink_to("real")
    (project / "environment").symlink_to("linked/kept/python")
    script = "import pathlib, sys; print(sys.prefix); pathlib.Path('part').write_text('x')"
    (other := project / "other").mkdir()
    (other / "vertex.toml").write_text(SETTINGS)
    environment = project / "environment"
    assert printed(run(other, script, python=environment / "bin/python")) == [
        f"[workerpool0-0] {environment}",
        f"[workerpool0-0] part: files in the working directory {GONE}",
    ]


def test_a_replica_does_not_see_what_the_others_write(project: Path) -> None:
    lines = run(project, WRITE + ends_together(3) + "print('sees', seen)", workers=2)
    assert [line for line in lines if "sees" in line] == ["[workerpool0-0] sees []"]
    (told,) = {line.split("] ")[1] for line in lines if GONE in line}
    assert told.startswith("run/part, ")
    assert not any(Path(name, "run").exists() for name in LAYERED[1:5])


def test_another_start_does_not_see_what_the_first_one_wrote(project: Path) -> None:
    script = WRITE + "print('sees', seen)\nif not os.path.exists('/gcs/b/once'): open('/gcs/b/once', 'w'); exit(75)"
    (project / ".vertex/gcs/b").mkdir()
    lines = run(project, script, "--restarts")
    assert [line for line in lines if "sees" in line] == ["[workerpool0-0] sees []"] * 2


def test_one_machine_alone_has_what_its_replica_prepares_in_tmp(project: Path) -> None:
    script = """
import os, pathlib, time
prepared, ready = pathlib.Path("/tmp/digits"), pathlib.Path("/gcs/b/ready")
if os.environ["RANK"] == "0":
    prepared.write_text("1 2 3")
    ready.touch()
    time.sleep(600)
while not ready.exists(): time.sleep(0.1)
prepared.read_text()
"""
    (project / ".vertex/gcs/b").mkdir()
    lines = run(project, script, workers=1, code=1)
    assert "Job failed: workerpool1-0 exited with code 1" in lines
    assert "    FileNotFoundError: [Errno 2] No such file or directory: '/tmp/digits'" in lines


def test_replicas_that_keep_to_buckets_see_each_others_files_and_nothing_is_noted(project: Path) -> None:
    script = """
import os, pathlib, tempfile
saved = pathlib.Path("/gcs/b/run", os.environ["RANK"])
saved.mkdir(parents=True)
(saved / "unfinished").write_text("w")
(saved / "unfinished").rename(saved / "weights")
(saved / "empty").mkdir()
(saved / "empty").rename(saved / "renamed")
for name in ("/dev/shm/sem.mp-1", "/dev/shm/psm_1", "/dev/shm/torch_1_1", tempfile.mkdtemp() + "/part"):
    pathlib.Path(name).touch()  # as processes leave it if they are killed
"""
    seen = "print(sorted(str(path) for path in saved.parent.glob('*/weights')))"
    lines = run(project, script + ends_together(2) + seen, workers=1)
    assert printed(lines) == ["[workerpool0-0] ['/gcs/b/run/0/weights', '/gcs/b/run/1/weights']"]
    assert not any(GONE in line or "FUSE" in line for line in lines)
    assert notes(lines)[-1] == "output: .vertex/gcs/b/run"


@pytest.mark.parametrize("start", ["", "os.chdir('/tmp'); "])
def test_a_uri_taken_for_a_path_is_named(project: Path, start: str) -> None:
    (project / ".vertex/gcs/b").mkdir()
    save = "folder = os.environ['AIP_MODEL_DIR']; os.makedirs(folder); open(f'{folder}/model.pt', 'w').write('w')"
    where = (
        "written to a local folder named gs:, not to Cloud Storage, because gs://b/run/model/model.pt isn't a file path"
    )
    named = f"model.pt was {where}. Use /gcs/b/run/model/model.pt"
    assert notes(run(project, f"import os; {start}{save}")) == [named]  # and no folder of output, which is none


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            "unfinished.rename(unfinished.with_name('1'))",
            "OSError: [Errno 24] Too many open files",
            "can't rename a nonempty folder in a bucket without a hierarchical namespace (the gcsfuse default, "
            "probably also on Vertex AI). Write files under their final names, and then write a file that marks them "
            "as complete",
        ),
        (
            "os.chdir(unfinished); os.link('weights', '../last')",
            "PermissionError: [Errno 1] Operation not permitted",
            "doesn't support hard links. Copy the file instead",
        ),
    ],
)
def test_what_cloud_storage_fuse_refuses(project: Path, call: str, error: str, sentence: str) -> None:
    lines = run(project, SAVE + call, code=1)
    assert any(line.startswith(f"    {error}") for line in lines)
    (note,) = notes(lines)
    assert note.startswith("/gcs/b/run/tmp")
    assert note.endswith(f": Cloud Storage FUSE {sentence}")
    survives = f"try: {call}\nexcept OSError: pass"
    assert notes(run(project, SAVE + survives, "--fresh")) == ["output: .vertex/gcs/b/run"]  # the program knows


def test_a_file_that_is_renamed_while_it_is_written_is_named(project: Path) -> None:
    script = "with open(unfinished / 'a', 'w') as file: file.write('x'); os.rename(file.name, unfinished / 'b')"
    note, output = notes(run(project, SAVE + script))
    assert note.startswith("/gcs/b/run/tmp/a was renamed while it was open for writing: Cloud Storage FUSE rejects")
    assert output == "output: .vertex/gcs/b/run"


def test_without_namespaces_a_replica_has_a_home_and_a_folder_for_temporary_files(tmp_path: Path) -> None:
    script = "import pathlib, tempfile; print(pathlib.Path.home(), tempfile.gettempdir()); open('kept', 'w').close()"
    command = Isolation(state=tmp_path / ".vertex").command([sys.executable, "-c", script])
    (tmp_path / ".vertex/homes/1").mkdir(parents=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / ".vertex/homes/1")}  # no TMPDIR
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path, env=environ) as shim:
        assert shim.wait(60) == 0
        words = shim.communicate(timeout=60)[0].split()
    assert len({*words, environ["HOME"], "/tmp"}) == 4
    assert not any(Path(folder).exists() for folder in words)
    assert (tmp_path / "kept").exists()


def test_log_files_of_the_image_are_printed_at_the_end(project: Path) -> None:
    script = """
for name in ("output1.log", "other"):
    print("of", name, file=open(f"/var/log-storage/{name}", "w"))
"""
    assert printed(run(project, script)) == ["[workerpool0-0] of output1.log"]
