"""Contains the training loop, from the outermost function (`run`) to the innermost (`train_step`)."""

from functools import partial

import torch
from torch import nn

from trainer import export, model
from trainer.checkpoints import divergence
from trainer.checkpoints.divergence import EXACT, ROUNDED, SAMPLES, Answers, repeated, require_same_answers
from trainer.checkpoints.saver import Checkpoints
from trainer.cluster import devices, processes
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job, due, learning_rate
from trainer.data import Batch
from trainer.parallel.strategy import Strategy, autocast, precision
from trainer.reports.reports import Reports, conclude
from trainer.reports.sinks import Values
from trainer.reports.speed import EVALUATION, EXPORT, Clock
from trainer.samples.batches import Data, largest_part
from trainer.samples.fingerprint import require_same
from trainer.step.state import State, new_model, new_optimizer, seed_step
from trainer.step.totals import Totals, add, counted, means, measure, require_one_per_sample
from trainer.vertex.log import say


def run(job: Job, strategy: Strategy, mesh: Mesh, clock: Clock) -> None:
    """Join the other processes and train. `processes.launch` calls `run` in each process."""
    with processes.join(mesh, job.config.collective_timeout, strategy.store) as world:
        if world.is_chief:
            say(f"training on {world.size} x {devices.describe(world.device)}, {strategy.name}: {mesh}")
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
    net = new_model(config, data.example)
    divergence.require_same_buffers(job, net, world)  # before the strategy copies the first process's buffers to all
    net = strategy.wrap(config, net, world)
    checkpoints = Checkpoints(job, strategy, world, data.fingerprint, clock)
    state = strategy.resume(State(net, new_optimizer(config, net)), checkpoints.restore)
    ask = partial(answers, job, strategy, net, data, world)
    ask()
    reports = Reports(job, clock, strategy, world, state, data.example)
    with checkpoints:
        for batch in reports.traced(data.training(state.step, world.data_rank, world.data_size)):
            totals = train_step(config, strategy, state, devices.copy(batch, world.device), world)
            reports.step(state, totals)  # first, so that a state with a NaN or infinite loss is never saved
            checkpoints.step(state)
            if state.step < config.steps and due(state.step, config, config.evaluate_every):
                with clock.phase(EVALUATION):
                    reports.heldout(state.step, evaluate(config, strategy, net, data, world))
        checkpoints.finish(state)
        with clock.phase(EVALUATION):
            final = evaluate(config, strategy, net, data, world)
            reports.heldout(state.step, final)
        clock.begin(EXPORT)
    return final, ask()


def train_step(config: Config, strategy: Strategy, state: State, batch: Batch, world: World) -> Totals:
    """Run an optimizer step on this process's slice of the global batch.

    Returns the sums of the loss and the metrics over the samples of this slice.
    """
    seed_step(config, state.step, world.data_rank)
    totals = strategy.forward_backward(config, state.net, batch, world)
    norm = strategy.clip(state.net, config.clip, world)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step)
    is_taken = state.update(norm, config.skip_nonfinite)
    state.optimizer.zero_grad()
    state.step += 1
    return counted(totals, is_taken)


@torch.no_grad()
def evaluate(config: Config, strategy: Strategy, net: nn.Module, data: Data, world: World) -> Values:
    """Return the mean loss and metrics over all held-out samples. Each sample counts once.

    Every process must call this function.
    """
    net.eval()
    divergence.share_buffers(strategy.bare(net), world)
    totals = Totals()
    for filled, mask in data.evaluation(world.data_rank, world.data_size, strategy.parts(config)):
        batch = devices.copy(filled, world.device)
        with autocast(config, world.device, enabled=strategy.casts):
            output = net(batch.inputs)
        add(totals, measure(output, batch, mask=torch.from_numpy(mask).to(world.device)))
    net.train()
    return means(totals, world)


@torch.no_grad()
def answers(job: Job, strategy: Strategy, net: nn.Module, data: Data, world: World) -> Answers:
    """Return the model's losses on the first held-out samples. All processes use the same samples.

    Every process must call this function. Raises TrainerError if the processes' models differ, or if losses() doesn't
    return one number per sample.
    """
    count = largest_part(job.config, world.data_size * strategy.parts(job.config))  # as in an evaluation
    batch = devices.copy(data.heldout.first(count, job.config), world.device)

    def losses() -> list[float]:
        with autocast(job.config, world.device, enabled=strategy.casts):
            output = net(batch.inputs)  # None before the last stage of a pipeline
        if output is None:
            return []
        of_each = model.losses(output, batch)
        require_one_per_sample(output, of_each, {}, len(batch.inputs))
        return of_each[:SAMPLES].tolist()

    net.eval()
    own = repeated(losses, EXACT if precision(job.config, world.device) == torch.float32 else ROUNDED)
    net.train()
    names = [job.cluster.process(rank, world.size) for rank in range(world.size)]
    return require_same_answers(job, world.gather(own), names)
