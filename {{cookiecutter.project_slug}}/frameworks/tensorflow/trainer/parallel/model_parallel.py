"""The GPUs of each machine share the layers of one model, and machines all-reduce gradients."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import keras
import tensorflow as tf

from trainer import model, placement
from trainer.cluster import devices
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.parallel.multi_worker_mirrored import MultiWorkerMirrored
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError


class ModelParallel(MultiWorkerMirrored):
    optimizer = placement.PlacedAdamW

    def lay_out(self, job: Job) -> Mesh:
        """Return one model on each machine; without GPUs, on as many parts of the CPU as it takes to spread it."""
        super().lay_out(job)
        gpus = len(devices.usable_gpus(job.cluster))
        degree = job.config.degree or gpus or 2
        if 0 < gpus < degree:
            raise TrainerError(f"--degree is {degree}, must be at most the {gpus} GPUs of {job.cluster.name}")
        if "devices" not in signature(model.build).parameters:
            raise TrainerError("--strategy model_parallel needs build() of trainer/model.py to take `devices`")
        mesh = Mesh({"replicate": len(job.cluster.nodes), "layers": degree})
        with tf.Graph().as_default():  # shapes alone
            self.build(job.config, Dataset(job.shards, "heldout").batch([0], job.config), World(mesh=mesh))
        return mesh

    def scope(self, world: World) -> AbstractContextManager[Any]:
        """Return no scope of a strategy, which would mirror variables: each has one device."""
        return nullcontext()

    def build(self, config: Config, example: Batch, world: World) -> keras.Model:
        return model.build(config, example, devices.sharing(world.mesh.sizes["layers"]))

    def add_gradients(self, sums: Sequence[Any], tape: tf.GradientTape, loss: tf.Tensor, variables: Any) -> list[Any]:
        return placement.add_gradients(sums, loss, variables)


STRATEGY = ModelParallel()
