"""Tests whether the model draws random numbers in training, so that losses depend on the number of processes."""

import torch

from tests.samples import batch
from trainer import model
from trainer.config import Config


def draws() -> bool:
    """Return whether the model draws random numbers, such as for dropout."""
    net, inputs = model.build(Config(), batch(1)).train(), torch.from_numpy(batch(4).inputs)
    with torch.no_grad():
        return not torch.equal(net(inputs), net(inputs))
