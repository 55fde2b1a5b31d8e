#!/usr/bin/env bash
# Expected: Aborting a process group from another thread ends a collective that waits for a peer, as NCCL's abort does.
# Happens: With gloo, abort() returns at once, and the collective waits until its own timeout.
# Versions: torch 2.13.0
# Date: 2026-11-29
# Matters: A training process on CPUs can't leave a collective when it learns that a peer hangs; only the timeout helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/abort.py" <<'EOF'
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT, ABORT_AFTER = 8, 2  # seconds


def work(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT))
    dist.barrier()
    if rank == 1:
        time.sleep(TIMEOUT + 4)  # a peer that is alive but doesn't take part
        return
    began = time.monotonic()

    def abort():
        dist.distributed_c10d._get_default_group().abort()
        print(f"abort() returned after {time.monotonic() - began:.1f} s")

    timer = threading.Timer(ABORT_AFTER, abort)
    timer.start()
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        print(f"the all-reduce failed: {str(error).partition('] ')[2][:60]}")
    waited = time.monotonic() - began
    timer.join()
    print(f"the all-reduce ended after {waited:.1f} s; its timeout is {TIMEOUT} s")
    sys.exit(0 if waited >= TIMEOUT - 1 else "Changed: abort() ends the collective.")


if __name__ == "__main__":
    print("torch", torch.__version__.partition("+")[0])
    mp.spawn(work, (sys.argv[1],), nprocs=2)
EOF
timeout -k 5 300 "$folder/venv/bin/python" "$folder/abort.py" "$folder/store"
