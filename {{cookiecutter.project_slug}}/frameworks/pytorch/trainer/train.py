"""The run of one process, readable top to bottom."""

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from trainer import checkpoint, export, model, strategy, telemetry
from trainer.checkpoint import State
from trainer.config import Config, learning_rate
from trainer.data import NO_LABEL, Batch, Dataset, heldout_batches, micro_batches, train_batches
from trainer.storage import Storage
from trainer.strategy import World
from trainer.telemetry import Telemetry


def run(config: Config, storage: Storage, shards: Path) -> None:
    """Join the others and do our part: what `strategy.launch` starts in each process."""
    with strategy.join(config.collective_timeout) as world:
        train_and_export(config, storage, shards, world)


def train_and_export(config: Config, storage: Storage, shards: Path, world: World) -> None:
    """From the first step, or the last whole checkpoint, to a proven model in `storage.model`."""
    if world.is_chief:
        telemetry.say(f"training on {world}")
    heldout = Dataset(shards, "heldout")
    state = start(config, heldout[0].image.shape, world)
    checkpoint.restore(state, storage.checkpoints, world)
    accuracy = train(config, storage, Dataset(shards, "train"), heldout, state, world)
    if world.is_chief:
        images = torch.from_numpy(heldout.batch(range(min(len(heldout), 32))).images)
        export.export(state.model.module, images, storage.model)
        telemetry.say(f"accuracy {accuracy:.4f}; model in {storage.model}", accuracy=accuracy)


def start(config: Config, image: tuple[int, int, int], world: World) -> State:
    """The state before the first step: the same on every process."""
    torch.manual_seed(config.seed)
    net = strategy.wrap(new_model(config, image), world)
    return State(net, new_optimizer(config, net))


def new_model(config: Config, image: tuple[int, int, int]) -> nn.Module:
    return model.build(config.size, image, config.patch, config.classes)


def new_optimizer(config: Config, net: nn.Module) -> optim.Optimizer:
    """AdamW, which leaves biases and the like undecayed."""
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=config.learning_rate)


def train(config: Config, storage: Storage, dataset: Dataset, heldout: Dataset, state: State, world: World) -> float:
    """Train to the last step; returns the held-out accuracy."""
    sinks = telemetry.sinks(storage.logs, config.steps, state.step, storage.trial) if world.is_chief else ()
    with Telemetry(sinks, start=state.step, global_batch=config.global_batch, device_count=world.size) as reports:
        totals = torch.zeros(3, device=world.device)
        batches = train_batches(dataset, config, start=state.step, rank=world.rank, world_size=world.size)
        for batch in batches:
            totals += train_step(config, state, batch, world)
            if due(config.log_every, state, config):
                rate = {"learning_rate": learning_rate(config, state.step - 1)}
                reports.report(state.step, means(world.sum(totals)) | rate)
                totals.zero_()
            with reports.pause():
                if due(config.checkpoint_every, state, config):
                    checkpoint.save(state, storage.checkpoints, config.keep, world)
                if due(config.evaluate_every, state, config) and state.step < config.steps:
                    reports.evaluation(state.step, evaluate(config, heldout, state.model.module, world))
        final = evaluate(config, heldout, state.model.module, world)
        reports.evaluation(state.step, final)
    return final["accuracy"]


def due(every: int, state: State, config: Config) -> bool:
    return state.step % every == 0 or state.step == config.steps


def train_step(config: Config, state: State, batch: Batch, world: World) -> Tensor:
    """One optimizer step; returns this process's summed loss, correct answers and samples, shape (3,)."""
    # For models that draw numbers, as dropout does: a resumed run draws what the unbroken one would have.
    torch.manual_seed(hash((config.seed, state.step, world.rank)) % 2**63)
    totals = torch.zeros(3, device=world.device)
    parts = micro_batches(batch, config.micro_batches)
    for i, part in enumerate(parts):
        # Gradients are averaged over the world once, with the last part.
        with nullcontext() if i == len(parts) - 1 else state.model.no_sync():
            loss, counts = score(state.model, part, world)
            # DDP divides by the world size; parts may differ by a sample, so the mean is taken here.
            (loss * world.size / config.global_batch).backward()
            totals += counts
    nn.utils.clip_grad_norm_(state.model.parameters(), config.clip)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    return totals


def score(net: nn.Module, batch: Batch, world: World) -> tuple[Tensor, Tensor]:
    """The summed loss, and the detached sums of loss, correct answers and samples, shape (3,)."""
    images = torch.from_numpy(batch.images).to(world.device, non_blocking=True)
    labels = torch.from_numpy(batch.labels).to(world.device, non_blocking=True)
    with torch.autocast(world.device.type, strategy.PRECISION, enabled=world.has_bfloat16):
        logits = net(images)
    loss = cross_entropy(logits.float(), labels, reduction="sum", ignore_index=NO_LABEL)
    correct = (logits.argmax(dim=1) == labels).sum()
    return loss, torch.stack((loss.detach(), correct, (labels != NO_LABEL).sum()))


@torch.no_grad()
def evaluate(config: Config, heldout: Dataset, net: nn.Module, world: World) -> dict[str, float]:
    """Loss and accuracy over every held-out sample exactly once. Every process must call it."""
    net.eval()
    totals = torch.zeros(3, device=world.device)
    for batch in heldout_batches(heldout, config, rank=world.rank, world_size=world.size):
        totals += score(net, batch, world)[1]
    net.train()
    return means(world.sum(totals))


def means(totals: Tensor) -> dict[str, float]:
    loss, correct, samples = totals.tolist()
    return {"loss": loss / samples, "accuracy": correct / samples}
