"""Strategies for some steps: python -m tests.strategies SHARDS GROUP prints what those of a group did.

Groups: those in GROUPS, each with its number of processes; and the relay, of which each takes over a checkpoint.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from tests.samples import batch
from trainer import model, train
from trainer.checkpoints.saver import Checkpoints
from trainer.cluster import devices, processes, supervisor
from trainer.cluster.spec import Cluster
from trainer.cluster.world import Mesh, World
from trainer.config import Job
from trainer.data import Batch
from trainer.parallel import choice, ddp, fsdp, pipeline, tensor
from trainer.parallel import mesh as layout
from trainer.parallel.strategy import Strategy, StrategyFlags
from trainer.reports.speed import Clock
from trainer.samples.batches import Data
from trainer.step.state import State, new_optimizer
from trainer.step.totals import means
from trainer.vertex.log import exit_code
from trainer.vertex.storage import Storage

DEGREE = 2  # processes that hold one copy of the model
RUN: dict[str, Any] = {"steps": 50, "warmup": 5}
COMMON, FSDP = ddp.Flags(**RUN), fsdp.Flags(strategy="fsdp", **RUN)
COPIED = replace(FSDP, degree=DEGREE)
PIPELINE = pipeline.Flags(strategy="pipeline", degree=DEGREE, micro_batches=4, **RUN)
TENSOR = tensor.Flags(strategy="tensor", degree=DEGREE, **RUN)
# Those of two processes take all steps, since a laptop has so many cores; of the others, hybrid sharding alone does.
PAIRS: dict[str, StrategyFlags] = {
    "fsdp": FSDP,
    "tensor": TENSOR,
}
FOURS: dict[str, StrategyFlags] = {
    "ddp, 5 micro-batches": replace(COMMON, micro_batches=5),
    "fsdp of 4": FSDP,
    "fsdp without resharding, 5 micro-batches": replace(FSDP, reshard=False, micro_batches=5),
    "fsdp, copied, recomputed": replace(COPIED, recompute=True),
    "fsdp, copied, in bfloat16": replace(COPIED, precision="bfloat16"),
    "gpipe": replace(PIPELINE, schedule="gpipe"),
    "interleaved, recomputed": replace(PIPELINE, schedule="interleaved", recompute=True),
    "pipeline in bfloat16": replace(PIPELINE, precision="bfloat16"),
    "tensor and shards, recomputed, 2 micro-batches": replace(TENSOR, recompute=True, micro_batches=2),
}
COMPILED: dict[str, StrategyFlags] = {"compiled, recomputed": replace(COMMON, compile=True, recompute=True)}
ALL, SOME = COMMON.steps, 6  # steps
STEPS = dict.fromkeys([*PAIRS, "pipeline", "fsdp, copied"], ALL) | dict.fromkeys([*FOURS, *COMPILED], SOME)
GROUPS: dict[str, tuple[int, dict[str, StrategyFlags]]] = {
    "pipeline": (2, {"pipeline": PIPELINE}),
    "pairs": (2, PAIRS),
    "copied": (4, {"fsdp, copied": COPIED}),
    "fours": (4, FOURS),
    "compiled": (1, COMPILED),
}
# Strategies and numbers of processes; each takes over the checkpoint of the one before.
RELAY = [
    (COMMON, 2),
    (FSDP, 3),
    (COMMON, 1),
    (PIPELINE, 2),
]
LEG = 5  # steps
TIMEOUT = 300  # seconds; nobody waits for it


def each(cases: Mapping[str, StrategyFlags], shards: Path) -> None:
    """Several strategies, one after another, in the same processes."""
    with processes.join(Mesh({"replicate": int(os.environ["WORLD_SIZE"])}), timeout=TIMEOUT) as world:
        for name, config in cases.items():
            tell(name, go(config, lay_out(config, world), shards, STEPS[name]), world)


def lay_out(config: StrategyFlags, world: World) -> World:
    """The same processes in the mesh of this strategy."""
    count = min(DEGREE, world.size)  # processes of a machine
    mesh = mesh_of(config, world.size // count, count)
    return replace(world, mesh=init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.sizes)))


def mesh_of(config: StrategyFlags, machines: int, processes: int) -> Mesh:
    with torch.device("meta"):
        net = model.build(config, batch(1))
    return layout.lay_out(choice.load(config.strategy), config, machines, processes, net)


def leg(config: StrategyFlags, mesh: Mesh, shards: Path, checkpoints: Path) -> None:
    """From one checkpoint to the next."""
    with processes.join(mesh, timeout=TIMEOUT) as world:
        tell(f"relay {mesh}", go(config, world, shards, LEG, checkpoints), world)


class Found(TypedDict):
    losses: list[float]  # the mean of each step
    heldout: float  # the mean loss after the last one
    norm: float  # of the gradient before the first step
    collectives: int  # of finding that norm and clipping
    kept: float  # bytes of parameters, gradients and moments in the process that keeps most
    cut: int  # of FSDP's gradients between two micro-batches


def tell(name: str, found: Found, world: World) -> None:
    if world.is_chief:
        print(json.dumps({name: found}), flush=True)


def go(config: StrategyFlags, world: World, shards: Path, steps: int, checkpoints: Path | None = None) -> Found:
    """So many steps; where there are checkpoints, from the newest to a new one."""
    job = Job(config, Storage(checkpoints=checkpoints or Storage.checkpoints), shards)
    strategy, data = choice.load(config.strategy), Data(job)
    torch.manual_seed(config.seed)
    net = strategy.wrap(config, model.build(config, data.example), world)
    state = State(net, new_optimizer(config, net))
    saver = Checkpoints(job, strategy, world, data.fingerprint, Clock())
    if checkpoints:
        saver.restore(state)
    share = islice(data.training(state.step, world.data_rank, world.data_size), steps)
    batches = [devices.copy(batch, world.device) for batch in share]
    strategy.forward_backward(config, net, batches[0], world)
    with CommDebugMode() as collectives:
        norm = float(strategy.clip(net, math.inf, world))
    state.optimizer.zero_grad()
    totals = [train.train_step(config, strategy, state, batch, world) for batch in batches]
    if checkpoints:
        saver.save(state)
        saver.wait()
    most = torch.tensor(kept(state), dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {
        "losses": [means(one, world)["loss"] for one in totals],
        "heldout": train.evaluate(config, strategy, net, data, world)["loss"],
        "norm": norm,
        "collectives": collectives.get_total_counts(),
        "kept": float(most),
        "cut": cut(strategy, net, batches[0]) if isinstance(net, FSDPModule) else 0,
    }


def cut(strategy: Strategy, net: Any, first: Batch) -> int:
    """Bytes of the gradients, cut, behind a backward pass that is not the last one of its step."""
    with strategy.sync(net, last=False):
        model.losses(net(first.inputs), first).sum().backward()
    return sum(one.grad.to_local().nbytes for one in net.parameters() if isinstance(one.grad, DTensor))


def kept(state: State) -> int:
    """Bytes of this process; gradients, which are gone after a step, are as large as the parameters."""
    parameters = [*state.net.parameters()]
    moments = [value for one in state.optimizer.state.values() for value in one.values() if value.ndim]
    mine = [one.to_local() if isinstance(one, DTensor) else one for one in [*parameters, *parameters, *moments]]
    return sum(one.nbytes for one in mine)


def main(shards: Path, group: str) -> None:
    if group in GROUPS:
        count, cases = GROUPS[group]
        launch(Mesh({"replicate": count}), each, cases, shards)
        return
    with tempfile.TemporaryDirectory() as checkpoints:
        for config, count in RELAY:
            mesh = mesh_of(config, 1, count)
            launch(mesh, leg, config, mesh, shards, Path(checkpoints))


def launch(mesh: Mesh, what: Callable[..., None], *arguments: object) -> None:
    """Run a replica's processes, which have the libraries of this one."""
    work = partial(processes.launch, Cluster(), mesh, partial(what, *arguments))
    replica = get_context("fork").Process(target=supervisor.run_to_end, args=(lambda *_: exit_code(work),))
    replica.start()
    replica.join()
    assert replica.exitcode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
