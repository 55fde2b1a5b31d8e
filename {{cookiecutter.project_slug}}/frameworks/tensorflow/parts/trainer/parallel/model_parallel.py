"""The GPUs of each machine share the layers of one model, and the machines all-reduce gradients."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer import flags, model
from trainer.cluster import devices
from trainer.cluster.spec import Cluster
from trainer.cluster.world import Mesh, World
from trainer.config import Config
from trainer.data import Batch
from trainer.parallel import multi_worker_mirrored, placed
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError


@dataclass(frozen=True, kw_only=True)
class Flags(multi_worker_mirrored.Flags):
    degree: int | None = None
    """Number of GPUs per machine that share the layers of one model. The default is all GPUs."""

    def findings(self) -> Iterator[str]:
        return flags.at_least(1, self, "degree", "bytes_per_pack")


class ModelParallel(multi_worker_mirrored.MultiWorkerMirrored):
    flags = Flags
    optimizer = placed.PlacedAdamW

    def lay_out(self, config: Any, cluster: Cluster, shards: Path) -> Mesh:
        """Return a mesh with one model per machine. If there are no GPUs, logical CPU devices share the layers."""
        super().lay_out(config, cluster, shards)
        gpus = len(devices.usable_gpus(cluster))
        degree = config.degree or gpus or 2
        if 0 < gpus < degree:
            raise TrainerError(f"--degree is {degree}, but {cluster.name} has only {gpus} GPUs")
        if "devices" not in signature(model.build).parameters:
            raise TrainerError(
                "--strategy model_parallel requires a `devices` parameter in build() of trainer/model.py"
            )
        mesh = Mesh({"replicate": len(cluster.nodes), "layers": degree})
        with tf.Graph().as_default():  # only shapes
            self.build(config, Dataset(shards, "heldout").batch([0], config), World(mesh=mesh))
        return mesh

    def scope(self, world: World) -> AbstractContextManager[Any]:
        """Return a context manager that does nothing.

        The scope of TensorFlow's strategy would mirror variables, but each variable must be on a single device.
        """
        return nullcontext()

    def build(self, config: Config, example: Batch, world: World) -> keras.Model:
        return model.build(config, example, devices.sharing(world.mesh.sizes["layers"]))

    def add_gradients(self, sums: Sequence[Any], tape: tf.GradientTape, loss: tf.Tensor, variables: Any) -> list[Any]:
        return placed.add_gradients(sums, loss, variables)


STRATEGY = ModelParallel()
