#!/usr/bin/env bash
# Expected: "except Exception" around dcp.load catches every failure to load, so a job can start without a checkpoint.
# Happens: dcp.load raises CheckpointException, which derives from BaseException and passes "except Exception".
# Versions: torch 2.13.0
# Date: 2026-11-28
# Matters: A job that should fall back to an older checkpoint, or start without one, exits at each restart instead.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 900 "$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==2.4.6

cat >"$folder/fallback.py" <<'EOF'
import logging
import sys

import torch
import torch.distributed.checkpoint as dcp

folder = sys.argv[1]
logging.disable()  # dcp.load logs a traceback for the absent folder
print("torch", torch.__version__)
dcp.save({"weight": torch.ones(2)}, checkpoint_id=f"{folder}/step-1")
caught = {}
for case, state, place in (
    ("a key that the checkpoint lacks", {"bias": torch.zeros(2)}, f"{folder}/step-1"),
    ("a tensor of another shape", {"weight": torch.zeros(3)}, f"{folder}/step-1"),
    ("an absent folder", {"weight": torch.zeros(2)}, f"{folder}/step-2"),
):
    try:
        dcp.load(state, checkpoint_id=place)
    except Exception as error:
        caught[case] = f"caught by except Exception: {type(error).__name__}"
    except BaseException as error:
        caught[case] = f"passes except Exception: {type(error).__name__}"
    print(f"{case}: {caught[case]}")
if set(caught.values()) != {"passes except Exception: CheckpointException"}:
    sys.exit("Changed: a failure of dcp.load no longer passes except Exception in each of these cases.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/fallback.py" "$folder"
