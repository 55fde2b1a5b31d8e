"""Defines the training state that checkpoints store."""

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
    """The training state that checkpoints store. `step` is the number of finished steps."""

    net: nn.Module  # wrapped by the strategy
    optimizer: optim.Optimizer
    step: int = 0
    skipped: Tensor | int = 0  # steps since the start with a NaN or infinite gradient; not in checkpoints

    def update(self, norm: Tensor, limit: int) -> Tensor:
        """Run the optimizer step if the gradient norm is finite.

        Without waiting for the device, returns a boolean tensor that indicates whether the step runs.

        After more than `limit` skipped steps, the state no longer changes, so `nonfinite.error` can repeat the failed
        step.
        """
        is_taken = norm.isfinite() & (self.skipped <= limit)
        self.skipped = self.skipped + ~is_taken
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):  # fused: the kernel checks this on the GPU
            vars(self.optimizer)["found_inf"] = (~is_taken).float()
            self.optimizer.step()
        elif is_taken:
            self.optimizer.step()
        return is_taken


def new_model(config: Config, example: Batch) -> nn.Module:
    """Build the initial model, which is the same in every process, in a resumed run, and in the export."""
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)
    return model.build(config, example)


def new_optimizer(config: Config, net: nn.Module) -> optim.Optimizer:
    """Return an AdamW optimizer that doesn't apply weight decay to biases and other vectors."""
    matrices: dict[str, Any] = {"params": [p for p in net.parameters() if p.ndim > 1]}
    vectors: dict[str, Any] = {"params": [p for p in net.parameters() if p.ndim <= 1]}
    groups = [matrices | {"weight_decay": config.weight_decay}, vectors | {"weight_decay": 0.0}]
    # On a GPU, one kernel updates all parameters. On a CPU, its rounding would depend on how FSDP splits a parameter.
    fused = all(p.is_cuda for p in net.parameters())
    return optim.AdamW(groups, lr=config.learning_rate, fused=fused)


def seed_step(config: Config, step: int, rank: int) -> None:
    """Seed the random numbers of a step, so that a resumed run draws the same ones as an uninterrupted run."""
    seed = int(np.random.SeedSequence((config.seed, step, rank)).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # without a GPU, torch.manual_seed would format a stack trace in each step
        torch.cuda.manual_seed(seed)
