"""Rival of the trainer: a loop with Hugging Face Accelerate, with the project's model and data."""

import os
import sys

import torch
import torch.distributed as dist
from work import Reports, work

from trainer import model
from trainer.config import learning_rate


def main(argv: list[str]) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    with work(argv, rank, world_size) as (config, example, batches):
        torch.manual_seed(0)
        net = model.build(config, example)
        optimizer = torch.optim.AdamW(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(config, step) / config.learning_rate
        )
        net, optimizer = accelerator.prepare(net, optimizer)
        reports = Reports(config, is_chief=rank == 0)
        for arrays in batches:
            batch = type(arrays)(*map(torch.from_numpy, arrays))
            optimizer.zero_grad()
            loss = model.losses(net(batch.inputs), batch).mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), config.clip)
            optimizer.step()
            schedule.step()
            reports.step(loss.item)
    if world_size != int(os.environ["WORLD_SIZE"]):
        raise SystemExit(f"Accelerate found {world_size} processes, but the job has {os.environ['WORLD_SIZE']}")
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
