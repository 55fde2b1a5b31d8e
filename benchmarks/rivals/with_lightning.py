"""Rival of the trainer: a Lightning module and trainer, with the project's model and data."""

import logging
import os
import sys
import warnings
from typing import Any

import lightning
import torch
from torch import Tensor
from work import Reports, work

from trainer import model
from trainer.config import Config, learning_rate


class Module(lightning.LightningModule):
    def __init__(self, config: Config, example: Any) -> None:
        super().__init__()
        self.config, self.net = config, model.build(config, example)

    def training_step(self, arrays: Any, index: int) -> Tensor:
        batch = type(arrays)(*map(torch.from_numpy, arrays))
        return model.losses(self.net(batch.inputs), batch).mean()

    def configure_optimizers(self) -> Any:
        config = self.config
        optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(config, step) / config.learning_rate
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Timer(lightning.Callback):
    def __init__(self, reports: Reports) -> None:
        self.reports = reports

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.reports.step(outputs["loss"].item)


def main(argv: list[str]) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": "0", "NODE_RANK": str(rank)}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with work(argv, rank, world_size) as (config, example, batches):
        torch.manual_seed(0)
        trainer = lightning.Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=1,
            num_nodes=world_size,
            max_steps=config.steps,
            gradient_clip_val=config.clip,
            callbacks=[Timer(Reports(config, is_chief=rank == 0))],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.fit(Module(config, example), train_dataloaders=batches)
        if trainer.world_size != world_size:
            raise SystemExit(f"Lightning found {trainer.world_size} processes, but the job has {world_size}")
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
