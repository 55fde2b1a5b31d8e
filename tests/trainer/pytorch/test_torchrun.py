"""torchrun itself in the local Vertex, in each way in which public launchers call it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.training import DEADLINE, SETTINGS, job

SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
# One write a line: the other process of the machine writes to the same pipe.
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():g}\\n", end="", flush=True)
time.sleep(3)  # the launcher looks at the connections of a training
dist.barrier()
dist.destroy_process_group()
"""
C10D = ["--nnodes=3", "--rdzv-backend=c10d", "--rdzv-id=1", "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)"]
STATIC = [
    "--nnodes=$(WORLD_SIZE)",
    "--node-rank=$(RANK)",
    "--master-addr=$(MASTER_ADDR)",
    "--master-port=$(MASTER_PORT)",
]


def torchrun(folder: Path, *options: str) -> tuple[list[str], str]:
    """Run a script of two processes a replica on three replicas; returns what its ranks say, sorted, and the worlds."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    spec = job(3)
    for pool in spec["workerPoolSpecs"]:
        pool["containerSpec"] |= {"command": ["torchrun"], "args": ["--nproc-per-node=2", *options, str(script)]}
    (folder / "vertex.toml").write_text(SETTINGS)
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (worlds,) = [line.partition(":")[0] for line in lines if line.startswith("6 processes, ")]
    return sorted(line.partition("] ")[2] for line in lines if "] rank " in line), worlds


@pytest.mark.proof
def test_a_rendezvous_by_c10d_takes_replicas_for_three_machines(tmp_path: Path) -> None:
    assert torchrun(tmp_path, *C10D) == ([f"rank {rank} of 6: 6" for rank in range(6)], "6 processes, 1 world")


@pytest.mark.proof
def test_static_ranks_come_from_the_variables_of_the_service(tmp_path: Path) -> None:
    assert torchrun(tmp_path, *STATIC) == ([f"rank {rank} of 6: 6" for rank in range(6)], "6 processes, 1 world")


@pytest.mark.proof
def test_standalone_is_a_training_a_machine(tmp_path: Path) -> None:
    said, worlds = torchrun(tmp_path, "--standalone")
    assert worlds == "6 processes, 3 worlds"
    assert {*said} == {"rank 0 of 2: 2", "rank 1 of 2: 2"}  # workers may be ended with the chief
