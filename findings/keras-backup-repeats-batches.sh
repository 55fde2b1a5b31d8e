#!/usr/bin/env bash
# Expected: BackupAndRestore(save_freq=3) resumes a fit at the batch after its last backup.
# Happens: It restores the weights of update 15 and repeats the epoch from its start: 20 batches make 25 updates.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0
# Date: 2026-11-28
# Matters: On preemptible machines, each restart trains the first batches of an epoch again and advances schedules.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile keras==3.15.1 tensorflow-cpu==2.21.0 numpy==2.4.6

cat >"$folder/resume.py" <<'EOF'
import sys

import keras
import numpy as np


class Batches(keras.callbacks.Callback):
    """Note each batch as (epoch, batch), and fail after one of them."""

    def __init__(self, lost=None):
        super().__init__()
        self.lost, self.seen = lost, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((self.epoch, batch))
        if self.seen[-1] == self.lost:
            raise InterruptedError


def fit(batches):
    """Fit 2 epochs of 10 batches and return the number of updates that the optimizer counts."""
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(sys.argv[1] + "/backup", save_freq=3)
    data = np.ones((40, 1))
    try:
        model.fit(data, data, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[backup, batches])
    except InterruptedError:
        pass
    return int(model.optimizer.iterations)


print("keras", keras.__version__)
first, second = Batches(lost=(1, 6)), Batches()
print(f"first run: {fit(first)} updates, lost after epoch, batch = {first.seen[-1]}")
updates = fit(second)
print(f"second run: starts at epoch, batch = {second.seen[0]}, ends with {updates} updates")
if (second.seen[0], updates) != ((1, 0), 25):
    sys.exit("Changed: BackupAndRestore resumes at another batch.")
EOF
CUDA_VISIBLE_DEVICES="" TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 KERAS_BACKEND=tensorflow KERAS_HOME="$folder" \
  timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/resume.py" "$folder" 2>"$folder/log" ||
  { tail -n 5 "$folder/log"; exit 1; }
