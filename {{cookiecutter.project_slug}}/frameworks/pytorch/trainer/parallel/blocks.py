"""Blocks of a model that compile, or are computed again in the backward pass."""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from trainer.parallel.strategy import StrategyFlags


def compile_and_recompute(config: StrategyFlags, net: Any) -> None:
    """Make the blocks compile, recompute, or neither, as the flags say."""
    if config.compile:
        # Otherwise the compiler cuts each block where a bucket of DistributedDataParallel ends. The blocks are parts
        # enough: their gradients are all-reduced one by one while those of earlier blocks are computed.
        torch._dynamo.config.optimize_ddp = False
    for block in net.blocks if config.recompute or config.compile else ():
        # In this order: the compiler would leave a block that recomputes as it is, or fail on one that is split.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
