"""The run of one process, readable top to bottom. What happens in a step stands in `train_step` and `backward`."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn, optim

from trainer import checkpoint, commit_marker, model, per_sample, processes, profiling, strategies, telemetry
from trainer.checkpoint import State
from trainer.config import Config, learning_rate
from trainer.data import Batch
from trainer.goodput import (
    CHECKPOINTS,
    DATA,
    EVALUATION,
    EXPORT,
    FIRST_STEP,
    LAST_CHECKPOINT,
    REPORTS,
    TRAINING,
    Stopwatch,
)
from trainer.meshes import Mesh
from trainer.parallel import Scheduled, clip_gradients, communication, parallelize, sync_gradients
from trainer.precision import autocast, precision
from trainer.processes import Totals, World, add
from trainer.shards import Dataset, heldout_batches, micro_batches, per_step, train_batches
from trainer.storage import Storage
from trainer.telemetry import Telemetry
from trainer.utilization import peak_flops


def run(config: Config, mesh: Mesh, storage: Storage, shards: Path, reducer_count: int, watch: Stopwatch) -> None:
    """Join the others, train, export: what `processes.launch` starts in each process."""
    with processes.join(mesh, config.collective_timeout, reducer_count) as world:
        if world.is_chief:
            telemetry.say(f"training on {world}, {config.strategy}: {mesh}")
        with strategies.load(config.strategy).join(world, config.collective_timeout):
            train_and_export(config, storage, shards, world, watch)


def train_and_export(config: Config, storage: Storage, shards: Path, world: World, watch: Stopwatch) -> None:
    """From the first step, or the last whole checkpoint, to a proven model in `storage.model`."""
    dataset, heldout = Dataset(shards, "train"), Dataset(shards, "heldout")
    state = start(config, heldout.batch([0], config), world)
    checkpoint.restore(state, storage.checkpoints, world)
    commit_marker.require_within(config.steps, state.step)
    final = train(config, storage, state, dataset, heldout, world, watch)
    if world.is_chief:
        from trainer import export  # which takes half a second, and only the chief exports

        export.finish(config, storage, heldout, final)
        watch.lap(EXPORT)
        telemetry.say_goodput(watch)


def start(config: Config, example: Batch, world: World) -> State:
    """The state before the first step."""
    torch.manual_seed(config.seed)  # so all processes begin with the same weights
    net = parallelize(config, model.build(config, example), world)
    return State(net, new_optimizer(config, net))


def new_optimizer(config: Config, net: nn.Module) -> optim.Optimizer:
    """AdamW, which leaves biases and the like undecayed."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    # In one kernel: parameters that FSDP has cut would otherwise be taken one by one. That of a CPU rounds the last
    # numbers of a parameter otherwise, so a model would depend on where it is cut.
    fused = all(p.is_cuda for p in net.parameters())
    return optim.AdamW(groups, lr=config.learning_rate, fused=fused)


def train(
    config: Config, storage: Storage, state: State, dataset: Dataset, heldout: Dataset, world: World, watch: Stopwatch
) -> dict[str, float]:
    """Train to the last step; returns the held-out loss and metrics."""
    with reporting(config, storage, state.step, heldout, world, watch) as reports:
        with (
            checkpoint.Saver(storage.checkpoints, config.keep, world, config.collective_timeout) as checkpoints,
            profiling.trace(config.profile if world.is_chief else None, storage.logs / "profile", state.step) as traced,
        ):
            totals, use, first = dict[str, Tensor](), dict[str, float](), state.step + 1
            share = {"rank": world.data_rank, "world_size": world.data_size}
            for batch in watched(train_batches(dataset, config, start=state.step, **share), world, watch):
                add(totals, train_step(config, state, batch, world))
                if state.step == first:  # the gradients have been all-reduced
                    use = world.settle_reducers(required=config.require_reducers)
                watch.lap(FIRST_STEP if state.step == first else TRAINING)
                # A report comes first: a loss that is no number must not become a checkpoint.
                if due(state.step, config, config.log_every, config.checkpoint_every, config.evaluate_every):
                    rate = {"learning_rate": learning_rate(config, state.step - 1)}
                    also = rate | use | world.memory | communication(state.model)
                    reports.report(state.step, world.means(totals) | also)
                    totals = {}
                if due(state.step, config, config.checkpoint_every):
                    checkpoints.save(state)
                    watch.lap(CHECKPOINTS)
                if due(state.step, config, config.evaluate_every) and state.step < config.steps:
                    reports.evaluation(state.step, evaluate(config, state.model, heldout, world))
                checkpoints.check()
                traced()
                watch.lap(REPORTS)
            final = evaluate(config, state.model, heldout, world)
            watch.lap(EVALUATION)
        watch.lap(LAST_CHECKPOINT)
        reports.evaluation(state.step, final)
    return final


def watched(batches: Iterator[Batch], world: World, watch: Stopwatch) -> Iterator[Batch]:
    """The batches; the watch is told how long the device waited for each: a GPU that still works waits for nothing."""
    idle = world.mark()
    for batch in batches:
        watch.lap(TRAINING, but=idle())
        watch.lap(DATA)
        yield batch
        idle = world.mark()


def reporting(
    config: Config, storage: Storage, start: int, heldout: Dataset, world: World, watch: Stopwatch
) -> Telemetry:
    """The reports of the steps after `start`; only the chief's are written."""
    of_run = partial(Telemetry, start=start, per_step=per_step(config), device_count=world.size, watch=watch)
    if not world.is_chief:
        return of_run(())
    flops, computes_in = 0.0, str(precision(config, world.device)).removeprefix("torch.")
    if peak := peak_flops(world.device_name, computes_in):
        from trainer import estimate  # which takes a second, and few devices have a known peak

        sample = heldout.batch([0], config)
        flops = estimate.flops_per_sample(config, sample) * config.global_batch / (world.size * peak)
    furthest = telemetry.furthest(storage.logs)  # before there are curves of this start
    sinks = telemetry.sinks(storage.logs, config.steps, start, storage.trial)
    return of_run(sinks, furthest=furthest, flops=flops)


def due(step: int, config: Config, *regular: int) -> bool:
    """Whether this is the last step, or one of those that come every so many steps."""
    return step == config.steps or any(step % every == 0 for every in regular)


def train_step(config: Config, state: State, batch: Batch, world: World) -> Totals:
    """One optimizer step on this process's share of the global batch; returns what it has measured."""
    torch.manual_seed(seed(config, state.step, world.data_rank))
    totals = backward(config, state, on_device(batch, world), world)
    clip_gradients(state.model, config.clip, world)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    return totals


def backward(config: Config, state: State, batch: Batch, world: World) -> Totals:
    """Forward and backward pass: adds the gradient of the mean loss over the global batch."""
    if isinstance(state.model, Scheduled):  # a pipeline takes its micro-batches through both passes by its schedule
        with autocast(config, state.model, world.device):
            return measure(state.model.forward_backward(batch), batch)
    totals: Totals = {}
    parts = micro_batches(batch, config.micro_batches)
    for part in parts:
        # Gradients are averaged over the processes once, in the last backward pass; FSDP's in each.
        with sync_gradients(state.model, last=part is parts[-1]):
            with autocast(config, state.model, world.device):
                output = state.model(part.inputs)
            losses = model.losses(output, part)
            # Every sample counts the same, although shares may differ by one: no mean over this share.
            (losses.sum() * world.data_size / config.global_batch).backward()
        add(totals, measure(output, part, losses))
    return totals


def seed(config: Config, step: int, rank: int) -> int:
    """For models that draw numbers, as dropout does: a resumed run draws what the unbroken one would have."""
    return int(np.random.SeedSequence((config.seed, step, rank)).generate_state(1, np.uint64)[0])


def on_device(batch: Batch, world: World) -> Batch:
    tensors = Batch(*(torch.from_numpy(array) for array in batch))
    if world.device.type == "cpu":
        return tensors
    # From pinned memory, in a stream of its own, a batch is copied while the GPU computes the one before.
    copies, computes = copy_stream(world.device), torch.cuda.current_stream(world.device)
    with torch.cuda.stream(copies):
        there = Batch(*(tensor.pin_memory().to(world.device, non_blocking=True) for tensor in tensors))
    computes.wait_stream(copies)
    for tensor in there:
        tensor.record_stream(computes)  # its memory is not given to a later copy while it is read
    return there


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@torch.no_grad()
def measure(output: Tensor | None, batch: Batch, losses: Tensor | None = None, mask: Tensor | float = 1) -> Totals:
    """Sums over the samples whose mask is 1. Empty without an output, as in a pipeline before its last stage."""
    if output is None:
        return {}
    losses = model.losses(output, batch) if losses is None else losses
    per_sample.require(output, losses, metrics := model.metrics(output, batch), len(batch.inputs))
    of_each = {"loss": losses, **metrics, "samples": torch.ones_like(losses)}
    return {name: (values * mask).sum() for name, values in of_each.items()}


@torch.no_grad()
def evaluate(config: Config, net: nn.Module, heldout: Dataset, world: World) -> dict[str, float]:
    """Loss and metrics over every held-out sample exactly once. Every process must call it."""
    net.eval()
    totals: Totals = {}
    # A pipeline divides a batch by itself.
    share = {"rank": world.data_rank, "world_size": world.data_size}
    parts = 1 if isinstance(net, Scheduled) else config.micro_batches
    for batch, mask in heldout_batches(heldout, config, **share, micro_batches=parts):
        ours = on_device(batch, world)
        with autocast(config, net, world.device):
            output = net(ours.inputs)
        add(totals, measure(output, ours, mask=torch.from_numpy(mask).to(world.device)))
    net.train()
    return world.means(totals)
