"""What --describe says is what a real step on the CPU has."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from trainer import estimate, train
from trainer.config import Config

IMAGE = (8, 8, 1)
CONFIG = Config()
DESCRIPTION = estimate.describe(CONFIG, IMAGE)


def test_parameters_gradients_and_moments_are_those_of_a_real_step() -> None:
    net = train.new_model(CONFIG, IMAGE)
    optimizer = train.new_optimizer(CONFIG, net)
    net(torch.rand(3, *IMAGE)).sum().backward()
    optimizer.step()
    assert DESCRIPTION.parameters == sum(p.numel() for p in net.parameters())
    assert DESCRIPTION.gradient_bytes == sum(p.grad.nbytes for p in net.parameters() if p.grad is not None)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert DESCRIPTION.optimizer_bytes == sum(moment.nbytes for moment in moments)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_activations_are_what_a_real_forward_pass_keeps(precision: torch.dtype) -> None:
    net = train.new_model(CONFIG, IMAGE)

    def kept(samples: int) -> int:
        storages = set()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages.add(tensor.untyped_storage())
            return tensor

        enabled = precision != torch.float32
        with saved_tensors_hooks(keep, lambda one: one), torch.autocast("cpu", precision, enabled=enabled):
            net(torch.rand(samples, *IMAGE)).sum()
        return sum(storage.nbytes() for storage in storages)

    name = "activation_bytes_per_sample" + ("" if precision == torch.bfloat16 else "_float32")
    assert getattr(DESCRIPTION, name) == pytest.approx((kept(50) - kept(10)) / 40, rel=0.01)


def test_a_description_leaves_real_tensors_real() -> None:
    estimate.describe(CONFIG, IMAGE)
    assert all(p.device.type == "cpu" for p in train.new_model(CONFIG, IMAGE).parameters())
    assert type(torch.zeros(1)) is torch.Tensor
