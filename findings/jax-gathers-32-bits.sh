#!/usr/bin/env bash
# Expected: multihost_utils takes and returns NumPy values, so it keeps their type and value on the way between hosts.
# Happens: One process keeps all 64 bits. Two processes keep 32, silently: 5,000,000,000 becomes 705,032,704.
# Versions: jax 0.10.2, numpy 2.4.6
# Date: 2026-11-28
# Matters: Token counts, seeds and timestamps are right on one host and wrong on several. assert_equal misses it, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile jax==0.10.2 numpy==2.4.6

cat >"$folder/gather.py" <<'EOF'
import json
import sys
from pathlib import Path

import jax
import numpy as np

folder, port, processes, index = sys.argv[1], *map(int, sys.argv[2:])
jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)
from jax.experimental import multihost_utils  # noqa: E402 - after initialize

tokens = multihost_utils.broadcast_one_to_all(np.int64(5_000_000_000))
seconds = multihost_utils.process_allgather(np.float64(1_795_838_607.25 + index))
try:
    multihost_utils.assert_equal(np.int64(7 + index * 2**32))
    verdict = "equal"
except AssertionError:
    verdict = "not equal"
if index == 0:
    seen = {"tokens": int(tokens), "seconds": np.ravel(seconds).tolist(), "7 and 4294967303": verdict}
    Path(folder, f"{processes}.json").write_text(json.dumps(seen))
EOF
cat >"$folder/judge.py" <<'EOF'
import json
import sys
from importlib.metadata import version
from pathlib import Path

print("jax", version("jax"))
one, two = (json.loads(Path(sys.argv[1], f"{processes}.json").read_text()) for processes in (1, 2))
print("1 process:", {key: one[key] for key in ("tokens", "seconds")})
print("2 processes:", two)
if one["tokens"] != 5_000_000_000 or two["tokens"] != 705_032_704 or two["7 and 4294967303"] != "equal":
    sys.exit("Changed: values of 64 bits travel between hosts in another way.")
if one["seconds"] != [1_795_838_607.25] or two["seconds"] != [1_795_838_592.0] * 2:
    sys.exit("Changed: floats of 64 bits travel between hosts in another way.")
EOF
export JAX_PLATFORMS=cpu
free_port='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
for processes in 1 2; do
  port=$(timeout 60 python3 -c "$free_port")
  started=()
  for ((index = 0; index < processes; index++)); do
    timeout -k 5 300 "$folder/venv/bin/python" "$folder/gather.py" "$folder" "$port" "$processes" "$index" \
      >"$folder/log-$processes-$index" 2>&1 &
    started+=($!)
  done
  for process in "${started[@]}"; do
    wait "$process" || { cat "$folder"/log-"$processes"-*; exit 1; }
  done
done
timeout -k 5 300 "$folder/venv/bin/python" "$folder/judge.py" "$folder"
