"""The mesh of processes that flags, machines and model give, or a refusal before anyone waits for another."""

import math
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import model
from trainer.cluster.world import Mesh
from trainer.config import Job
from trainer.parallel.strategy import Strategy, StrategyFlags
from trainer.samples.batches import require_samples
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError


def of_job(job: Job, strategy: Strategy, compiler: str) -> Mesh:
    """Lay out the processes of a job's machines; raises TrainerError if the flags, machines or model forbid it.

    Args:
        compiler: the name of the C++ compiler; empty for PyTorch's own choice.
    """
    config: Any = job.config  # with the strategy's flags
    if config.compile:
        require_compiler(compiler)
    net = None
    if wanted := strategy.needs or (("blocks",) if config.recompute or config.compile else ()):
        with torch.device("meta"):  # shapes alone
            net = model.build(config, Dataset(job.shards, "heldout").batch([0], config))
        require_parts(strategy, net, wanted)
    gpus = torch.cuda.device_count()
    return lay_out(strategy, config, len(job.cluster.nodes), processes(strategy, config, gpus), net)


def processes(strategy: Strategy, config: StrategyFlags, gpus: int) -> int:
    """Number of processes of one machine: one a GPU. Without GPUs, as many as it takes to split the model at all."""
    return gpus or inner(strategy.dimensions(config, processes=2))


def inner(dimensions: Mapping[str, int]) -> int:
    """Processes along all dimensions but that of all that are left."""
    return math.prod(size for size in dimensions.values() if size > 0)


def lay_out(strategy: Strategy, config: StrategyFlags, machines: int, processes: int, net: Any) -> Mesh:
    """Return the mesh on machines with so many processes each.

    Args:
        net: the model, for a strategy that needs to know of its inside.

    Raises:
        TrainerError: the flags do not fit the strategy, the machines, the model or one another.
    """
    dimensions, world = strategy.dimensions(config, processes), machines * processes
    if world % (degree := inner(dimensions)):
        whole = f"{world} processes ({machines} machines with {processes} each)"
        raise TrainerError(f"--degree is {degree}, must divide the {whole}")
    mesh = Mesh({name: world // degree if size < 0 else size for name, size in dimensions.items()})
    require_samples(config, mesh.data_size)
    if faults := list(strategy.findings(config, mesh, net)):
        raise TrainerError("; ".join(faults))
    return mesh


def require_parts(strategy: Strategy, net: nn.Module, wanted: tuple[str, ...]) -> None:
    """Raises TrainerError if the model lacks an attribute that the flags need."""
    if missing := [name for name in wanted if not hasattr(net, name)]:
        flag = f"--strategy {strategy.name}" if strategy.needs else "--recompute or --compile"
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
