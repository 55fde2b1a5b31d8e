"""State of a run, which a checkpoint holds."""

from dataclasses import dataclass

from torch import nn, optim


@dataclass
class State:
    """State of a run, as a checkpoint holds it; `step` counts finished steps."""

    net: nn.Module  # as the strategy has wrapped it
    optimizer: optim.Optimizer
    step: int = 0
