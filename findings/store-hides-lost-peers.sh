#!/usr/bin/env bash
# Expected: If a process dies during init_process_group, the others notice it, because its store connection is closed.
# Happens: They wait for the whole timeout, with gloo 30 minutes by default. Closing the store ends the wait at once.
# Versions: torch 2.13.0
# Date: 2026-11-29
# Matters: Two machines that are lost one after the other stall a job that regroups. Close the store after each loss.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6
timeout -k 5 60 "$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__.partition("+")[0])'

cat >"$folder/joins.py" <<'EOF2'
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

rank, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False)
store.add("connected", 1)
if rank == 2:
    os._exit(1)
began = time.monotonic()
try:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=20))
except Exception as error:
    waited = time.monotonic() - began
    print("all 20 s" if waited >= 19 else "until the store closed", type(error).__name__)
EOF2

cat >"$folder/hosts.py" <<'EOF2'
import subprocess
import sys
import time

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
joining = [sys.executable, sys.argv[1]]
processes = [subprocess.Popen([*joining, str(rank), str(store.port)], stderr=subprocess.DEVNULL) for rank in range(3)]
while store.add("connected", 0) < 3:
    time.sleep(0.1)
processes[2].wait()
if sys.argv[2] == "closes":
    time.sleep(3)
    del store
for process in processes:
    process.wait()
EOF2

for host in keeps closes; do
  timeout -k 5 180 "$folder/venv/bin/python" "$folder/hosts.py" "$folder/joins.py" "$host" | sort >"$folder/$host"
  echo "The host $host its store; the two others wait: $(tr '\n' ',' <"$folder/$host")"
done
if [[ $(grep -c "all 20 s" "$folder/keeps") != 2 || $(grep -c "until the store closed" "$folder/closes") != 2 ]]; then
  echo "Changed: a process that dies during init_process_group is noticed, or a closed store isn't."
  exit 1
fi
