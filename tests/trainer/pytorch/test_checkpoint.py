"""What each process writes of a checkpoint."""

import math

import pytest
import torch

from trainer.checkpoints.saver import share, why_nonfinite
from trainer.cluster.world import World

STATE = {"head.weight": torch.ones(64, 8), "head.bias": torch.ones(8), "blocks.weight": torch.ones(64, 8), "lr": 0.1}


def shares(size: int) -> list[dict[str, object]]:
    return [share(STATE, World(rank, size, torch.device("cpu"))) for rank in range(size)]


def test_what_all_hold_alike_each_process_writes_a_part_of() -> None:
    for size in (1, 2, 3):
        written = [name for one in shares(size) for name in one]
        assert sorted(written) == sorted(STATE)


def test_the_parts_are_of_about_as_many_bytes() -> None:
    first, second = (sum(t.nbytes for t in one.values() if isinstance(t, torch.Tensor)) for one in shares(2))
    assert abs(first - second) <= 8 * 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_found_wherever_it_is(value: float) -> None:
    moment = torch.ones(3, 5)
    state = {"model": STATE, "optimizer": {"state.head.weight.exp_avg": moment, "lr": value, "none": torch.ones(0)}}
    assert why_nonfinite(state, ()) == ""
    moment[1, 2] = value
    assert why_nonfinite(state, ()) == "optimizer.state.head.weight.exp_avg contains NaN or infinite values"


def test_a_mask_may_be_infinite_and_no_buffer_may_be_nan() -> None:
    mask = torch.tensor([0.0, -math.inf])
    assert why_nonfinite({"model": {"mask": mask}}, ("mask",)) == ""
    assert why_nonfinite({"model": {"mask": mask}}, ())
    assert why_nonfinite({"model": {"mask": mask * 0}}, ("mask",))
