"""Train a model with Accelerate."""

import argparse
import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs")))

accelerator = Accelerator()
torch.manual_seed(0)
inputs = torch.randn(4000, 8)
samples = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
loader = DataLoader(samples, args.global_batch // accelerator.num_processes, shuffle=True)
net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = optim.AdamW(net.parameters(), lr=1e-2)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
step = max((int(mark.parent.name) for mark in folder.glob("*/complete")), default=0)
if step:
    accelerator.load_state(str(folder / str(step)))

while step < args.steps:
    for rows, targets in accelerator.skip_first_batches(loader, step % len(loader)):
        loss = nn.functional.mse_loss(net(rows), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % args.log_every == 0:
            accelerator.save_state(str(folder / str(step)))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / str(step) / "complete").touch()  # all processes have written their files
                message = f"step {step}/{args.steps}  loss {loss:.4f}"
                print(json.dumps({"message": message, "step": step, "steps": args.steps}), flush=True)
        if step == args.steps:
            break
accelerator.end_training()
