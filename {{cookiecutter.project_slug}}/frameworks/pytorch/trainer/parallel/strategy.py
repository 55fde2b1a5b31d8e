"""The interface of a strategy, which decides how the model is spread over the processes; and what strategies share.

Weights and gradients are float32, whatever the number format of the forward pass.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer import model
from trainer.cluster.world import Mesh, World
from trainer.config import Config
from trainer.data import Batch
from trainer.flags import module_in
from trainer.parallel.clip import clip_gradients
from trainer.samples.batches import micro_batches
from trainer.step.totals import Totals, add, measure

LOW = torch.bfloat16  # of GPUs that have it


@dataclass(frozen=True, kw_only=True)
class StrategyFlags(Config):
    """The flags that every strategy takes."""

    strategy: Annotated[str, module_in("parallel")] = "ddp"
    recompute: bool = False
    """Keep only the inputs of blocks for the backward pass, and compute the rest again: a third more computing for
    much less memory (activation checkpointing)."""
    compile: bool = False
    """Compile the blocks. The first step takes a minute longer, the others less time. Needs a C++ compiler."""

    def findings(self) -> Iterator[str]:
        """Yield a phrase, which names the flag, for each wrong value of a strategy's own flags."""
        yield from ()


def precision(config: Config, device: torch.device) -> torch.dtype:
    """Compute dtype of the forward pass; `auto` is bfloat16 on GPUs that have it, from A100 and L4 on."""
    if config.precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return LOW if has_it else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


def autocast(config: Config, device: torch.device, enabled: bool = True) -> torch.autocast:
    """Return a context in which matrix products have that precision."""
    return torch.autocast(device.type, LOW, enabled=enabled and precision(config, device) != torch.float32)


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


class Strategy:
    """A choice of --strategy: a module of this folder whose STRATEGY is one. A deleted module is no choice any more.

    Methods that take a `config` of any type take the strategy's own flags.
    """

    flags: type[StrategyFlags] = StrategyFlags
    """Config with this strategy's own flags: the class Flags of its module."""
    needs: tuple[str, ...] = ()
    """Attributes that the model must have; model.py describes them."""
    casts: bool = True
    """Whether the forward pass is cast to --precision by autocast; shards are cast when they are gathered."""

    @property
    def name(self) -> str:
        """The choice, which is the name of the module."""
        return type(self).__module__.rpartition(".")[2]

    def dimensions(self, config: Any, processes: int) -> Mapping[str, int]:
        """Return the dimensions of the mesh, outermost first, with the processes along each: -1 for all that are left.

        Args:
            processes: of a machine.
        """
        return {"replicate": -1}

    def findings(self, config: Any, mesh: Mesh, net: Any) -> Iterator[str]:
        """Yield a phrase, which names the flag, for each conflict between flags, mesh, model and machine."""
        yield from ()

    def wrap(self, config: Any, net: Any, world: World) -> nn.Module:
        """Spread the model over the processes; `net` itself then keeps only this process's parameters."""
        raise NotImplementedError

    def bare(self, net: Any) -> nn.Module:
        """Return this process's part of the model, without what `wrap` has put around it."""
        return cast(nn.Module, net)

    def parts(self, config: Config) -> int:
        """Return the parts into which an evaluation divides a batch; a pipeline divides it by itself."""
        return config.micro_batches

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> Totals:
        """Add the gradients of the mean loss over the global batch: one curve for any number of processes."""
        totals, parts = Totals(), micro_batches(batch, config.micro_batches)
        for part in parts:
            # Gradients are averaged over the processes once, in the last backward pass.
            with self.sync(net, last=part is parts[-1]):
                with autocast(config, world.device, enabled=self.casts):
                    output = net(part.inputs)
                losses = model.losses(output, part)
                # Every sample counts the same, although shares may differ by one: no mean over this share.
                (losses.sum() * world.data_size / config.global_batch).backward()
            add(totals, measure(output, part, losses))
        return totals

    def sync(self, net: Any, last: bool) -> AbstractContextManager[None]:
        """Average gradients over the processes after the backward pass of the last micro-batch, and not before."""
        return nullcontext()

    def clip(self, net: Any, limit: float, world: World) -> Tensor:
        """Scale the gradients to a norm of at most `limit` over the whole model; returns the norm that they had."""
        return clip_gradients(net, limit, world)

    def communication(self, net: Any) -> dict[str, float]:
        """Seconds of the newest timed step in which this process computed, and only communicated; empty if unknown."""
        return {}
