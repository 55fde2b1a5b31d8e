"""The mesh of processes that flags, machines and model give, or a refusal before anyone waits for another."""

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import flags, model, parallelism
from trainer.cluster.world import Mesh
from trainer.config import Config, Job
from trainer.parallel import strategy as strategies
from trainer.parallelism import Parallelism
from trainer.samples.batches import require_samples
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError


def of_job(job: Job, compiler: str) -> Mesh:
    """Lay out the processes of a job's machines; raises TrainerError if the flags, machines or model forbid it.

    Args:
        compiler: the name of the C++ compiler; empty for PyTorch's own choice.
    """
    config, machines = job.config, len(job.cluster.nodes)
    strategy = strategies.load(config.strategy)
    strategy.require()
    if config.compile:
        require_compiler(compiler)
    net = None
    if wanted := strategy.needs or (("blocks",) if config.recompute or config.compile else ()):
        with torch.device("meta"):  # shapes alone
            net = model.build(config, Dataset(job.shards, "heldout").batch([0], config))
        require_parts(config, net, wanted)
    return lay_out(config, machines, processes(config, torch.cuda.device_count()), net)


def processes(config: Config, gpus: int) -> int:
    """Number of processes of one machine: one a GPU. Without GPUs, as many as it takes to split the model at all."""
    return gpus or ((config.degree or 2) if len(strategies.load(config.strategy).dimensions) > 1 else 1)


def lay_out(config: Config, machines: int, processes: int, net: Any) -> Mesh:
    """Return the mesh on machines with so many processes each, of which --degree lie along the last of two dimensions.

    Args:
        net: the model, for a strategy that needs to know of its inside.

    Raises:
        TrainerError: the flags do not fit the strategy, the machines, the model or one another.
    """
    strategy, world = strategies.load(config.strategy), machines * processes
    outer, *inner = strategy.dimensions
    last = (config.degree or processes) if inner else 1
    mesh = Mesh({outer: world // last, **dict.fromkeys(inner, last)})
    faults = [*foreign_flags(config)]
    if not faults and world % last:
        faults = [f"--degree is {last}, must divide the {world} processes ({machines} machines with {processes} each)"]
    if not faults:
        require_samples(config, mesh.data_size)
        faults = [*strategy.findings(config, mesh, net)]
    if faults:
        raise TrainerError("; ".join(faults))
    return mesh


def foreign_flags(config: Config) -> Iterator[str]:
    """A phrase for each flag that is given, and is another strategy's."""
    for name in parallelism.OF_SOME:
        value, default = getattr(config, name), getattr(Parallelism, name)
        if value != default and name not in strategies.load(config.strategy).flags:
            takers = [other for other in flags.strategies() if name in strategies.load(other).flags]
            spelled = flags.flag(f"no_{name}" if value is False else name)
            yield f"{spelled} is for {', '.join(takers) or 'no strategy'}, not for --strategy {config.strategy}"


def require_parts(config: Config, net: nn.Module, wanted: tuple[str, ...]) -> None:
    """Raises TrainerError if the model lacks an attribute that the flags need."""
    if missing := [name for name in wanted if not hasattr(net, name)]:
        flag = f"--strategy {config.strategy}" if strategies.load(config.strategy).needs else "--recompute or --compile"
        raise TrainerError(
            f"{flag} needs a model with {', '.join(wanted)}; that of trainer/model.py lacks {', '.join(missing)}"
        )


def require_compiler(name: str) -> None:
    """Raises TrainerError where --compile cannot work: what PyTorch writes is C++ for CPUs, and for GPUs partly C."""
    compiler = name or ("clang++" if sys.platform == "darwin" else "g++")  # as PyTorch looks for it
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = [name for name, found in ((compiler, shutil.which(compiler)), (headers, headers.exists())) if not found]
    if missing:
        raise TrainerError(
            f"--compile needs a C++ compiler and Python's headers, and there is no {missing[0]}; "
            "in the Dockerfile: ARG COMPILE=1; elsewhere on Debian and Ubuntu: apt-get install g++ python3-dev"
        )
