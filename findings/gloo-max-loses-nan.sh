#!/usr/bin/env bash
# Expected: all_reduce with MAX returns NaN wherever one rank has NaN, as torch.maximum does.
# Happens: With gloo, NaN survives or vanishes depending on the rank that has it and on its position in the tensor.
# Versions: torch 2.13.0
# Date: 2026-11-28
# Matters: A job that looks for NaN with a MAX over all ranks misses the NaN of some ranks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/maximum.py" <<'EOF'
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def reduce(rank, folder):
    """Take the maximum of a tensor of NaN on one rank and of finite numbers on the other."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen = {}
    for bad in (0, 1):
        for size in (1, 3):
            values = torch.full((size,), float("nan") if rank == bad else rank + 1.0)
            dist.all_reduce(values, dist.ReduceOp.MAX)
            seen[f"NaN on rank {bad}, size {size}"] = str(values.tolist())
    if rank == 0:
        Path(folder, "seen.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    print("torch", torch.__version__)
    one, nan = torch.tensor(1.0), torch.tensor(torch.nan)
    print("torch.maximum of 1 and NaN:", torch.maximum(one, nan).item(), torch.maximum(nan, one).item())
    mp.spawn(reduce, (folder,), nprocs=2)
    seen = json.loads(Path(folder, "seen.json").read_text())
    for case, values in seen.items():
        print(f"all_reduce, {case}: {values}")
    if list(seen.values()) != ["[nan]", "[nan, nan, 2.0]", "[1.0]", "[1.0, 1.0, nan]"]:
        sys.exit("Changed: all_reduce with MAX over gloo treats NaN in another way.")
EOF
GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 timeout -k 5 300 "$folder/venv/bin/python" "$folder/maximum.py" "$folder"
