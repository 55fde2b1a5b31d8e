"""Each GPU holds the whole model, as with the ddp strategy, but a lost machine doesn't stop the others.

The remaining processes train on all samples of each global batch, so the loss curve doesn't change. A machine that
returns receives the training state from another machine. A generation is a period in which the same processes train.
Each generation has its own process group. See trainer/cluster/quorum.py for how the processes agree on a generation.
"""

import contextlib
import gc
import importlib
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined] # public, but not exported
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from trainer import flags
from trainer.checkpoints import divergence
from trainer.checkpoints.saver import BY_NAME
from trainer.cluster.preemption import StoppedError
from trainer.cluster.processes import lost_peer
from trainer.cluster.quorum import Client, Generation, Limits, OverError
from trainer.cluster.quorum_server import Server
from trainer.cluster.rollcall import Facts
from trainer.cluster.spec import Cluster
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.parallel import ddp
from trainer.parallel.strategy import Train, compile_and_recompute
from trainer.reports.speed import Clock, process_start
from trainer.step.state import State, new_optimizer
from trainer.step.totals import Totals
from trainer.vertex.errors import LostPeerError, PeerError, TrainerError
from trainer.vertex.log import say

CONNECT_SECONDS = 5.0  # for connecting to the chief's store, which exists before a process hears of its generation
REGROUPING = "regrouping"  # from a lost or returned process until the next process group is complete


@dataclass(frozen=True, kw_only=True)
class Flags(ddp.Flags):
    min_replicas: int = 1
    """Smallest number of replicas that train. If fewer replicas are left, they wait for the others."""
    quorum_timeout: float = 600
    """Seconds to wait until the chief has restarted, or until --min-replicas replicas are present.
    After this time, the run fails."""

    def findings(self) -> Iterator[str]:
        yield from super().findings()
        yield from flags.at_least(1, self, "min_replicas")
        yield from flags.above_zero(self, "quorum_timeout")


class RegroupError(Exception):
    """The error that ends a generation in all processes at the same step, because a process joins."""


class Present(int):
    """A number of replicas. In text, it's followed by the number of all replicas, as in `2 of 3`."""

    total: int

    def __new__(cls, count: int, total: int) -> "Present":
        present = super().__new__(cls, count)
        present.total = total
        return present

    def __str__(self) -> str:
        return f"{int(self)} of {self.total}"


class Elastic(ddp.DataParallel):
    """Replicated training that continues without lost processes.

    The attribute `_state` is the training state, or None if this process doesn't hold a complete one.
    """

    flags = Flags

    def __init__(self) -> None:
        self._facts: Facts = {}  # which can be pickled
        self._patience = 0.0
        self._state: State | None = None
        self._generation = Generation(())
        self._buffers: tuple[int, list[Tensor]] = -1, []  # before a step, and the number of steps finished by then
        self._back = set[int]()  # ranks of processes that join in this generation

    def call_roll(self, cluster: Cluster, timeout: float, facts: Facts) -> None:
        """Note the arguments for the first generation, which replaces the roll call."""
        self._patience, self._facts = timeout, facts

    def run(self, train: Train, job: Job, mesh: Mesh, clock: Clock) -> None:
        """Train in one generation after another, until the last step."""
        importlib.import_module("torch._dynamo")  # otherwise DDP would import it while the other processes wait
        config, rank, self._each = job.config, int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        assert isinstance(config, Flags)
        if config.min_replicas > (count := len(job.cluster.nodes)):
            raise TrainerError(f"--min-replicas is {config.min_replicas}, but the number of replicas is {count}")
        limits = Limits(config.min_replicas, self._patience, config.quorum_timeout, config.collective_timeout)
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # otherwise NCCL's watchdog aborts the process
        if rank == 0:
            Server(job.cluster, self._each, limits, self._facts)
        began = time.time() - (time.monotonic() - process_start())
        self._job, is_over = job, partial(has_exported, job.storage.model, began)
        self._client = Client(job.cluster, rank, limits, self._facts, abort_collectives, is_over)
        self._generation = Generation(ranks=tuple(range(mesh.size)))
        with contextlib.suppress(OverError):
            self._follow(self._client.ask(-1, broken=False))
            while why := self._attempt(train, *self._share(job, mesh), clock):
                clock.begin(REGROUPING)
                if not isinstance(why, RegroupError):
                    self._follow(self._client.ask(self._step, broken=True))
        self._client.leave()

    @property
    def _step(self) -> int:
        return self._state.step if self._state else -1

    def _follow(self, generation: Generation) -> None:
        """Set this process's rank and the number of processes in a new generation."""
        before, self._generation = self._generation, generation
        rank = self._client.rank
        self._back = {*generation.ranks} - ({*before.ranks} & generation.steps.keys())
        os.environ |= {"RANK": str(generation.ranks.index(rank)), "WORLD_SIZE": str(len(generation.ranks))}
        if rank == 0 and (gone := self._names({*before.ranks} - {*generation.ranks})):
            step, samples = max(generation.steps.values(), default=0), self._job.config.global_batch
            said = f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} {'gone' if before.number else 'absent'}"
            say(f"{said}; {self._present} go on at step {step} with all {samples} samples", "WARNING", gone=gone)

    @property
    def _present(self) -> Present:
        return Present(len(self._generation.ranks) // self._each, len(self._job.cluster.nodes))

    def _names(self, ranks: set[int]) -> list[str]:
        size = self._each * len(self._job.cluster.nodes)
        return list(dict.fromkeys(self._job.cluster.node(rank, size).name for rank in sorted(ranks)))

    def _share(self, job: Job, mesh: Mesh) -> tuple[Job, Mesh]:
        """Return the job and the mesh of this generation. With fewer processes, each one has more micro-batches."""
        ranks, names = self._generation.ranks, self._names({*self._generation.ranks})
        parts = math.ceil(job.config.micro_batches * mesh.size / len(ranks))
        nodes = tuple(node for node in job.cluster.nodes if node.name in names)
        config = replace(job.config, micro_batches=parts)
        if self._generation.source is not None:
            config = replace(config, rehearse_export=False)  # done before the first step
        return replace(job, config=config, cluster=replace(job.cluster, nodes=nodes)), Mesh({"replicate": len(ranks)})

    def _connect(self, timeout: float) -> TCPStore:
        """Connect to the store of this generation.

        Raises LostPeerError if a process has been lost. Later losses close the connection.
        """
        chief, port = self._job.cluster.chief, self._generation.port
        store = TCPStore(chief.host, port, is_master=False, timeout=timedelta(seconds=CONNECT_SECONDS))
        if self._client.lost.is_set():
            raise LostPeerError("a peer was lost before the process group was created")
        store.set_timeout(timedelta(seconds=timeout))
        return store

    def _attempt(self, train: Train, job: Job, mesh: Mesh, clock: Clock) -> Exception | None:
        """Train in one generation. Returns the error that ended it, or None after the last step."""
        try:
            self.store = self._connect(job.config.collective_timeout)
            train(job, self, mesh, clock)
            return None
        except Exception as error:
            was_told = isinstance(error, StoppedError) and error.exit_code != PeerError.exit_code
            regroups = isinstance(error, RegroupError | LostPeerError | StoppedError) or lost_peer(error)
            if was_told or not (regroups or self._client.lost.is_set()):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the wrapped model, which holds the process group
            why = error.with_traceback(None)
        if self._state and isinstance(self._state.net, DistributedDataParallel):
            self._state.net = self.bare(self._state.net)
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()
        return why

    def wrap(self, config: Any, net: nn.Module, world: World) -> DistributedDataParallel:
        """Wrap the model. If a process holds a training state, load that state first."""
        if (source := self._generation.source) is None:
            return super().wrap(config, net, world)
        if self._state:
            net = self._state.net
            finished, buffers = self._buffers
            if finished == self._step:  # the forward pass of the unfinished step changed the buffers
                for buffer, value in zip(net.buffers(), buffers, strict=True):
                    buffer.copy_(value)
            state = self._state
        else:
            compile_and_recompute(config, net.to(world.device))
            state = State(net, new_optimizer(config, net))
        state.optimizer.zero_grad()
        steps = self._generation.steps
        if len(steps) < world.size or len({*steps.values()}) > 1:
            self._state = state if self._step == steps[source] else None  # until the state is complete
            self._receive(state, source, world)
        self._state = state
        return self.distribute(config, net, world)

    def _receive(self, state: State, source: int, world: World) -> None:
        """Copy the training state of the process with rank `source` to all processes of this generation."""
        began, sender = time.monotonic(), self._generation.ranks.index(source)
        model, optimizer = get_state_dict(state.net, state.optimizer, options=BY_NAME)
        numbers = torch.tensor([state.step, int(state.skipped)], device=world.device)
        for value in (*model.values(), *optimizer.values(), numbers):
            if isinstance(value, Tensor):
                dist.broadcast(value, sender)
        set_state_dict(state.net, state.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=BY_NAME)
        state.step, state.skipped = numbers.tolist()
        if divergence.diverged(state, state.net, world):
            raise PeerError("the training state changed while it was sent to another process")
        back = self._names(self._back)
        if world.is_chief and back:
            said = f"{' and '.join(back)} {'is' if len(back) == 1 else 'are'} back at step {state.step}"
            say(f"{said}, state from {self._names({source})[0]} in {time.monotonic() - began:.1f} s", back=back)

    def resume(self, state: State, restore: Callable[[State], State]) -> State:
        if not self._state:
            self._state = restore(state)
        self._state.net = state.net
        return self._state

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> Totals:
        """Run the passes of a step. Raises RegroupError if the chief has announced another generation."""
        if self._step >= self._generation.ask:
            generation, number = self._client.ask(self._step, broken=False), self._generation.number
            if generation.number != number:
                self._follow(generation)
                raise RegroupError
            self._generation = generation
        self._buffers = self._step, [buffer.clone() for buffer in self.bare(net).buffers()]
        return super().forward_backward(config, net, batch, world)

    def clip(self, net: Any, limit: float, world: World) -> Tensor:
        """Clip the gradients. Raises LostPeerError if NCCL's all-reduce was interrupted, so that they are invalid."""
        norm = super().clip(net, limit, world)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
            if self._client.lost.is_set():
                raise LostPeerError("a peer was lost while the gradients were averaged")
        return norm

    def communication(self, net: Any) -> dict[str, float]:
        timed = super().communication(net)
        return timed and timed | {"replicas": self._present}


def has_exported(folder: Path, began: float) -> bool:
    """Return whether a file in the model's folder is newer than this process. The chief then needs no other replica.

    The process began at the time `began`, in seconds since 1970.
    """
    return any(path.stat().st_mtime > began for path in folder.glob("*"))


def abort_collectives() -> None:
    """Interrupt collectives of NCCL, which don't notice that a peer is lost."""
    if torch.cuda.is_available() and dist.is_initialized():
        distributed_c10d._abort_process_group()


STRATEGY = Elastic()
