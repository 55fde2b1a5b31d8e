#!/usr/bin/env bash
# Expected: After restore(100), a CheckpointManager saves step 110, and a restart continues from there.
# Happens: While step 300 exists, save returns False for each step up to 300. A restart continues from 300.
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2
# Date: 2026-11-28
# Matters: A run that was rolled back to before a loss spike saves nothing. After a preemption it resumes in the spike.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile orbax-checkpoint==0.12.8 jax==0.10.2 numpy==2.4.6

cat >"$folder/rollback.py" <<'EOF'
import sys
from importlib.metadata import version

import absl.logging
import jax.numpy as jnp
import orbax.checkpoint as ocp

absl.logging.set_verbosity(absl.logging.ERROR)


def open_manager():
    """A manager of the same folder, as each start of a job makes it."""
    return ocp.CheckpointManager(sys.argv[1] + "/checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=3))


def save(manager, step):
    """Save a state that equals its step, and return what the manager returns."""
    saved = manager.save(step, args=ocp.args.StandardSave({"weight": jnp.full(2, float(step))}))
    manager.wait_until_finished()
    return saved


print("orbax-checkpoint", version("orbax-checkpoint"))
with open_manager() as manager:
    print("first run saves:", {step: save(manager, step) for step in (100, 200, 300)})
with open_manager() as manager:
    state = manager.restore(100, args=ocp.args.StandardRestore({"weight": jnp.zeros(2)}))
    print("second run restores step 100:", state["weight"].tolist())
    saved = {step: save(manager, step) for step in (110, 210, 290, 300)}
    print("second run saves:", saved)
with open_manager() as manager:
    print("third run finds the latest step:", manager.latest_step())
    if any(saved.values()) or manager.latest_step() != 300:
        sys.exit("Changed: a manager that was rolled back saves steps before the latest one.")
EOF
JAX_PLATFORMS=cpu timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/rollback.py" "$folder"
