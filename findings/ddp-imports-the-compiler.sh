#!/usr/bin/env bash
# Expected: A model that is trained eagerly never imports torch.compile's machinery, which PyTorch loads lazily.
# Happens: The constructor of DistributedDataParallel imports torch._dynamo, and with it sympy and DTensor.
# Versions: torch 2.13.0
# Date: 2026-11-29
# Matters: Late imports of these modules elsewhere don't make the first step of a DDP run any earlier.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/imports.py" <<'EOF'
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LATE = ("torch._dynamo", "torch.distributed.tensor", "sympy")


def loaded(moment):
    names = [name for name in LATE if name in sys.modules]
    print(f"{moment}: {len(sys.modules)} modules, of these {names}")
    return names


print("torch", torch.__version__.partition("+")[0])
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
    before = loaded("imported, group joined")
    began = time.process_time()
    DistributedDataParallel(torch.nn.Linear(2, 2))
    print(f"the constructor took {time.process_time() - began:.1f} s of a core")
    after = loaded("model wrapped")
    dist.destroy_process_group()
if (before, after) != ([], [*LATE]):
    sys.exit("Changed: wrapping a model imports other modules.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" "$folder/imports.py"
