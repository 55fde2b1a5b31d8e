"""How processes lie that hold a part of every layer, and what does not fit."""

from typing import Any

import pytest
from torch import nn
from torch.distributed.tensor.parallel import SequenceParallel

from trainer.cluster.world import Mesh
from trainer.parallel import tensor
from trainer.parallel.mesh import lay_out, processes
from trainer.vertex.errors import TrainerError


class Heads(nn.Module):
    """A model with so many heads, of which nothing else is asked."""

    def __init__(self, count: int, parts: Any) -> None:
        super().__init__()
        self.heads, self.tensor_parts = count, parts
        self.blocks = nn.ModuleList([nn.ModuleDict({"mlp": nn.Sequential(nn.Linear(1, 1))})])


def laid_out(heads: int = 16, way: object = "outputs", layer: str = "mlp.0", **flags: Any) -> Mesh:
    net = Heads(heads, {layer: way})
    return lay_out(tensor.STRATEGY, tensor.Flags(**flags), machines=3, processes=8, net=net)


def test_the_parts_of_a_layer_lie_within_a_machine() -> None:
    found = laid_out()
    assert (str(found), found.size, found.data_size) == ("shard 3 x tensor 8", 24, 3)


def test_a_machine_without_gpus_has_a_process_for_each_part() -> None:
    of_each = (tensor.Flags(degree=degree) for degree in (None, 3))
    assert [processes(tensor.STRATEGY, flags, gpus=0) for flags in of_each] == [2, 3]
    assert processes(tensor.STRATEGY, tensor.Flags(), gpus=8) == 8


def test_a_layer_may_have_a_style_of_pytorch() -> None:
    assert laid_out(way=SequenceParallel()) == laid_out()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"heads": 4}, "--degree 8 doesn't evenly divide the number of attention heads (4)"),
        ({"way": "rows"}, 'mlp.0 in tensor_parts of trainer/model.py is "rows", but must be outputs or inputs'),
        (
            {"way": ["inputs"]},
            "mlp.0 in tensor_parts of trainer/model.py is \"['inputs']\", but must be outputs or inputs",
        ),
        (
            {"layer": "mlp.O"},
            "mlp.O in tensor_parts of trainer/model.py isn't a layer of a block; use the name of a layer",
        ),
        (
            {"micro_batches": 40},
            "--micro-batches is 40, but each process has fewer samples (--global-batch 96 / 3 = 32)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        laid_out(**flags)
    assert str(caught.value) == sentence
