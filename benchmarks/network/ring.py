"""Run a worker of a ring inside a host: torch.distributed's all-reduce with gloo.

python ring.py RANK WORKERS LENGTH REPETITIONS ADDRESS_OF_RANK_0
"""

import sys

import torch
import torch.distributed as dist
from worker import Vector, work

PORT = 29500


def add(mine: Vector) -> None:
    dist.all_reduce(torch.from_numpy(mine))  # the tensor shares the array's memory


if __name__ == "__main__":
    rank, workers, length, repetitions = map(int, sys.argv[1:5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{sys.argv[5]}:{PORT}", rank=rank, world_size=workers)
    work(add, rank, workers, length, repetitions)
    dist.destroy_process_group()
