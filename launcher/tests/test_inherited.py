"""What a replica gets of the shell, and what others may read of it."""

import json
import os
import stat
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.tests.running import SETTINGS, SOURCE, job
from launcher.tests.vertex import custom_job, script, service
from vertex_launch.local.running import host

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
SECRETS = {"TOKEN": "t", "GOOGLE_APPLICATION_CREDENTIALS": "/x.json", "CLOUDSDK_CONFIG": "/x", "NCCL_DEBUG": "INFO"}
SECRETS |= {"TMPDIR": "/var/tmp"}  # a replica has its own
VERTEX = {"RANK": "3", "TF_CONFIG": "{}", "AIP_X": "1", "CLOUD_ML_X": "1"}  # the service's own, from an earlier run
NEEDED = {"LC_TIME": "C", "http_proxy": "http://127.0.0.1:1"}
NAMED = '[env]\nSET = "in the file"\nPASSED = true\nNOT_HERE = true\n'


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shell with secrets, as most have some, and the usual umask."""
    shell = SECRETS | VERTEX | NEEDED | {"PASSED": "as the file says", "ASKED": "by an option", "SET": "by the shell"}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    before = os.umask(0o022)
    yield
    os.umask(before)


def require_as_in_the_cloud(environ: dict[str, str], folder: Path) -> None:
    assert not {*SECRETS, *VERTEX} & environ.keys()
    assert NEEDED.items() <= environ.items()
    assert {"SET": "in the file", "PASSED": "as the file says", "ASKED": "by an option"}.items() <= environ.items()
    assert "NOT_HERE" not in environ
    assert Path(environ["HOME"]).is_relative_to(folder / ".vertex/homes")


def require_private(state_dir: Path) -> None:
    """State is the user's alone; what lies in buckets has the modes of the user's umask."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in state_dir.rglob("*")}
    shared = [state_dir / "gcs", state_dir / "root"]
    open_to_others = [path for path, mode in modes.items() if mode & 0o077 and not {path, *path.parents} & {*shared}]
    assert open_to_others == []
    assert {modes[path] for path in state_dir.rglob("*.log")} == {0o600}
    assert modes[state_dir / "gcs/b"] == 0o755


def test_a_run_gives_replicas_of_the_shell_what_is_needed_or_named(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(f"{SETTINGS.partition('[env]')[0]}{NAMED}")
    env = [{"name": "ASKED", "value": "x"}, {"name": "ACCELERATE_USE_CPU", "value": "no"}]
    one = job(command=["python", "-c", SHOW], args=["$(PASSED)"], env=env)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(one))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--pass-env", "TOKEN", "--pass-env", "ASKED"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    told = [line for line in run.stderr.splitlines() if "warning" not in line]
    assert told == ["NOT_HERE can't be passed to replicas because this shell doesn't set it; export it first"]
    (log,) = (tmp_path / ".vertex/jobs").glob("*/workerpool0-0.log")
    arguments, seen = json.loads(log.read_text())
    assert arguments == ["$(PASSED)"]  # only what job and service set can be referred to
    assert (seen.pop("TOKEN"), seen["ASKED"], seen["ACCELERATE_USE_CPU"]) == ("t", "x", "no")  # the job's values count
    require_as_in_the_cloud(seen | {"ASKED": "by an option"}, tmp_path)
    require_private(tmp_path / ".vertex")


def test_replicas_without_a_gpu_have_accelerate_use_the_cpu() -> None:
    shares = [*host.shares(["0", "1"], 2), *host.shares(["0"], 2)]
    assert [share.get("ACCELERATE_USE_CPU") for share in shares] == [None, None, "true", "true"]


def test_the_service_gives_them_no_more(tmp_path: Path) -> None:
    with service(tmp_path, "--pass-env", "ASKED", settings=NAMED) as vertex:
        body = custom_job(*script(SHOW), baseOutputDirectory={"outputUriPrefix": "gs://b/out"})
        container: dict[str, Any] = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
        container["args"] = ["--model_dir=$(AIP_MODEL_DIR)"]  # as in Google's samples
        name = vertex.create(body)
        vertex.wait(name, "SUCCEEDED")
        arguments, seen = json.loads(vertex.log(name)[0].partition(": ")[2])
    assert arguments == ["--model_dir=gs://b/out/model/"]
    assert [seen.pop("AIP_MODEL_DIR"), seen.pop("RANK", "")] == ["gs://b/out/model/", ""]
    require_as_in_the_cloud(seen, tmp_path)
    require_private(tmp_path / ".vertex")


def test_what_pip_has_installed_for_the_user_is_there_and_what_a_job_installs_so_is_not_the_users(
    tmp_path: Path,
) -> None:
    """Where the launcher is in no virtual environment, as one that sees the system's packages is in none."""
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(tmp_path / "venv")
    places = "import json, site, sys; print(json.dumps([site.getusersitepackages(), sys.path]))"
    replica = f"""
import os, site, subprocess, sys
from pathlib import Path
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running.host import image_environment
Path(site.getusersitepackages()).mkdir(parents=True)
print(site.getusersitepackages(), flush=True)
subprocess.run([sys.executable, "-c", {places!r}], env=image_environment(os.environ, StateDir(Path(".vertex")), "1"))
"""
    (tmp_path / "home").mkdir()
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    path = os.pathsep.join([str(SOURCE), *filter(None, sys.path)])
    command = [str(tmp_path / "venv/bin/python"), "-c", replica]
    shown = subprocess.run(
        command, cwd=tmp_path, env=environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert shown.returncode == 0, shown.stderr
    users, found = shown.stdout.splitlines()
    installs_to, path_of_replica = json.loads(found)
    assert users in path_of_replica
    assert Path(installs_to).is_relative_to(tmp_path / ".vertex/homes/1")


USE_HOME = "import pathlib; (pathlib.Path.home() / 'model.bin').touch()"


def test_no_home_folder_outlives_its_job(tmp_path: Path) -> None:
    with service(tmp_path) as vertex:
        name = vertex.create(custom_job("python", "-c", USE_HOME))
        vertex.wait(name, "SUCCEEDED")
        assert not any((vertex.state_dir / "homes").iterdir())
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job(command=["python", "-c", USE_HOME])))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=True, timeout=240)
    assert not any((tmp_path / ".vertex/homes").iterdir())
