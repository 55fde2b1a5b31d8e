"""The rival: a DDP loop as one writes it by hand, on the project's own model and data.

Started as a replica's command with the number of steps and the global batch size; prints what the trainer prints.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trainer import model, shards
from trainer.config import Config, learning_rate

EVERY = 50


def main(steps: int, batch_size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # One process a replica, so the node-level variables of Vertex happen to be right here.
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = Config(steps=steps, global_batch=batch_size)
    with tempfile.TemporaryDirectory() as folder:
        shards.write_example("digits", Path(folder))
        dataset = shards.Dataset(Path(folder), "train")
        batches = shards.train_batches(dataset, config, start=0, rank=rank, world_size=world)
        torch.manual_seed(0)
        net = DistributedDataParallel(model.build(config, dataset.batch([0], config)))
        optimizer = torch.optim.AdamW(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        since = time.perf_counter()
        for step, batch in enumerate(batches, 1):
            optimizer.zero_grad()
            loss = cross_entropy(net(torch.from_numpy(batch.inputs)), torch.from_numpy(batch.labels))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step - 1)
            optimizer.step()
            if step % EVERY == 0 and rank == 0:
                print(json.dumps({"train/step_seconds": (time.perf_counter() - since) / EVERY, "loss": loss.item()}))
                since = time.perf_counter()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
