"""The example's own figures and mistakes, in real processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.estimates import block_flops, describe, figures
from tests.marks import ONCE
from tests.test_task import run
from trainer.data import Sample
from trainer.samples.shards import write


def flops(width: int, depth: int, tokens: int, inputs: int, classes: int) -> int:
    """Images need no gradient."""
    return block_flops(width, depth, tokens) + 4 * inputs * width * tokens + 6 * width * classes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """With the default flags."""
    return describe(tmp_path_factory.mktemp("tiny")).value


@ONCE
def test_the_figures_are_those_of_the_model(tiny: dict[str, Any]) -> None:
    assert figures(tiny) == (201_290, flops(64, 4, tokens=16, inputs=4, classes=10))


def test_a_block_keeps_its_inputs_and_what_attention_and_the_second_product_read(tiny: dict[str, Any]) -> None:
    assert tiny["activation_bytes_per_sample_float32"] > 4 * 16 * 4 * 64 * (2 + 4 + 4)


@pytest.mark.proof
def test_it_takes_the_flags_of_any_job(tmp_path: Path) -> None:
    flags = ("--data", "digits", "--size", "base", "--patch", "4", "--global-batch", "192", "--micro-batches", "3")
    value = describe(tmp_path, *flags, "--learning_rate=0.003").value
    assert figures(value) == (85_052_170, flops(768, 12, tokens=4, inputs=16, classes=10))
    assert (value["global_batch"], value["micro_batches"]) == (192, 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_the_shapes_of_a_sample_come_from_one_shard(tmp_path: Path) -> None:
    write([Sample(np.zeros((8, 4, 3), np.uint8), 0)], tmp_path / "mount/b/d", "heldout", shard_count=1)
    value = describe(tmp_path, "--data", "gs://b/d", GCS_MOUNT=str(tmp_path / "mount")).value
    assert value["flops_per_sample"] == flops(64, 4, tokens=8, inputs=12, classes=10)


@pytest.mark.proof
def test_a_label_beyond_the_classes_ends_the_replica_in_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "--classes", "3")
    assert "must be at least 0 and below --classes (3)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1


@ONCE
def test_a_patch_that_does_not_divide_the_image_does_so_too(tmp_path: Path) -> None:
    done = run(tmp_path, "--patch", "3", "--steps", "60")
    assert "--patch 3 doesn't evenly divide the image" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1
