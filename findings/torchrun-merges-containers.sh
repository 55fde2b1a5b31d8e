#!/usr/bin/env bash
# Expected: Two torchrun agents in two containers of one machine, with the host's network, are two nodes.
# Happens: Their hostname and PID are the same, so rendezvous takes them for one node, and it times out without a reason.
# Versions: torch 2.13.0
# Date: 2026-11-29
# Matters: With --network=host or hostNetwork, torchrun is PID 1 in each container. Give each agent its own --local-addr.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6
timeout -k 5 60 "$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__.partition("+")[0])'

cat >"$folder/train.py" <<'EOF2'
import torch.distributed as dist

dist.init_process_group("gloo")
print(f"trains as {dist.get_rank()} of {dist.get_world_size()}")
dist.destroy_process_group()
EOF2

# A PID namespace of its own, in which the agent is PID 1, and the hostname of the machine.
agent() {
  timeout -k 5 120 unshare --user --map-root-user --pid --fork "$folder/venv/bin/torchrun" --nnodes=2 --nproc-per-node=1 \
    --rdzv-backend=c10d --rdzv-id=finding --rdzv-endpoint="127.0.0.1:$port" --rdzv-conf=join_timeout=15 "$@" \
    "$folder/train.py" 2>&1 | grep -oE "^trains as . of .|Rendezvous[A-Za-z]+Error" | sort -u || true
}

both() {
  port=$(timeout -k 5 60 python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
  agent ${1:+"--local-addr=$1"} >"$folder/first" &
  agent ${2:+"--local-addr=$2"} >"$folder/second"
  wait
  sort "$folder/first" "$folder/second" | tr '\n' ' '
}

alike=$(both "" "")
apart=$(both 127.0.0.1 127.0.0.2)
echo "the machine's hostname for both: $alike"
echo "an address for each: $apart"
if [[ $alike = *trains* || $alike != *RendezvousTimeoutError* || $apart != "trains as 0 of 2 trains as 1 of 2 " ]]; then
  echo "Changed: agents with the same hostname and PID are two nodes."
  exit 1
fi
