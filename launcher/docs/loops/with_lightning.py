"""Train a model with Lightning's Trainer."""

import argparse
import json
import os

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs"))


class Waves(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        step = self.global_step + 1
        if step % args.log_every == 0:
            message = f"step {step}/{args.steps}  loss {loss:.4f}"
            self.print(json.dumps({"message": message, "step": step, "steps": args.steps}), flush=True)
        return loss

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.AdamW(self.parameters(), lr=1e-2)


trainer = Trainer(
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=args.steps,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=args.log_every, save_last=True)],
    logger=False,
    enable_progress_bar=False,
)
torch.manual_seed(0)
inputs = torch.randn(4000, 8)
samples = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
loader = DataLoader(samples, args.global_batch // trainer.world_size, shuffle=True)
trainer.fit(Waves(), loader, ckpt_path="last")
