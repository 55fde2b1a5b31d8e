#!/usr/bin/env bash
# Expected: With drop_remainder=False, the shards of an IndexSampler together yield each record of an epoch once.
# Happens: All shards are cut to the length of the shortest. One of 10 records on 3 shards is never seen.
# Versions: grain 0.2.18
# Date: 2026-11-28
# Matters: An evaluation on several machines silently omits records that one machine counts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile grain==0.2.18 numpy==2.4.6

cat >"$folder/shards.py" <<'EOF'
import sys
from importlib.metadata import version

import grain


def shard(index):
    """The records that one machine of three reads in one epoch."""
    options = grain.sharding.ShardOptions(shard_index=index, shard_count=3, drop_remainder=False)
    sampler = grain.samplers.IndexSampler(num_records=10, shard_options=options, shuffle=False, num_epochs=1)
    return [int(record) for record in grain.DataLoader(data_source=range(10), sampler=sampler, worker_count=0)]


print("grain", version("grain"))
shards = [shard(index) for index in range(3)]
for index, records in enumerate(shards):
    print(f"shard {index} of 3:", records)
missing = sorted(set(range(10)) - {record for records in shards for record in records})
print("records that no shard has:", missing)
sliced = [grain.MapDataset.range(10)[index::3] for index in range(3)]
print("shards by slices of a MapDataset:", [[int(record) for record in records] for records in sliced])
if missing != [3]:
    sys.exit("Changed: the shards of IndexSampler together have other records.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/shards.py"
