"""Machines and flags -> the mesh of processes, or why there is none. Says no before any process waits for another."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainer.config import Config
from trainer.errors import TrainerError
from trainer.parallelism import SHARDED, SPLITS

STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2}  # of a pipeline, on each GPU


@dataclass(frozen=True)
class Mesh:
    """How many processes lie along each dimension, outermost first, so that the last one stays within a machine.

    Along `replicate` and `shard` processes take different samples; along `stage` and `tensor` they share them.
    """

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def data_size(self) -> int:
        """Shares into which the global batch is divided."""
        return self.sizes.get("replicate", 1) * self.sizes.get("shard", 1)

    def __str__(self) -> str:
        """`replicate 3 x stage 2`"""
        return " x ".join(f"{name} {size}" for name, size in self.sizes.items())


def processes(config: Config, gpus: int) -> int:
    """Processes of one machine: one a GPU. Without GPUs, as many as it takes to split the model at all."""
    return gpus or ((config.degree or 2) if config.strategy in SPLITS else 1)


def mesh(config: Config, machines: int, processes: int, blocks: int, heads: int) -> Mesh:
    """The mesh on machines with so many processes each.

    Args:
        blocks: of the model; only pipelines ask for them.
        heads: of its attention; only tensor parallelism asks for them.

    Raises:
        TrainerError: the flags do not fit the machines, the model or one another.
    """
    world, degree = machines * processes, config.degree or processes
    if config.strategy in SPLITS and world % degree:
        raise TrainerError(
            f"--degree is {degree}, must divide the {world} processes ({machines} machines with {processes} each)"
        )
    outer, inner = _dimensions(config.strategy)
    mesh = Mesh({outer: world // degree, inner: degree} if inner else {outer: world})
    if faults := [*_problems(config, mesh, blocks, heads)]:
        raise TrainerError("; ".join(faults))
    return mesh


def _dimensions(strategy: str) -> tuple[str, str]:
    return {"fsdp": "shard", "tensor": "shard"}.get(strategy, "replicate"), SPLITS.get(strategy, "")


def _problems(config: Config, mesh: Mesh, blocks: int, heads: int) -> Iterator[str]:
    batch, parts, shares = config.global_batch, config.micro_batches, mesh.data_size
    if config.strategy == "tensor" and heads % mesh.sizes["tensor"]:
        yield f"--degree is {mesh.sizes['tensor']}, must divide the {heads} attention heads of the model"
    if config.strategy == "pipeline":
        yield from _pipeline_problems(config, mesh, blocks)
    elif config.strategy in SHARDED and batch // shares < parts:
        # Each micro-batch gathers weights, so all processes must have the same number of them.
        yield (
            f"--micro-batches is {parts}, must be at most the samples of a process"
            f" (--global-batch {batch} / {shares} = {batch // shares})"
        )


def _pipeline_problems(config: Config, mesh: Mesh, blocks: int) -> Iterator[str]:
    batch, parts, degree = config.global_batch, config.micro_batches, mesh.sizes["stage"]
    stages = degree * STAGES[config.schedule]
    if stages > blocks:
        yield f"--degree {degree} with --schedule {config.schedule} makes {stages} stages of {blocks} blocks"
    if parts < degree:
        # With m micro-batches p stages idle for (p - 1) / (m + p - 1) of the time: Huang et al., "GPipe", 2018.
        yield f"--micro-batches is {parts}, must be at least --degree ({degree}); with {4 * degree} stages idle little"
    elif config.schedule == "interleaved" and parts % degree:
        yield f"--micro-batches is {parts}, must be a multiple of --degree ({degree}) for --schedule interleaved"
    if batch % (mesh.data_size * parts):
        yield (
            f"--global-batch is {batch}, must be a multiple of {mesh.data_size * parts}"
            f" ({mesh.data_size} pipelines x {parts} micro-batches)"
        )
