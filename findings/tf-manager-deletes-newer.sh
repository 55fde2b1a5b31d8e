#!/usr/bin/env bash
# Expected: A CheckpointManager that lists ckpt-3 and ckpt-4 saves ckpt-5, or leaves files of an earlier run alone.
# Happens: Unless something is restored, it saves ckpt-1 and ckpt-2, and deletes ckpt-3 and ckpt-4 to keep two.
# Versions: tensorflow-cpu 2.21.0
# Date: 2026-11-28
# Matters: A restart that doesn't restore, or a second job in the same folder, deletes the only good checkpoints.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile tensorflow-cpu==2.21.0 numpy==2.4.6

cat >"$folder/saves.py" <<'EOF'
import sys
from pathlib import Path

import tensorflow as tf

folder = Path(sys.argv[1], "checkpoints")


def open_manager():
    """A manager of the same folder, as each start of a job makes it."""
    return tf.train.CheckpointManager(tf.train.Checkpoint(weight=tf.Variable(0.0)), folder, max_to_keep=2)


def files():
    """The checkpoints that are in the folder."""
    return sorted(file.stem for file in folder.glob("*.index"))


print("tensorflow", tf.__version__)
manager = open_manager()
for _ in range(4):
    manager.save()
print("first run leaves:", files())
manager = open_manager()
print("second run lists:", [Path(path).name for path in manager.checkpoints])
for _ in range(2):
    manager.save()
    print("second run saves", Path(manager.latest_checkpoint).name, "and leaves:", files())
if files() != ["ckpt-1", "ckpt-2"]:
    sys.exit("Changed: a CheckpointManager that restored nothing no longer deletes newer checkpoints.")
EOF
CUDA_VISIBLE_DEVICES="" TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  timeout -k 5 300 "$folder/venv/bin/python" "$folder/saves.py" "$folder" 2>"$folder/log" ||
  { tail -n 5 "$folder/log"; exit 1; }
