"""The example's own figures, mistakes and words, in real processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.estimates import block_flops, describe, figures
from tests.test_task import run
from tests.training import train
from trainer.data import BYTES, Sample
from trainer.samples.shards import write


def flops(width: int, depth: int, tokens: int) -> int:
    """Embedding is no product; the matrix that reads bytes out is one."""
    return block_flops(width, depth, tokens) + 6 * width * BYTES * tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """With the default flags."""
    return describe(tmp_path_factory.mktemp("tiny")).value


def test_the_figures_are_those_of_the_model(tiny: dict[str, Any]) -> None:
    # No sample decides the masks of attention, so they count as copies, too.
    assert figures(tiny, most=1.1) == (217_728, flops(64, 4, tokens=32))


def test_the_loss_counts_among_what_a_sample_keeps(tiny: dict[str, Any]) -> None:
    """Logits of all tokens over all bytes, as they are and as the softmax has them."""
    block = 4 * 32 * 64 * (2 + 4 + 4)
    assert tiny["activation_bytes_per_sample_float32"] > 4 * block + 4 * 32 * BYTES


@pytest.mark.proof
def test_it_takes_the_flags_of_any_job(tmp_path: Path) -> None:
    flags = ("--data", "stdlib", "--size", "base", "--context", "128", "--global-batch", "192", "--micro-batches", "3")
    value = describe(tmp_path, *flags, "--learning_rate=0.003").value
    assert value["flops_per_sample"] == flops(768, 12, tokens=128)
    assert (value["global_batch"], value["micro_batches"]) == (192, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_a_sample_that_is_shorter_than_the_context_ends_the_replica_in_one_sentence(tmp_path: Path) -> None:
    for split in ("train", "heldout"):
        write([Sample(np.zeros(30, np.uint8))] * 8, tmp_path / "shards", split, shard_count=1)
    done = run(tmp_path, "--data", "shards")
    assert "--context is 32, but it must be less than a sample's 30 bytes" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1


@pytest.mark.proof
def test_the_defaults_train_to_a_loss_of_two_and_the_model_writes(tmp_path: Path) -> None:
    done = train(tmp_path, 2, "--global-batch", "96", "--log-every", "50", "--warmup", "50")
    assert done.code == 0, done.output
    assert done.result["loss"] < 2.08  # three bits for a byte
    assert " it writes:" in done.output
    assert " tokens/s" in done.output
