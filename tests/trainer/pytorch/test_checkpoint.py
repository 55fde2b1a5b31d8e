"""What each process writes of a checkpoint."""

import torch

from trainer.checkpoints.saver import share
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
