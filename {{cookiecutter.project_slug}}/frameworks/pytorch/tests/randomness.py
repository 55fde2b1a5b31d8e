"""Tests whether the model draws random numbers during training, which makes losses depend on the process count."""

import torch

from tests.samples import batch
from trainer import model
from trainer.config import Config


def draws() -> bool:
    """Return whether the model draws random numbers, for example for dropout."""
    net, inputs = model.build(Config(), batch(1)).train(), torch.from_numpy(batch(4).inputs)
    with torch.no_grad():
        return not torch.equal(net(inputs), net(inputs))
