"""Train a model with Ray Train."""

import argparse
import os
import tempfile
from typing import Any

import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn, optim

flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
flags.add_argument("--steps", type=int, default=2000)
flags.add_argument("--log-every", type=int, default=200)
args = flags.parse_args()
folder = os.environ["AIP_CHECKPOINT_DIR"].replace("gs:/", os.environ.get("GCS_MOUNT", "/gcs"))


def work(config: dict[str, Any]) -> None:
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    torch.manual_seed(0)
    net = prepare_model(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1)))
    optimizer, step = optim.AdamW(net.parameters(), lr=1e-2), 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as place:
            saved = torch.load(f"{place}/state.pt", map_location="cpu")
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < config["steps"]:
        random = torch.Generator().manual_seed(1 + step * size + rank)  # each process draws its own samples
        rows = torch.randn(config["global_batch"] // size, 8, generator=random).to(next(net.parameters()).device)
        loss = nn.functional.mse_loss(net(rows), rows.sin().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % config["log_every"] == 0:
            with tempfile.TemporaryDirectory() as place:
                if rank == 0:
                    print(f"step {step}/{config['steps']}  loss {loss:.4f}", flush=True)
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, f"{place}/state.pt")
                train.report({"loss": loss.item()}, checkpoint=train.Checkpoint(place) if rank == 0 else None)


machines, gpus = int(os.environ["WORLD_SIZE"]), torch.cuda.device_count()
scaling = train.ScalingConfig(
    num_workers=machines * max(gpus, 1), use_gpu=gpus > 0, placement_strategy="PACK" if gpus else "STRICT_SPREAD"
)
storage = train.RunConfig(name="run", storage_path=folder)  # fit() resumes from what is there
TorchTrainer(work, train_loop_config=vars(args), scaling_config=scaling, run_config=storage).fit()
