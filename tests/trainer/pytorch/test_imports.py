"""The agent, for whose start the training processes wait, doesn't import what only they need."""

import subprocess
import sys

from tests.training import DEADLINE, PROJECT

# Each of these takes a tenth of a second or more.
LATE = {
    *("torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch._dynamo", "sympy"),
    *("tensorboard", "trainer.train", "trainer.export", "trainer.checkpoints.saver"),
}


def test_the_agent_imports_neither_the_loop_nor_what_the_loop_needs() -> None:
    script = "import sys, trainer.task; trainer.task.choice.load('ddp'); print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert LATE & {*done.stdout.split()} == set()
