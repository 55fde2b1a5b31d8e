#!/usr/bin/env bash
# Expected: A shuffled index takes the same time in a dataset of any size, because it is computed, not looked up.
# Happens: An index among 10 records takes over a hundred times as long as an index among a million.
# Versions: grain 0.2.18
# Date: 2026-11-29
# Matters: A benchmark or a test with a few hundred records measures the shuffle instead of the reading.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile grain==0.2.18

cat >"$folder/shuffle.py" <<'EOF'
import sys
import time
from importlib.metadata import version

import grain

print("grain", version("grain"))
seconds = {}
for count in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
    order = grain.MapDataset.range(count).shuffle(seed=0).repeat()
    order[0]
    began = time.process_time()
    for position in range(500):
        order[position]
    seconds[count] = (time.process_time() - began) / 500
    print(f"{count:9,} records: {seconds[count] * 1e6:7.1f} us for an index")
if seconds[10] < 20 * seconds[1_000_000]:
    sys.exit("Changed: the time for an index no longer depends on the number of records as it did.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" "$folder/shuffle.py"
