#!/usr/bin/env bash
# Expected: If two ranks save tensors under the same keys, each rank loads its own values, or all load those of rank 0.
# Happens: Both ranks load a mixture: some keys come from rank 0, others from rank 1. No error or warning appears.
# Versions: torch 2.13.0
# Date: 2026-11-28
# Matters: Random states, counters and running means that differ by rank form a state that no process ever had.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/checkpoint.py" <<'EOF'
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp


def save_and_load(rank, folder):
    """Save values that equal the rank, load them, and note which rank each one came from."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    sizes = {"loss": 1, "random": 8, "tokens": 1}
    dcp.save({key: torch.full((size,), rank) for key, size in sizes.items()}, checkpoint_id=f"{folder}/step-1")
    state = {key: torch.full((size,), -1) for key, size in sizes.items()}
    dcp.load(state, checkpoint_id=f"{folder}/step-1")
    Path(folder, f"{rank}.json").write_text(json.dumps({key: value.unique().tolist() for key, value in state.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    print("torch", torch.__version__)
    mp.spawn(save_and_load, (folder,), nprocs=2)
    for rank in (0, 1):
        origins = json.loads(Path(folder, f"{rank}.json").read_text())
        print(f"rank {rank} loads the values of rank:", origins)
        if origins != {"loss": [0], "random": [1], "tokens": [0]}:
            sys.exit("Changed: dcp.save no longer spreads plain tensors of equal keys over the ranks.")
EOF
GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 timeout -k 5 300 "$folder/venv/bin/python" "$folder/checkpoint.py" "$folder"
