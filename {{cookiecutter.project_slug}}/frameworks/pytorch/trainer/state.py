"""State of a run, which a checkpoint holds."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn, optim

from trainer import model
from trainer.config import Config
from trainer.data import Batch


@dataclass
class State:
    """State of a run, as a checkpoint holds it; `step` counts finished steps."""

    net: nn.Module  # as the strategy has wrapped it
    optimizer: optim.Optimizer
    step: int = 0
    skipped: Tensor | int = 0  # steps since the start whose gradient was no number; no checkpoint holds it

    def update(self, norm: Tensor, limit: int) -> Tensor:
        """Let the optimizer step if the norm of the gradients is a number; returns whether it does, without a wait.

        With more than `limit` steps skipped the state stays as it is, so that `replay` finds what the step found.
        """
        is_taken = norm.isfinite() & (self.skipped <= limit)
        self.skipped = self.skipped + ~is_taken
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):  # fused: the kernel looks, on the GPU
            vars(self.optimizer)["found_inf"] = (~is_taken).float()
            self.optimizer.step()
        elif is_taken:
            self.optimizer.step()
        return is_taken


def new_model(config: Config, example: Batch) -> nn.Module:
    """Build the model as it is before the first step: the same in every process, after a resume and for the export."""
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    return model.build(config, example)
