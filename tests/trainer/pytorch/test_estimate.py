"""What `trainer.describe` prints is what a real step on the CPU has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.samples import batch
from trainer import model
from trainer.data import Batch
from trainer.describe import estimate
from trainer.parallel.strategy import StrategyFlags
from trainer.step.state import new_optimizer

CONFIG = StrategyFlags()
DESCRIPTION = estimate.describe(CONFIG, batch(1))


def real(count: int) -> Batch:
    return Batch(*map(torch.from_numpy, batch(count)))


def test_parameters_gradients_and_moments_are_those_of_a_real_step() -> None:
    net, some = model.build(CONFIG, batch(1)), real(3)
    optimizer = new_optimizer(CONFIG, net)
    model.losses(net(some.inputs), some).sum().backward()
    optimizer.step()
    assert DESCRIPTION.parameters == sum(p.numel() for p in net.parameters())
    assert DESCRIPTION.gradient_bytes == sum(p.grad.nbytes for p in net.parameters() if p.grad is not None)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert DESCRIPTION.optimizer_bytes == sum(moment.nbytes for moment in moments)


def kept(forward: Callable[[int], object], precision: torch.dtype = torch.float32) -> float:
    """Bytes for each sample that a forward pass on so many of them keeps."""

    def whole(samples: int) -> int:
        storages = set()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages.add(tensor.untyped_storage())
            return tensor

        low = torch.autocast("cpu", precision, enabled=precision != torch.float32)
        with saved_tensors_hooks(keep, lambda one: one), low:
            forward(samples)
        return sum(storage.nbytes() for storage in storages)

    return (whole(50) - whole(10)) / 40


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_activations_are_what_a_real_forward_pass_and_its_loss_keep(precision: torch.dtype) -> None:
    net = model.build(CONFIG, batch(1))
    name = "activation_bytes_per_sample" + ("" if precision == torch.bfloat16 else "_float32")
    real_ones = kept(lambda count: model.losses(net((some := real(count)).inputs), some), precision)
    assert getattr(DESCRIPTION, name) == pytest.approx(real_ones, rel=0.01)


def test_of_the_blocks_that_are_computed_again_one_is_kept_at_a_time() -> None:
    net: Any = model.build(CONFIG, batch(1))
    before = net.embed(real(1).inputs).detach()
    of_one = kept(lambda count: net.blocks[0](before.expand(count, *before.shape[1:]).clone())) - before.nbytes
    again = estimate.describe(replace(CONFIG, recompute=True), batch(1))
    saved = DESCRIPTION.activation_bytes_per_sample_float32 - again.activation_bytes_per_sample_float32
    assert saved == pytest.approx((len(net.blocks) - 1) * of_one, rel=0.01)


def test_a_description_leaves_real_tensors_real() -> None:
    estimate.describe(CONFIG, batch(1))
    assert all(p.device.type == "cpu" for p in model.build(CONFIG, batch(1)).parameters())
    assert type(torch.zeros(1)) is torch.Tensor
