"""The training loops of launcher/docs/loops.md resume after a lost machine, with the launcher alone."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.tests.running import DEADLINE
from tests.conftest import add_to_environment, environment, kept_folder
from tests.loops import FOLDER, Loop, launch, loops, lose_one

RESTART = "workerpool1-0 was killed by SIGKILL (exit code 137). Restarting all replicas (restart 1 of 5)"
STEP, LOSS = re.compile(r"step (\d+)/"), re.compile(r" loss ([0-9.]+)")
SCRIPT = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(10 if sys.argv[1] == "lost" else 1):
    dist.all_reduce(torch.ones(1))
    if sys.argv[1] == "lost" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()  # its threads could otherwise abort the exit
sys.exit(int(sys.argv[1]))
"""


def python(framework: str, tmp: Path) -> Path:
    """Return an interpreter with the framework and, for PyTorch, the libraries of all its loops; BAKED keeps both."""
    shared = environment(framework, kept_folder(f"{framework}-environment", tmp)) / ".venv"
    if framework == "tensorflow":
        return shared / "bin/python"
    libraries = {line for loop in loops() for line in loop.requirements}
    return add_to_environment(kept_folder("loops-environment", tmp) / ".venv", shared, *sorted(libraries))


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("loop", loops(), ids=str)
def test_a_loop_whose_machine_is_lost_resumes_with_all_machines_and_succeeds(loop: Loop, tmp_path: Path) -> None:
    done = lose_one(python(loop.framework, tmp_path), loop.write(tmp_path))
    print(done.stdout)
    assert done.returncode == 0
    before, restart, after = done.stdout.partition(RESTART)
    assert restart
    assert re.search("3 (processes|replicas), 1 world", after)
    assert int(STEP.findall(after)[0]) > int(STEP.findall(before)[0])  # it does not begin again
    assert float(LOSS.findall(after)[-1]) < float(LOSS.findall(before)[0])


def codes_of_two_machines(tmp: Path, script: str, *words: str) -> list[int]:
    """Return the exit codes of two starters of a script, which make one job."""
    (tmp / "script.py").write_text(script)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    service = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [str(python("pytorch", tmp)), str(FOLDER / "start.py"), "script.py", *words]
    machines = [subprocess.Popen(command, cwd=tmp, env=service | {"RANK": str(rank)}) for rank in range(2)]
    try:
        return [machine.wait(DEADLINE) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize(("word", "codes"), [("0", [0, 0]), ("3", [3, 3]), ("words", [1, 1]), ("lost", [75, 137])])
def test_the_starter_exits_with_the_scripts_own_code_or_with_75_for_a_lost_peer(
    word: str, codes: list[int], tmp_path: Path
) -> None:
    assert codes_of_two_machines(tmp_path, SCRIPT, word) == codes


@pytest.mark.slow
@pytest.mark.proof
def test_the_starter_alone_has_accelerate_join_the_machines_without_a_gpu(tmp_path: Path) -> None:
    script = "import accelerate, sys; sys.exit(accelerate.Accelerator().num_processes)"
    assert codes_of_two_machines(tmp_path, script) == [2, 2]


def test_check_finds_nothing_in_the_job_of_any_loop(tmp_path: Path) -> None:
    for number, loop in enumerate(loops()):
        job = (loop.write(tmp_path) / "job.yaml").read_text()
        (tmp_path / f"{number}.yaml").write_text(job.replace("training/loop", f"training/{number}"))
    jobs = (f"{number}.yaml" for number in range(len(loops())))
    checked = launch(Path(sys.executable), tmp_path, "check", "--strict", *jobs)
    assert checked.returncode == 0, checked.stdout
