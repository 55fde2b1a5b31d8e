"""What `python -m trainer.describe` answers, as a real process, and what a transformer should need."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training import DEADLINE, PROJECT

# Runs a command and says what it took at most; a small process, as its own size counts, too.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""

# A cluster whose other replica never comes: a roll call would wait for it, and fail.
LONELY = {"cluster": {"workerpool0": ["localhost:1"], "workerpool1": ["h:1"]}, "task": {"type": "workerpool0"}}


@dataclass(frozen=True)
class Answer:
    code: int
    stdout: str
    peak: int  # resident memory, in the system's unit

    @property
    def value(self) -> dict[str, Any]:
        """The one line, parsed."""
        assert self.code == 0, self.stdout
        assert self.stdout.count("\n") == 1
        return dict(json.loads(self.stdout))


def describe(folder: Path, *flags: str, **variables: str) -> Answer:
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "trainer.describe", *flags]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": json.dumps(LONELY)}
    done = subprocess.run(
        command, cwd=folder, env=environ | variables, capture_output=True, text=True, timeout=DEADLINE
    )
    return Answer(done.returncode, done.stdout, int(done.stderr.split()[-1]))


def figures(value: dict[str, Any], most: float = 1) -> tuple[int, int]:
    """Parameters and FLOPs; what else follows from the number of parameters is so.

    Args:
        most: bytes of copies of the weights, for each byte of the weights in the smaller precision.
    """
    weights = 4 * value["parameters"]  # bytes, in float32
    assert value["parameter_bytes"] == value["gradient_bytes"] == weights
    assert value["optimizer_bytes"] == 2 * weights
    assert value["precision"] == "bfloat16"
    assert 0.9 < value["weight_copy_bytes"] / (weights / 2) < most
    return value["parameters"], value["flops_per_sample"]


def block_flops(width: int, depth: int, tokens: int) -> int:
    """Those of a sample in all blocks: two for each multiply-add, three times, forward and for both gradients.

    Source: Chowdhery et al., "PaLM", 2022, appendix B: 6 a token and weight, 12 x width x tokens a token and block.
    """
    return depth * (6 * 12 * width**2 * tokens + 12 * width * tokens**2)
