#!/usr/bin/env bash
# Expected: F.mse_loss over evenly sharded DTensors has the gradient of the same plain tensors, as F.l1_loss has.
# Happens: The loss is right, but the gradient is too large by the number of processes. F.huber_loss does the same.
# Versions: torch 2.13.0
# Date: 2026-11-28
# Matters: With a sharded batch, the learning rate silently grows with the number of machines.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/gradients.py" <<'EOF'
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

PROCESSES = 3
LOSSES = {"l1_loss": F.l1_loss, "mse_loss": F.mse_loss, "huber_loss": F.huber_loss}


def compare(rank, folder):
    """Divide the gradients of sharded tensors by those of the plain tensors."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    values, zeros = torch.arange(1.0, 7.0), torch.zeros(6)
    ratios = {}
    for name, loss in LOSSES.items():
        plain = values.clone().requires_grad_()
        expected = loss(plain, zeros)
        expected.backward()
        sharded = distribute_tensor(values, mesh, [Shard(0)]).detach().requires_grad_()
        seen = loss(sharded, distribute_tensor(zeros, mesh, [Shard(0)]))
        seen.backward()
        torch.testing.assert_close(seen.full_tensor(), expected)
        ratio = (sharded.grad.full_tensor() / plain.grad).tolist()
        ratios[name] = sorted({round(value, 3) for value in ratio})
    if rank == 0:
        Path(folder, "ratios.json").write_text(json.dumps(ratios))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    print("torch", torch.__version__)
    mp.spawn(compare, (folder,), nprocs=PROCESSES)
    ratios = json.loads(Path(folder, "ratios.json").read_text())
    print(f"{PROCESSES} processes, gradient of sharded / of plain tensors:", ratios)
    if ratios != {"l1_loss": [1.0], "mse_loss": [PROCESSES], "huber_loss": [PROCESSES]}:
        sys.exit("Changed: the gradient of a sharded loss no longer grows with the number of processes.")
EOF
GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 timeout -k 5 300 "$folder/venv/bin/python" "$folder/gradients.py" "$folder"
