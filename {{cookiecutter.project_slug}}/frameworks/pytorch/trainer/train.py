"""The run of one process, readable top to bottom."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.api import CheckpointException

from trainer import (
    checkpoint,
    commit_marker,
    horovod,
    loss,
    meshes,
    model,
    processes,
    telemetry,
    writable,
)
from trainer.checkpoint import State
from trainer.config import Config, learning_rate
from trainer.data import Batch, Dataset, heldout_batches, train_batches
from trainer.errors import TrainerError
from trainer.meshes import Mesh
from trainer.processes import World
from trainer.storage import Storage
from trainer.strategy import DataParallel, Strategy, clip, require_compiler, require_parts
from trainer.telemetry import Telemetry

Image = tuple[int, int, int]  # height, width, channels


def mesh(config: Config, machines: int, shards: Path) -> Mesh:
    """How the processes of so many machines lie; raises TrainerError if the flags, machines or model forbid it."""
    if config.strategy == "horovod":
        horovod.check()
    if config.compile:
        require_compiler()
    with torch.device("meta"):  # shapes alone
        net: Any = new_model(config, Dataset(shards, "heldout")[0].image.shape)
    require_parts(config, net)
    blocks = len(net.blocks) if config.strategy == "pipeline" else 0
    heads = net.heads if config.strategy == "tensor" else 0
    return meshes.mesh(config, machines, meshes.processes(config, torch.cuda.device_count()), blocks, heads)


def run(config: Config, storage: Storage, shards: Path, mesh: Mesh) -> None:
    """Join the others and do our part: what `processes.launch` starts in each process."""
    with processes.join(mesh, config.collective_timeout) as world:
        if world.is_chief:
            telemetry.say(f"training on {world}, {config.strategy}: {mesh}")
        with horovod.join(world, config.collective_timeout) if config.strategy == "horovod" else nullcontext():
            train_and_export(config, storage, shards, world)


def train_and_export(config: Config, storage: Storage, shards: Path, world: World) -> None:
    """From the first step, or the last whole checkpoint, to a proven model in `storage.model`."""
    heldout = Dataset(shards, "heldout")
    torch.manual_seed(config.seed)  # so all processes begin with the same weights
    net = new_model(config, heldout[0].image.shape)
    strategy = parallelize(config, net, world)
    state = State(net, new_optimizer(config, net))
    checkpoint.restore(state, storage.checkpoints, world)
    accuracy = train(config, storage, Dataset(shards, "train"), heldout, strategy, state, world)
    if world.is_chief:
        finish(config, storage, commit_marker.numbered(storage.checkpoints, state.step), heldout, accuracy)


def finish(config: Config, storage: Storage, folder: Path, heldout: Dataset, accuracy: float) -> None:
    """Export the model from the last checkpoint: there, whatever the strategy, it is whole.

    Raises:
        TrainerError: the checkpoint is damaged.
    """
    if problem := commit_marker.damage(folder):
        raise TrainerError(f"{folder} is not exported: {problem}; run again, and it resumes from the one before")
    net = new_model(config, heldout[0].image.shape)
    checkpoint.read_model(net, folder)
    from trainer import export  # which takes half a second, and only the chief exports

    images = torch.from_numpy(heldout.batch(range(min(len(heldout), 32))).images)
    with writable.writing(storage.model):
        export.export(net, images, storage.model)
    telemetry.say(f"accuracy {accuracy:.4f}; model in {storage.model}", accuracy=accuracy)


def new_model(config: Config, image: Image) -> nn.Module:
    return model.build(config.size, image, config.patch, config.classes)


def parallelize(config: Config, net: nn.Module, world: World) -> Strategy:
    """The model over the processes of the world; `net` then keeps only this process's parameters."""
    if config.strategy == "pipeline":
        from trainer.pipeline import Pipeline  # brings PyTorch's compiler along, which takes a second

        return Pipeline(config, net, world)
    return DataParallel(config, net, world)


def new_optimizer(config: Config, net: nn.Module) -> optim.Optimizer:
    """AdamW, which leaves biases and the like undecayed."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=config.learning_rate)


def train(
    config: Config, storage: Storage, dataset: Dataset, heldout: Dataset, strategy: Strategy, state: State, world: World
) -> float:
    """Train to the last step; returns the held-out accuracy."""
    sinks = telemetry.sinks(storage.logs, config.steps, state.step, storage.trial) if world.is_chief else ()
    with Telemetry(sinks, start=state.step, global_batch=config.global_batch, device_count=world.size) as reports:
        totals = torch.zeros(3, device=world.device)
        share = {"rank": world.data_rank, "world_size": world.data_size}
        for batch in train_batches(dataset, config, start=state.step, **share):
            totals += train_step(config, strategy, state, batch, world)
            if due(config.log_every, state, config):
                rate = {"learning_rate": learning_rate(config, state.step - 1)}
                reports.report(state.step, loss.means(world.sum(totals)) | rate)
                totals.zero_()
            with reports.pause():
                if due(config.checkpoint_every, state, config):
                    save(config, storage, state, world)
                if due(config.evaluate_every, state, config) and state.step < config.steps:
                    reports.evaluation(state.step, evaluate(config, heldout, state.model, strategy, world))
        final = evaluate(config, heldout, state.model, strategy, world)
        reports.evaluation(state.step, final)
    return final["accuracy"]


def save(config: Config, storage: Storage, state: State, world: World) -> None:
    """A checkpoint of this step; raises TrainerError if it cannot be written. Every process must call it."""
    with writable.writing(storage.checkpoints):
        try:
            checkpoint.save(state, storage.checkpoints, config.keep, world)
        except CheckpointException as error:  # every process learns what happened in one of them
            cause, _ = next(iter(error.failures.values()))
            raise cause if isinstance(cause, OSError) else OSError(checkpoint.first_cause(error)) from None


def due(every: int, state: State, config: Config) -> bool:
    return state.step % every == 0 or state.step == config.steps


def train_step(config: Config, strategy: Strategy, state: State, batch: Batch, world: World) -> Tensor:
    """One optimizer step; returns this process's sums of loss, correct answers and samples, shape (3,)."""
    # For models that draw numbers, as dropout does: a resumed run draws what the unbroken one would have.
    torch.manual_seed(hash((config.seed, state.step, world.data_rank)) % 2**63)
    totals = strategy.backward(batch)
    clip(state.model, config.clip, world)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    return totals


def evaluate(config: Config, heldout: Dataset, net: nn.Module, strategy: Strategy, world: World) -> dict[str, float]:
    """Loss and accuracy over every held-out sample exactly once. Every process must call it."""
    net.eval()
    totals = torch.zeros(3, device=world.device)
    for batch in heldout_batches(heldout, config, rank=world.data_rank, world_size=world.data_size):
        totals += strategy.score(batch)
    net.train()
    return loss.means(world.sum(totals))
