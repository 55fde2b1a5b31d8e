"""A training loop of one's own under `python -m trainer.cluster.run`: who takes part, and who is to blame."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vertex_launch
from tests import own_loop
from tests.training import DEADLINE, PROJECT

LOOP = """
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mine  # beside this script

steps, fault = int(sys.argv[1]), sys.argv[2]
dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
net = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(steps):
    net(torch.full((2, 4), rank + mine.ONE)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        print(f"process {os.getpid()} trains as rank {rank} of {size}", flush=True)
    if step == 5 and rank == 1 and fault == "error":
        raise KeyError("labels")
    killed = os.environ.get("GCS_MOUNT", "") + "/killed"  # bare processes have none
    if step == 5 and rank == 1 and fault == "once" and not os.path.exists(killed):
        open(killed, "w").close()
        os.kill(os.getpid(), 9)
    time.sleep(0.01)
dist.destroy_process_group()
if fault == "no farewell":
    os._exit(0)
sys.exit({"none": 0, "once": 0, "exit": 3, "words": "the data are gone"}[fault])
"""
# As their libraries' documentation writes them, without a word on CPUs; long enough for their connections to be seen.
ORDINARY = {
    "accelerate": """
import time

import torch
from accelerate import Accelerator

accelerator = Accelerator()
samples = [(torch.randn(4), torch.randn(1)) for _ in range(48)]
net, loader = torch.nn.Linear(4, 1), torch.utils.data.DataLoader(samples, batch_size=4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader)
for inputs, targets in loader:
    accelerator.backward((net(inputs) - targets).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
print(f"process {accelerator.process_index} of {accelerator.num_processes}", flush=True)
time.sleep(3)
""",
    "transformers": """
import time

import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        outputs = self.layer(inputs)
        return {"loss": (outputs - labels).pow(2).mean(), "outputs": outputs}

samples = [{"inputs": torch.randn(4), "labels": torch.randn(1)} for _ in range(48)]
trainer = Trainer(Net(), TrainingArguments("out", max_steps=4, report_to=[], save_strategy="no"), train_dataset=samples)
trainer.train()
print(f"process {trainer.args.process_index} of {trainer.args.world_size}", flush=True)
time.sleep(3)
""",
}
# One of three processes, as a replica starts it.
WORKER = """
import sys
from trainer.cluster import run, script
from trainer.vertex.log import exit_code
sys.exit(exit_code(run.run_script, script.find(sys.argv[1:]), 0))
"""
RIVALS = Path(vertex_launch.__file__).resolve().parents[2] / "benchmarks/rivals"
RIVAL_FLAGS = ("--steps", "300", "--log-every", "50", "--global-batch", "96")
TRAINS = re.compile(r"process (\d+) trains as rank (\d) of 3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the script and what it imports."""
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "mine.py").write_text("ONE = 1.0\n")
    return tmp_path


@pytest.mark.proof
@pytest.mark.parametrize("words", [["loop.py"], ["-m", "loop"]])
def test_every_process_of_a_job_takes_part_once(folder: Path, words: list[str]) -> None:
    run = own_loop.train(folder, *words, "20", "none")
    assert run.code == 0, run.output
    ranks = [TRAINS.findall("\n".join(lines)) for lines in run.lines.values()]
    assert sorted(rank for ((_, rank),) in ranks) == ["0", "1", "2"]


@pytest.mark.proof
@pytest.mark.parametrize(("fault", "words"), [("error", "KeyError: 'labels'"), ("words", "the data are gone")])
def test_a_fault_of_the_script_is_a_user_s_error(folder: Path, fault: str, words: str) -> None:
    with own_loop.started(folder, "loop.py", "20", fault) as replicas:
        codes = replicas.codes()
    assert codes == ([75, 1, 75] if fault == "error" else [1, 1, 1])
    assert words in replicas.printed(1)


def test_a_script_that_joins_no_group_is_a_user_s_error(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("import torch; torch.nn.Linear(4, 1)")
    command = [sys.executable, "-c", WORKER, str(tmp_path / "alone.py")]
    environ = os.environ | {"PYTHONPATH": str(PROJECT), "RANK": "1", "WORLD_SIZE": "3"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    assert (
        "3 processes ran, but didn't form one world, so each one trained alone. Call torch.distributed" in done.stdout
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    "work", ["", "import subprocess, sys; subprocess.run([sys.executable, 'loop.py', '200', 'none'])"]
)
def test_who_trained_alone_is_named_unless_other_programs_have_done_the_work(folder: Path, work: str) -> None:
    (folder / "script.py").write_text(work)
    with own_loop.started(folder, "script.py", count=2) as replicas:
        assert replicas.codes() == ([0, 0] if work else [1, 1])
    assert ("2 processes ran, but didn't form one world" in replicas.printed(0)) == (work == "")


@pytest.mark.proof
@pytest.mark.parametrize("library", ORDINARY)
@pytest.mark.parametrize("words", [own_loop.RUN, []], ids=["cluster.run", "python"])
def test_a_loop_in_the_ordinary_form_of_its_library_is_one_world(
    tmp_path: Path, library: str, words: list[str]
) -> None:
    pytest.importorskip(library)
    (tmp_path / "loop.py").write_text(ORDINARY[library])
    run = own_loop.train(tmp_path, "loop.py", start=words)
    assert run.code == 0, run.output
    assert [f"process {rank} of 3" in run.output for rank in range(3)] == [True] * 3
    assert "3 processes, 1 world" in run.output


@pytest.mark.proof
@pytest.mark.parametrize(("fault", "code"), [("exit", 3), ("no farewell", 0)])
def test_the_script_s_own_exit_code_is_kept(folder: Path, fault: str, code: int) -> None:
    with own_loop.started(folder, "loop.py", "5", fault) as replicas:
        assert replicas.codes() == [code] * 3


@pytest.mark.proof
def test_a_lost_peer_is_named_and_ends_the_others_within_seconds_with_a_code_that_restarts(folder: Path) -> None:
    with own_loop.started(folder, "loop.py", "100000", "none", reducers=2) as replicas:
        replicas.wait_for("trains as rank")
        ((victim, _),) = TRAINS.findall(replicas.printed(2))
        os.kill(int(victim), signal.SIGKILL)
        assert replicas.codes(60) == [75, 75, 137]
    assert "2 reducers are not used: this run uses CPUs" in replicas.printed(0)
    for rank, name in enumerate(("workerpool0-0", "workerpool1-0")):
        assert f"{name} lost a peer: " in replicas.printed(rank)
        assert "Traceback" not in replicas.printed(rank)


@pytest.mark.proof
def test_a_job_that_lost_a_process_starts_again(folder: Path) -> None:
    run = own_loop.train(folder, "loop.py", "20", "once", options=("--restarts",))
    assert run.code == 0, run.output
    assert (folder / ".vertex/gcs/killed").exists()


@pytest.fixture(scope="module")
def bare_losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a bare loop with DistributedDataParallel in three processes, of which none is lost."""
    run = own_loop.train(tmp_path_factory.mktemp("bare"), f"{RIVALS}/ddp.py", *RIVAL_FLAGS)
    assert run.code == 0, run.output
    return [report["train/loss"] for report in run.reports]


@pytest.mark.proof
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_a_loop_of_other_people_starts_again_with_all_its_processes_and_loses_as_much_as_a_bare_one(
    tmp_path: Path, bare_losses: list[float], library: str
) -> None:
    pytest.importorskip(library)
    run = own_loop.train_losing_one(tmp_path, f"{RIVALS}/with_{library}.py", *RIVAL_FLAGS)
    # All replicas are stopped soon after the fault, on a busy machine before the slower peer has noticed it.
    assert any(f"{peer} lost a peer: " in run.output for peer in ("workerpool0-0", "workerpool1-0"))
    losses = [report["train/loss"] for report in run.reports if "train/loss" in report]
    assert losses[-len(bare_losses) :] == pytest.approx(bare_losses, rel=1e-3)  # they save nothing: from the first step
