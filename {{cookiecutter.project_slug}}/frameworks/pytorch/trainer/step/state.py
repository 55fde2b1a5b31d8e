"""State of a run, which a checkpoint holds."""

import random
from dataclasses import dataclass
from typing import Any

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


def new_optimizer(config: Config, net: nn.Module) -> optim.Optimizer:
    """AdamW, which leaves biases and other vectors undecayed."""
    matrices: dict[str, Any] = {"params": [p for p in net.parameters() if p.ndim > 1]}
    vectors: dict[str, Any] = {"params": [p for p in net.parameters() if p.ndim <= 1]}
    groups = [matrices | {"weight_decay": config.weight_decay}, vectors | {"weight_decay": 0.0}]
    # One kernel updates all parameters on a GPU. A CPU's rounds otherwise, by where FSDP has cut a parameter.
    fused = all(p.is_cuda for p in net.parameters())
    return optim.AdamW(groups, lr=config.learning_rate, fused=fused)


def step_seed(config: Config, step: int, rank: int) -> int:
    """Seed of one step, as for dropout: a resumed run draws the numbers that the unbroken one would have drawn."""
    return int(np.random.SeedSequence((config.seed, step, rank)).generate_state(1, np.uint64)[0])
