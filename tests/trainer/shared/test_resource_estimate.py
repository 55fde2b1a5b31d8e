"""python -m trainer.task --describe: a real process each time, as the planner starts it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training import DEADLINE, PROJECT
from trainer.data import Sample
from trainer.shards import write

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
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "trainer.task", *flags, "--describe"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": json.dumps(LONELY)}
    done = subprocess.run(
        command, cwd=folder, env=environ | variables, capture_output=True, text=True, timeout=DEADLINE
    )
    return Answer(done.returncode, done.stdout, int(done.stderr.split()[-1]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """With the default flags."""
    return describe(tmp_path_factory.mktemp("tiny"))


def transformer_flops(width: int, depth: int, tokens: int, inputs: int, classes: int) -> int:
    """Two for each multiply-add, three times: forward, for the weights and for the layer before; images need none.

    Source: Chowdhery et al., "PaLM", 2022, appendix B: 6 a token and weight, 12 x width x tokens a token and block.
    """
    blocks = depth * (6 * 12 * width**2 * tokens + 12 * width * tokens**2)
    return blocks + 4 * inputs * width * tokens + 6 * width * classes


def test_the_figures_are_those_of_the_model(tiny: Answer) -> None:
    assert figures(tiny.value) == (201_290, transformer_flops(64, 4, tokens=16, inputs=4, classes=10))


@pytest.mark.proof
def test_it_takes_the_flags_of_any_job(tmp_path: Path) -> None:
    flags = ("--data", "digits", "--size", "base", "--patch", "4", "--global-batch", "192", "--micro-batches", "3")
    value = describe(tmp_path, *flags, "--learning_rate=0.003").value
    assert figures(value) == (85_052_170, transformer_flops(768, 12, tokens=4, inputs=16, classes=10))
    assert (value["global_batch"], value["micro_batches"]) == (192, 3)
    assert list(tmp_path.iterdir()) == []


def figures(value: dict[str, Any]) -> tuple[int, int]:
    """Parameters and FLOPs; what else follows from the number of parameters is so."""
    weights = 4 * value["parameters"]  # bytes, in float32
    assert value["parameter_bytes"] == value["gradient_bytes"] == weights
    assert value["optimizer_bytes"] == 2 * weights
    assert value["precision"] == "bfloat16"
    assert 0.9 < value["weight_copy_bytes"] / (weights / 2) < 1
    return value["parameters"], value["flops_per_sample"]


def test_activations_take_less_in_the_smaller_precision(tiny: Answer) -> None:
    half, full = (tiny.value[f"activation_bytes_per_sample{name}"] for name in ("", "_float32"))
    # Each block keeps at least its two inputs, what attention reads, and what the second matrix product reads.
    assert full > 4 * 16 * 4 * 64 * (2 + 4 + 4)
    assert full / 2 < half < full


@pytest.mark.proof
def test_the_shapes_of_a_sample_come_from_one_shard(tmp_path: Path) -> None:
    write([Sample(np.zeros((8, 4, 3), np.uint8), 0)], tmp_path / "mount/b/d", "heldout", shard_count=1)
    value = describe(tmp_path, "--data", "gs://b/d", GCS_MOUNT=str(tmp_path / "mount")).value
    assert value["flops_per_sample"] == transformer_flops(64, 4, tokens=8, inputs=12, classes=10)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--data", "gs://b/d"), "--data gs://b/d: there is no folder nowhere/b/d to learn the shape of a sample from"),
        (("--micro-batches", "0"), "--micro-batches is 0, must be at least 1"),
    ],
)
def test_what_cannot_be_described_is_one_sentence(flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    answer = describe(tmp_path, *flags, GCS_MOUNT="nowhere")
    assert answer.code == 1
    assert words in json.loads(answer.stdout)["message"]


@pytest.mark.proof
def test_no_weights_are_allocated(tiny: Answer, tmp_path: Path) -> None:
    large = describe(tmp_path, "--size", "large")
    assert large.value["parameter_bytes"] > 1.2e9
    assert large.peak < 1.5 * tiny.peak  # a graph takes some, the weights would take three times as much


def test_help_tells_of_it() -> None:
    command = [sys.executable, "-m", "trainer.task", "--help"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert "--describe" in done.stdout
