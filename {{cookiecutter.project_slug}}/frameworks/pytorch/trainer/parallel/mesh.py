"""Lays out the mesh of processes, and rejects incompatible flags before any process waits for the others."""

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
    """Return the process mesh for a job's machines.

    Raises TrainerError if the flags, machines, and model are incompatible.

    Args:
        compiler: the C++ compiler command. If the command is empty, PyTorch uses its default compiler.
    """
    config: Any = job.config  # includes the strategy's flags
    if config.compile:
        require_compiler(compiler)
    net = None
    if wanted := strategy.needs or (("blocks",) if config.recompute or config.compile else ()):
        with torch.device("meta"):  # only shapes
            net = model.build(config, Dataset(job.shards, "heldout").batch([0], config))
        require_parts(strategy, net, wanted)
    gpus = torch.cuda.device_count()
    return lay_out(strategy, config, len(job.cluster.nodes), processes(strategy, config, gpus), net)


def processes(strategy: Strategy, config: StrategyFlags, gpus: int) -> int:
    """Return the number of processes per machine, which equals the number of GPUs.

    If there are no GPUs, return the smallest number of processes that the strategy supports.
    """
    return gpus or inner(strategy.dimensions(config, processes=2))


def inner(dimensions: Mapping[str, int]) -> int:
    """Return the product of the sizes of all fixed mesh dimensions."""
    return math.prod(size for size in dimensions.values() if size > 0)


def lay_out(strategy: Strategy, config: StrategyFlags, machines: int, processes: int, net: Any) -> Mesh:
    """Return the mesh for `machines` machines that run `processes` processes each.

    Args:
        net: the model, or None if the strategy doesn't inspect it.

    Raises:
        TrainerError: if the flags are incompatible with the strategy, the machines, the model, or other flags.
    """
    dimensions, world = strategy.dimensions(config, processes), machines * processes
    if world % (degree := inner(dimensions)):
        whole = f"{world} ({machines} machines with {processes} processes each)"
        raise TrainerError(f"--degree {degree} doesn't evenly divide the number of processes, {whole}")
    mesh = Mesh({name: world // degree if size < 0 else size for name, size in dimensions.items()})
    require_samples(config, mesh.data_size)
    if faults := list(strategy.findings(config, mesh, net)):
        raise TrainerError("; ".join(faults))
    return mesh


def require_parts(strategy: Strategy, net: nn.Module, wanted: tuple[str, ...]) -> None:
    """Check that the model has all attributes that the flags require.

    Raises TrainerError if an attribute is missing.
    """
    if missing := [name for name in wanted if not hasattr(net, name)]:
        flag = f"--strategy {strategy.name}" if strategy.needs else "--recompute or --compile"
        raise TrainerError(
            f"{flag} requires a model with the attributes {', '.join(wanted)};"
            f" add {', '.join(missing)} to the model in trainer/model.py"
        )


def require_compiler(name: str) -> None:
    """Check that PyTorch can compile generated code.

    Raises TrainerError if the compiler or Python's headers are missing.

    With --compile, PyTorch generates C++ code for CPUs and some C code for GPUs.
    """
    compiler = name or ("clang++" if sys.platform == "darwin" else "g++")  # PyTorch's default compiler
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = [name for name, found in ((compiler, shutil.which(compiler)), (headers, headers.exists())) if not found]
    if missing:
        raise TrainerError(
            f"--compile requires a C++ compiler and Python's headers, but {missing[0]} isn't installed; "
            "set ARG COMPILE=1 in the Dockerfile, or run apt-get install g++ python3-dev on Debian or Ubuntu"
        )
