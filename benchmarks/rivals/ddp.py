"""Rival of the trainer: a handwritten DDP loop with the project's model and data."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from work import Reports, work

from trainer import model
from trainer.config import learning_rate


def main(argv: list[str]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Each replica has one process, so Vertex AI's variables, which count machines, are correct.
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with work(argv, rank, world_size) as (config, example, batches):
        torch.manual_seed(0)
        net = DistributedDataParallel(model.build(config, example))
        optimizer = torch.optim.AdamW(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        reports = Reports(config, is_chief=rank == 0)
        for step, arrays in enumerate(batches):
            batch = type(arrays)(*map(torch.from_numpy, arrays))
            optimizer.zero_grad()
            loss = model.losses(net(batch.inputs), batch).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step)
            optimizer.step()
            reports.step(loss.item)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
