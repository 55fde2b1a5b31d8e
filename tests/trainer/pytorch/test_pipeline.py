"""Where a pipeline cuts the layers."""

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch

from tests.samples import batch
from trainer import model, pipeline
from trainer.config import Config


@pytest.mark.parametrize("weights", [[1] * 8, [5, 1, 1, 1, 1, 5], [1, 2, 3, 4, 5, 6, 7], [9, 1, 1, 1]])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_heaviest_stage_is_as_light_as_can_be(weights: list[int], count: int) -> None:
    def heaviest(ends: tuple[int, ...]) -> int:
        return max(sum(weights[a:b]) for a, b in pairwise((0, *ends)))

    inner = combinations(range(1, len(weights)), count - 1)
    least = min(heaviest((*ends, len(weights))) for ends in inner)
    found = pipeline.ends(weights, count)
    assert (len(found), found[-1], heaviest(found)) == (count, len(weights), least)
    assert all(a < b for a, b in pairwise((0, *found)))


def test_stages_together_are_the_model() -> None:
    with torch.device("meta"):
        net: Any = model.build(Config(size="small"), batch(1))
    stages = pipeline.cut(net, 3)
    assert [len(layers) for layers in stages] == [5, 4, 5]
    assert [layer for layers in stages for layer in layers] == [net.embed, *net.blocks, net.head]


def test_what_stays_keeps_all_of_its_names() -> None:
    net: Any = model.build(Config(), batch(1))
    named = dict(net.named_parameters(remove_duplicate=False))
    kept = {p for layer in (net.blocks[1], net.blocks[3], net.head) for p in layer.parameters()}
    pipeline.drop([net.embed, net.blocks[0], net.blocks[2]], kept)
    left = {name for name, _ in net.named_parameters(remove_duplicate=False)}
    assert left == {name for name, parameter in named.items() if parameter in kept}
    assert left == set(net.state_dict())
