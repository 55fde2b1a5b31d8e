"""Contains the training loop, from the outermost function (`run`) to the innermost (`train_step`)."""

import keras
import numpy as np
import tensorflow as tf

from trainer import export, model
from trainer.checkpoints.divergence import EXACT, ROUNDED, SAMPLES, Answers, repeated, require_same_answers
from trainer.checkpoints.saver import Checkpoints
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job, due
from trainer.data import Batch
from trainer.parallel.strategy import Loop, Spread, Strategy, shares
from trainer.reports.reports import Reports, conclude
from trainer.reports.sinks import Values
from trainer.reports.speed import EVALUATION, EXPORT, Clock
from trainer.samples.batches import Data
from trainer.samples.fingerprint import require_same
from trainer.step.state import State, new_optimizer, require_keras
from trainer.step.totals import Totals, counted, means, names, require_one_per_sample
from trainer.vertex.log import say


def run(job: Job, strategy: Strategy, mesh: Mesh, clock: Clock) -> None:
    """Join the other machines and train. `task.launch` calls `run` on each machine."""
    with strategy.join(job.config, job.cluster, mesh) as world:
        if not world:
            return
        if world.is_chief:
            say(f"training on {strategy.describe(job, world)}")
        final, answers = train(job, strategy, world, clock)
        if world.is_chief:  # the training state is no longer in memory
            export.finish(job, answers)
            conclude(job, clock, final)


def train(job: Job, strategy: Strategy, world: World, clock: Clock) -> tuple[Values, Answers]:
    """Train from the latest complete checkpoint to the last step.

    If there is no checkpoint, train from the first step.

    Returns the metrics on the held-out samples, and the losses that the exported model must reproduce.
    """
    config, data = job.config, Data(job)
    require_same(job, world.gather(data.fingerprint.digest))
    if world.is_chief and job.rehearses_export:
        export.rehearse(job)
    state = new_state(config, strategy, data.example, world)
    with tf.device("CPU:0"):  # a second copy of the state, for the checkpoints
        copy = new_state(config, Strategy(), data.example, World()) if world.is_chief else None
    checkpoints = Checkpoints(job, world, copy, data.fingerprint, clock)
    state = checkpoints.restore(state)
    answers(job, state.net, data, world)
    loop = Loop(config, names(state.net, data.example), train_step, new_optimizer)
    spread = strategy.wrap(loop, state, world)
    reports = Reports(job, clock, strategy, world, state, spread, data.example)
    with checkpoints:
        for parts in reports.traced(shares(data, state.step, world)):
            totals = spread.take(parts)
            state.step += 1
            reports.step(state, totals)  # first, so that a state with a NaN or infinite loss is never saved
            checkpoints.step(state)
            if state.step < config.steps and due(state.step, config, config.evaluate_every):
                with clock.phase(EVALUATION):
                    reports.heldout(state.step, evaluate(spread, data, world))
        with clock.phase(EVALUATION):
            final = evaluate(spread, data, world)
            reports.heldout(state.step, final)
        clock.begin(EXPORT)
    return final, answers(job, state.net, data, world)


def train_step(
    config: Config, strategy: Strategy, state: State, batch: Batch, world: World
) -> tuple[Totals, tf.Tensor]:
    """Run an optimizer step on one device, using its slice of the global batch.

    Returns the sums of the loss and the metrics over the samples of all devices. Also returns the communication time,
    in seconds, that didn't overlap with this device's computation.
    """
    state.seed(config.seed)
    totals, gradients = strategy.forward_backward(config, state.net, batch, world)
    totals, synced, communicating = strategy.sync(totals, gradients)
    is_taken = state.update(*strategy.clip(synced, config.clip), config.skip_nonfinite)
    return counted(totals, is_taken), communicating


def evaluate(spread: Spread, data: Data, world: World) -> Values:
    """Return the mean loss and metrics over all held-out samples. Each sample counts once.

    Every machine must call this function.
    """
    size, parts = world.mesh.data_size, spread.loop.config.micro_batches
    shares = (data.evaluation(rank, size, parts) for rank in world.data_ranks)
    return means(spread.score(zip(*shares, strict=True)), spread.loop.names)


def answers(job: Job, net: keras.Model, data: Data, world: World) -> Answers:
    """Return the model's losses on the first held-out samples. All machines use the same samples.

    Every machine must call this function. Raises TrainerError if the machines' models differ, or if losses() doesn't
    return one number per sample.
    """
    batch = data.heldout.first(min(len(data.heldout), SAMPLES), job.config)
    is_exact = keras.config.dtype_policy().compute_dtype == "float32"

    def losses() -> tf.Tensor:
        output = net(batch.inputs, training=False)
        of_each = model.losses(output, batch)
        require_one_per_sample(output, of_each, {}, len(batch.inputs))
        return of_each

    own = repeated(losses, EXACT if is_exact else ROUNDED)
    bits = np.array(own.losses, np.float32).view(np.int32).tolist()
    of_each = np.array(world.gather(bits), np.int32).view(np.float32).tolist()
    names = [job.cluster.node(rank, world.size).name for rank in range(world.size)]
    return require_same_answers(job, [own._replace(losses=losses) for losses in of_each], names)


def new_state(config: Config, strategy: Strategy, example: Batch, world: World) -> State:
    """Build the initial training state, which is the same on every machine."""
    require_keras()
    keras.utils.set_random_seed(config.seed)
    with strategy.scope(world):
        net = strategy.build(config, example, world)
        return State(net, new_optimizer(config, net.trainable_variables, strategy.optimizer))
