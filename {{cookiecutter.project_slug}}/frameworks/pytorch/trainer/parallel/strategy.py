"""Defines the interface and the shared code of strategies, which distribute the model across processes.

Weights and gradients are always float32, even if the forward pass computes in bfloat16.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer import model
from trainer.cluster import rollcall
from trainer.cluster.rollcall import Facts
from trainer.cluster.spec import Cluster
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.flags import module_in
from trainer.reports.speed import Clock
from trainer.samples.batches import micro_batches
from trainer.step.state import State
from trainer.step.totals import Totals, add, measure

Train: TypeAlias = Callable[[Job, Any, Mesh, Clock], None]  # `run` of train.py; Any is the strategy
LOW = torch.bfloat16  # on GPUs that support it


@dataclass(frozen=True, kw_only=True)
class StrategyFlags(Config):
    """The flags that every strategy accepts."""

    strategy: Annotated[str, module_in("parallel")] = "ddp"
    recompute: bool = False
    """Store only the inputs of each block for the backward pass, and recompute other activations (activation
    checkpointing). This increases computation by a third, but saves a lot of memory."""
    compile: bool = False
    """Compile the model's blocks. The first step takes a minute longer, but later steps are faster. Compilation
    requires a C++ compiler."""

    def findings(self) -> Iterator[str]:
        """Yield an error message, including the flag's name, for each invalid value of the strategy's own flags."""
        yield from ()


def precision(config: Config, device: torch.device) -> torch.dtype:
    """Return the compute dtype of the forward pass. `--precision auto` selects bfloat16 on A100, L4, and newer GPUs."""
    if config.precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return LOW if has_it else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


def autocast(config: Config, device: torch.device, enabled: bool = True) -> AbstractContextManager[Any]:
    """Return a context manager in which matrix products use the compute dtype."""
    is_low = enabled and precision(config, device) != torch.float32
    return torch.autocast(device.type, LOW) if is_low else nullcontext()


def compile_and_recompute(config: StrategyFlags, net: Any) -> None:
    """Apply the --compile and --recompute flags to the model's blocks."""
    if config.compile:
        # Otherwise the compiler splits blocks at DistributedDataParallel's bucket boundaries. Whole blocks are small
        # enough: the gradients of a block are all-reduced while the gradients of earlier blocks are computed.
        torch._dynamo.config.optimize_ddp = False
    for block in net.blocks if config.recompute or config.compile else ():
        # The order matters: the compiler would skip a block that already recomputes, or fail on a block that is split.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


class Strategy:
    """The base class of strategies. Each strategy is a module in this folder that contains an instance named STRATEGY.

    To remove a strategy, delete its module.

    If a `config` parameter has type Any, it also contains the strategy's own flags.
    """

    flags: type[StrategyFlags] = StrategyFlags
    """The `Flags` class of the strategy's module, which extends Config with the strategy's own flags.
    """
    needs: tuple[str, ...] = ()
    """The names of the attributes that the model must have. model.py describes them."""
    casts: bool = True
    """True if the forward pass uses autocast for --precision. FSDP casts weights itself when it gathers them."""
    store: Any = None
    """The store with which the processes create the process group. By default, the first process creates one."""

    @property
    def name(self) -> str:
        """The strategy's name, which is also the name of its module."""
        return type(self).__module__.rpartition(".")[2]

    def dimensions(self, config: Any, processes: int) -> Mapping[str, int]:
        """Return the sizes of the mesh dimensions, outermost first. A size of -1 means all remaining processes.

        Args:
            processes: the number of processes per machine.
        """
        return {"replicate": -1}

    def findings(self, config: Any, mesh: Mesh, net: Any) -> Iterator[str]:
        """Yield an error message, with the flag's name, for each conflict between flags, mesh, model, and machine."""
        yield from ()

    def call_roll(self, cluster: Cluster, timeout: float, facts: Facts) -> None:
        """Wait until all replicas are present and have the same facts. See `rollcall.call` for the errors."""
        rollcall.call(cluster, timeout, facts=facts)

    def run(self, train: Train, job: Job, mesh: Mesh, clock: Clock) -> None:
        """Train until the last step. A strategy can train again, with other processes, after a process is lost."""
        train(job, self, mesh, clock)

    def wrap(self, config: Any, net: Any, world: World) -> nn.Module:
        """Distribute the model across the processes. Afterward, `net` contains only this process's parameters."""
        raise NotImplementedError

    def resume(self, state: State, restore: Callable[[State], State]) -> State:
        """Return the state to continue from. `restore` loads the latest checkpoint, if there is one."""
        return restore(state)

    def bare(self, net: Any) -> nn.Module:
        """Return this process's part of the model, without the wrapper that `wrap` added."""
        return cast(nn.Module, net)

    def parts(self, config: Config) -> int:
        """Return the number of micro-batches into which each evaluation batch is split.

        For a pipeline, return 1, because the pipeline's schedule splits the batch.
        """
        return config.micro_batches

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> Totals:
        """Run the forward and backward passes for a batch. Returns the sums of the loss and the metrics over the batch.

        This method accumulates the gradients of the mean loss over the global batch. These gradients don't depend on
        the number of processes.
        """
        totals, parts = Totals(), micro_batches(batch, config.micro_batches)
        for part in parts:
            # Gradients are averaged across the processes once, in the last backward pass.
            with self.sync(net, last=part is parts[-1]):
                with autocast(config, world.device, enabled=self.casts):
                    output = net(part.inputs)
                losses = model.losses(output, part)
                # Every sample must have the same weight, but slice sizes may differ by one. So don't average over a
                # slice.
                (losses.sum() * world.data_size / config.global_batch).backward()
            add(totals, measure(output, part, losses))
        return totals

    def sync(self, net: Any, last: bool) -> AbstractContextManager[None]:
        """Return a context manager for the forward and backward passes of a micro-batch.

        If `last` is true, the context manager averages the gradients over the processes.
        """
        return nullcontext()

    def clip(self, net: Any, limit: float, world: World) -> Tensor:
        """Scale the gradients so that their global norm is at most `limit`. Returns the norm before scaling."""
        from trainer.parallel.clip import clip_gradients  # imports DTensor, which takes half a second

        return clip_gradients(net, limit, world)

    def communication(self, net: Any) -> dict[str, float]:
        """Return a process's computation time, and its communication time that doesn't overlap with computation.

        Both times are in seconds, for the latest timed step of this process. If the times are unknown, return an empty
        dictionary.
        """
        return {}
