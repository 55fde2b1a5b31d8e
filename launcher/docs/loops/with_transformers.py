"""Train a model with the transformers Trainer."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs")))


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.net(rows).squeeze(1), labels)}


class Report(TrainerCallback):
    """A callback that prints each step, because the Trainer's own output doesn't contain the step."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and "loss" in kwargs["logs"]:
            message = f"step {state.global_step}/{state.max_steps}  loss {kwargs['logs']['loss']:.4f}"
            print(json.dumps({"message": message, "step": state.global_step, "steps": state.max_steps}), flush=True)


torch.manual_seed(0)
samples = [{"rows": row, "labels": row.sin().sum()} for row in torch.randn(4000, 8)]
settings = TrainingArguments(
    str(folder),
    max_steps=args.steps,
    logging_steps=args.log_every,
    save_steps=args.log_every,
    per_device_train_batch_size=args.global_batch // int(os.environ["WORLD_SIZE"]),
    learning_rate=1e-2,
    log_on_each_node=False,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(Waves(), settings, train_dataset=samples, callbacks=[Report()])
# get_last_checkpoint() would also return a folder that a killed job left incomplete; this file is written last.
steps = [int(file.parent.name.split("-")[1]) for file in folder.glob("checkpoint-*/trainer_state.json")]
trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{max(steps)}") if steps else None)
