"""Training, readable from top to bottom: `train` on each machine, and what a device does in a step."""

from typing import Any

import keras
import tensorflow as tf

from trainer import export, model
from trainer.checkpoints.saver import Checkpoints, State
from trainer.cluster.world import World
from trainer.config import Config, due
from trainer.data import Batch
from trainer.goodput import EXPORT
from trainer.job import Job
from trainer.parallel.calls import Replicas, calls
from trainer.parallel.optimizers import AdamW, PlacedAdamW, require_keras
from trainer.parallel.placement import add_gradients
from trainer.reports.reports import Reports
from trainer.shards import Data, micro_batches
from trainer.totals import Totals, means, measure
from trainer.vertex.log import say

SUM = tf.distribute.ReduceOp.SUM


def train(job: Job, state: State, data: Data, replicas: Replicas, checkpoints: Checkpoints) -> None:
    """Train from the state's step to the last one, and export the model.

    Args:
        replicas: those that take the steps: the devices of all machines, or the workers of parameter servers.
    """
    config = job.config
    with Reports(job, replicas, state) as reports, checkpoints:
        for steps in reports.traced(calls(job, data.train, state.step, replicas.ranks, replicas.size)):
            totals = replicas.take(steps)
            state.step = steps.end
            reports.step(state, totals)  # first: a loss that is no number must not become a checkpoint
            checkpoints.step(state)
            if state.step < config.steps and due(state.step, config, config.evaluate_every):
                reports.heldout(state.step, means(replicas.evaluate(data), replicas.names))
        final = means(replicas.evaluate(data), replicas.names)
        reports.heldout(state.step, final)
    if replicas.is_chief:
        export.finish(job, data, state, final)
        job.clock.lap(EXPORT)
        say(str(job.clock), goodput=job.clock.goodput, seconds=dict(job.clock.seconds))


def train_step(config: Config, state: State, batch: Batch) -> tuple[Totals, tf.Tensor]:
    """Take an optimizer step of a device on its part of the global batch.

    Returns the totals of all devices, and the seconds in which this one only communicated.
    """
    variables = state.net.trainable_variables
    totals, sums = 0.0, [tf.zeros(variable.shape) for variable in variables]
    for part in micro_batches(batch, config.micro_batches):
        with tf.GradientTape() as tape:
            output = state.net(part.inputs, training=True)
            losses = model.losses(output, part)
            # Every sample counts the same, although parts may differ by one: no mean over this part.
            loss = tf.reduce_sum(losses) / config.global_batch
        if config.model_parallel > 1:
            sums = add_gradients(sums, loss, variables)
        else:
            sums = [total + gradient for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True)]
        totals += measure(output, part, losses)
    computed, context = clock(sums), tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        # One call, so that gradients and totals travel in the same packs.
        totals, *sums = context.all_reduce(SUM, [totals, *sums])
    communicating = clock(sums) - computed
    clipped, _ = tf.clip_by_global_norm(sums, config.clip)
    state.optimizer.apply(clipped, variables)
    return totals, communicating


def clock(values: list[tf.Tensor]) -> tf.Tensor:
    """Time in seconds at which all the values are there; 0 with GPUs, which a question would hold up."""
    if tf.config.list_physical_devices("GPU"):
        return tf.constant(0.0, tf.float64)
    with tf.control_dependencies(values):
        return tf.timestamp()


def new_state(config: Config, example: Batch, world: World) -> State:
    """Build the state before the first step: the same on every machine."""
    require_keras()
    keras.utils.set_random_seed(config.seed)
    # A model without model parallelism need not know of devices.
    devices = (world.layer_devices,) if world.is_model_parallel else ()
    with world.scope():
        net = model.build(config, example, *devices)
        kind = PlacedAdamW if world.is_model_parallel else AdamW
        return State(net, new_optimizer(config, net.trainable_variables, kind))


def new_copy(config: Config, example: Batch) -> State:
    """Build a second state on the CPU, for the checkpoints; random numbers are left as `new_state` leaves them."""
    with tf.device("CPU:0"):
        return new_state(config, example, World(tf.distribute.get_strategy(), rank=0, size=1))


def new_optimizer(
    config: Config, variables: list[Any], kind: type[keras.optimizers.AdamW] = AdamW
) -> keras.optimizers.AdamW:
    """AdamW, which leaves biases and other vectors undecayed."""
    optimizer = kind(config.learning_rate, weight_decay=config.weight_decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay([v for v in variables if len(v.shape) <= 1])
    optimizer.build(variables)
    return optimizer
