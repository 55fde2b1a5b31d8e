"""Where a pipeline cuts the layers, and what does not fit one."""

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.samples import batch
from trainer import model
from trainer.cluster.world import Mesh
from trainer.config import Config
from trainer.parallel import choice, pipeline
from trainer.parallel.mesh import lay_out, processes
from trainer.vertex.errors import TrainerError

PIPELINE: dict[str, Any] = {"degree": 4, "micro_batches": 4, "global_batch": 96}


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


class Blocks(nn.Module):
    """A model of so many layers, of which nothing else is asked."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Identity() for _ in range(count)))


def laid_out(blocks: int = 12, **flags: Any) -> Mesh:
    return lay_out(pipeline.STRATEGY, pipeline.Flags(**flags), machines=3, processes=8, net=Blocks(blocks))


def test_the_stages_of_a_pipeline_lie_within_a_machine() -> None:
    found = laid_out(**PIPELINE)
    assert (str(found), found.size, found.data_size) == ("replicate 6 x stage 4", 24, 6)


def test_a_machine_without_gpus_has_a_process_for_each_stage() -> None:
    of_each = (pipeline.Flags(degree=degree) for degree in (None, 3))
    assert [processes(pipeline.STRATEGY, flags, gpus=0) for flags in of_each] == [2, 3]
    assert processes(pipeline.STRATEGY, pipeline.Flags(), gpus=8) == 8


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            PIPELINE | {"blocks": 3},
            "--degree 4 with --schedule 1f1b requires at least 4 blocks, but the model has 3",
        ),
        (
            PIPELINE | {"blocks": 7, "schedule": "interleaved"},
            "--degree 4 with --schedule interleaved requires at least 8 blocks, but the model has 7",
        ),
        (
            PIPELINE | {"micro_batches": 1},
            "--micro-batches is 1, but --degree 4 requires at least 4; use --micro-batches 16 to keep the stages busy",
        ),
        (
            PIPELINE | {"micro_batches": 6, "global_batch": 36, "schedule": "interleaved"},
            "--micro-batches is 6, but --schedule interleaved requires a multiple of --degree (4)",
        ),
        (
            PIPELINE | {"global_batch": 100},
            "--global-batch is 100, but it must be a multiple of 24 (6 pipelines x 4 micro-batches)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        laid_out(**flags)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            "--strategy pipeline --no-reshard",
            "--strategy pipeline doesn't support --no-reshard (supported by fsdp, tensor)",
        ),
        ("--strategy fsdp --schedule gpipe", "--strategy fsdp doesn't support --schedule (supported by pipeline)"),
        ("--degree 2", "--strategy ddp doesn't support --degree (supported by fsdp, pipeline, tensor)"),
    ],
)
def test_a_flag_of_another_strategy_is_refused_with_the_names_of_those_that_take_it(flags: str, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        choice.parse(flags.split())
    assert str(caught.value) == sentence
