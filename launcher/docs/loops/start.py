"""Run a training script with torchrun on each machine: python start.py SCRIPT ARGS.

If a peer was lost, this script exits with code 75. Otherwise, this script exits with the training script's exit code.
"""

import os
import re
import runpy
import sys
import traceback

import torch
import torch.distributed as dist
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

LOST = re.compile("/gloo/|Gloo connectFullMesh failed|ncclRemoteError|key-value store")


def run_script(argv: list[str]) -> None:
    """Run the training script in a process that torchrun started."""
    sys.argv, sys.path[0] = argv, os.path.dirname(os.path.abspath(argv[0]))
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except Exception as error:
        lost = isinstance(error, dist.DistNetworkError | dist.DistStoreError) or LOST.search(str(error))
        print(f"a peer was lost: {error}" if lost else traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(75 if lost else 1)  # sys.exit can wait for the lost peer


def start(argv: list[str]) -> None:
    """Run torchrun with one process for each GPU. If the machine doesn't have a GPU, use one process."""
    gpus = torch.cuda.device_count()
    if not gpus:  # otherwise, each process of Accelerate or the transformers Trainer would train alone
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    options = [f"--nnodes={os.environ['WORLD_SIZE']}", f"--node-rank={os.environ['RANK']}"]
    options += [f"--master-addr={os.environ['MASTER_ADDR']}", f"--master-port={os.environ['MASTER_PORT']}"]
    try:
        run.main([*options, f"--nproc-per-node={max(gpus, 1)}", __file__, *argv])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        sys.exit(code if code > 0 else 128 - code)
    except SignalException as error:  # the service stops this machine
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    (run_script if "TORCHELASTIC_RUN_ID" in os.environ else start)(sys.argv[1:])
