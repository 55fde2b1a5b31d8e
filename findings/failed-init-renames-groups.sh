#!/usr/bin/env bash
# Expected: After init_process_group has failed, a second call with a new store works like the first call of a process.
# Happens: Failed calls count in the group's name. The peers that never failed use other keys, and all time out.
# Versions: torch 2.13.0
# Date: 2026-11-29
# Matters: A job that forms a new group without a lost peer hangs if only some processes had already begun the old group.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6
timeout -k 5 60 "$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__.partition("+")[0])'

cat >"$folder/pair.py" <<'EOF2'
import multiprocessing
import re
import sys
from datetime import timedelta

import torch.distributed as dist


def create(port, rank, seconds):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=seconds))


def join(rank, fails_before, ports, results):
    if fails_before:
        try:
            create(ports[0], rank, 2)
        except RuntimeError:
            pass
    try:
        create(ports[1], rank, 15)
        results.put((rank, "joined"))
    except RuntimeError as error:
        results.put((rank, "waited in vain for " + re.search(r"keys: (\S+?)[\\n,]?$", str(error))[1]))


if __name__ == "__main__":
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    ports, spawn = [store.port for store in stores], multiprocessing.get_context("spawn")
    results = spawn.Queue()
    for rank in range(2):
        spawn.Process(target=join, args=(rank, rank == 0 and sys.argv[1] == "fails", ports, results)).start()
    for rank, result in sorted(results.get(timeout=120) for _ in range(2)):
        print(f"  process {rank}: {result}")
EOF2

for first in works fails; do
  echo "If the first call of process 0 $first:"
  timeout -k 5 180 "$folder/venv/bin/python" "$folder/pair.py" "$first" 2>"$folder/errors" | tee "$folder/$first"
done
if [[ $(grep -c "joined" "$folder/works") != 2 || $(grep -c "in vain for /" "$folder/fails") != 2 ]]; then
  echo "Changed: a process whose first call failed can join at its second call."
  exit 1
fi
