#!/usr/bin/env bash
# Expected: take(10) and skip(10) of one stream share no row, so they serve as validation and training data.
# Happens: The count is divided among DataLoader workers. With 0 and 2 workers, 5 rows are in both and 5 in neither.
# Versions: datasets 5.2.0, torch 2.13.0
# Date: 2026-11-28
# Matters: Held-out rows enter the training if the two loaders have different numbers of workers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile datasets==5.2.0 torch==2.13.0 numpy==2.4.6

cat >"$folder/split.py" <<'EOF'
import sys
from importlib.metadata import version

from datasets import Dataset
from torch.utils.data import DataLoader


def rows(stream, workers):
    """The rows that a loader with so many workers yields."""
    loader = DataLoader(stream, batch_size=1, num_workers=workers)
    return sorted(row for batch in loader for row in batch["row"].tolist())


if __name__ == "__main__":
    print("datasets", version("datasets"))
    stream = Dataset.from_dict({"row": list(range(40))}).to_iterable_dataset(num_shards=2)
    validation = rows(stream.take(10), workers=0)
    print("take(10), 0 workers:", validation)
    shared = {}
    for workers in (0, 2):
        training = rows(stream.skip(10), workers)
        shared[workers] = sorted(set(validation) & set(training))
        neither = sorted(set(range(40)) - set(validation) - set(training))
        print(f"skip(10), {workers} workers: {len(training)} rows, in both: {shared[workers]}, in neither: {neither}")
    if shared != {0: [], 2: [5, 6, 7, 8, 9]}:
        sys.exit("Changed: the rows that take and skip select depend on the workers in another way.")
EOF
HF_HOME="$folder" HF_HUB_OFFLINE=1 timeout -k 5 300 "$folder/venv/bin/python" "$folder/split.py"
