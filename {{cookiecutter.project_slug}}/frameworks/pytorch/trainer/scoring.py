"""Scores one checkpoint: what an evaluator does, in one process and on one device, without a process group."""

from pathlib import Path

import torch

from trainer import checkpoint, loss, train
from trainer.config import Config
from trainer.data import Dataset, heldout_batches
from trainer.evaluator import Metrics, Score


def scorer(config: Config, shards: Path) -> Score:
    """Checkpoint -> loss and accuracy over the held-out samples, on a GPU if there is one.

    Raises:
        TrainerError: there is no held-out shard, or, when called, the checkpoint is of another model.
    """
    heldout = Dataset(shards, "heldout")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = train.new_model(config, heldout[0].image.shape).to(device).eval()

    @torch.no_grad()
    def score(folder: Path) -> Metrics:
        checkpoint.read_model(net, folder)
        totals = torch.zeros(3, device=device)
        for batch in heldout_batches(heldout, config, rank=0, world_size=1):
            images, labels = loss.tensors(batch, device)
            with loss.autocast(config, device):
                logits = net(images)
            totals += loss.totals(loss.summed(logits, labels), logits, labels)
        return loss.means(totals)

    return score
