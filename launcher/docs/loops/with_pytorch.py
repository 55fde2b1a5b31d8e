"""Train a model with PyTorch's DistributedDataParallel."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs")))

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1)).to(device))
optimizer = optim.AdamW(net.parameters(), lr=1e-2)
file, step = folder / "state.pt", 0
if file.exists():
    saved = torch.load(file, map_location=device)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

while step < args.steps:
    random = torch.Generator().manual_seed(1 + step * size + rank)  # each process draws its own samples
    rows = torch.randn(args.global_batch // size, 8, generator=random).to(device)
    loss = nn.functional.mse_loss(net(rows), rows.sin().sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if rank == 0 and step % args.log_every == 0:
        message = f"step {step}/{args.steps}  loss {loss:.4f}"
        print(json.dumps({"message": message, "step": step, "steps": args.steps}), flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)  # a killed job leaves a complete file
dist.destroy_process_group()
