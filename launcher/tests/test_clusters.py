"""What others make a cluster of replicas with finds as many hosts in the local Vertex as the job has machines."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from launcher.tests.running import SETTINGS, job
from tests.conftest import ROOT, kept_folder
from vertex_launch.local.running.namespaces import isolation

RAY = """
import os, socket, subprocess, sys, time
import ray

address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--disable-usage-stats"]
if os.environ["RANK"] != "0":
    while subprocess.call([*start, f"--address={address}"]):
        time.sleep(1)
    time.sleep(600)
subprocess.check_call([*start, "--head", f"--port={os.environ['MASTER_PORT']}", "--include-dashboard=false"])
ray.init(address=address)
while sum(node["Alive"] for node in ray.nodes()) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.5)

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    time.sleep(2)
    return socket.gethostname()

print("ran on", *sorted(set(ray.get([where.remote() for _ in range(3)]))))
"""
DASK = """
import os, socket, subprocess, sys
from distributed import Client

port, dask = os.environ["MASTER_PORT"], [sys.executable, "-m", "dask"]
address = f"tcp://{os.environ['MASTER_ADDR']}:{port}"
worker = [*dask, "worker", address, "--nthreads=1", "--nworkers=1"]
if os.environ["RANK"] != "0":
    sys.exit(subprocess.call(worker))
subprocess.Popen([*dask, "scheduler", f"--port={port}", "--no-dashboard"])
subprocess.Popen(worker)
client = Client(address, timeout=60)
client.wait_for_workers(3, timeout=120)
print("ran on", *sorted(client.run(socket.gethostname).values()))
"""
PACKAGES = ("ray==2.60.0", "distributed==2026.8.0")
DEADLINE = 600.0  # seconds; a guard against hanging


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with Ray and dask."""
    folder = kept_folder("clusters-environment", ROOT / ".nox")  # replicas see no /tmp but their own
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True, timeout=DEADLINE)
    return folder / "bin/python"


@pytest.mark.proof
@pytest.mark.parametrize("program", [pytest.param(RAY, id="ray"), pytest.param(DASK, id="dask")])
def test_a_cluster_of_three_replicas_has_three_hosts(tmp_path: Path, python: Path, program: str) -> None:
    if not isolation(tmp_path / ".vertex/gcs").hosts:
        pytest.skip("this system gives processes no host names of their own")
    (chief,) = job(command=[str(python), "-c", program])["workerPoolSpecs"]
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    document = {"workerPoolSpecs": [chief, chief | {"replicaCount": 2}], "scheduling": {"timeout": "300s"}}
    (tmp_path / "job.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if " ran on " in line]
    names = line.partition(" ran on ")[2].split()
    assert [name.rpartition("workerpool")[2][0] for name in names] == ["0", "1", "1"]
    assert len({*names}) == 3
