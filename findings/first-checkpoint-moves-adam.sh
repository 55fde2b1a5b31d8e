#!/usr/bin/env bash
# Expected: get_optimizer_state_dict only reads: a checkpoint before the first step leaves the training as it was.
# Happens: The call runs a step of its own with zero gradients. AdamW's first real update shrinks by 26 %.
# Versions: torch 2.13.0 (upstream: pytorch/pytorch#164929, open)
# Date: 2026-11-28
# Matters: A job that saves a checkpoint before its first step trains differently from a job that doesn't.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/updates.py" <<'EOF'
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def first_update(make, reads):
    """The first update of a weight that starts at 0 and whose gradient is 1."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = make(model.parameters(), lr=0.1)
    if reads:
        get_optimizer_state_dict(model, optimizer)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return round(model.weight.item(), 6)


print("torch", torch.__version__)
seen = {}
for make in (torch.optim.AdamW, torch.optim.RAdam, torch.optim.Rprop):
    seen[make.__name__] = first_update(make, reads=False), first_update(make, reads=True)
    print("{}: first update {}, and {} after get_optimizer_state_dict".format(make.__name__, *seen[make.__name__]))
if seen["AdamW"] != (-0.1, -0.074414):
    sys.exit("Changed: reading the optimizer's state before the first step no longer alters AdamW's first update.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" "$folder/updates.py"
