#!/usr/bin/env bash
# Expected: MultiSteps(apply_if_finite(sgd)) skips the one update that has a NaN and continues with the next.
# Happens: The NaN stays in the accumulator. All later updates are skipped, although their gradients are finite.
# Versions: optax 0.2.8, jax 0.10.2
# Date: 2026-11-28
# Matters: The guard against a bad batch freezes the model for the rest of the run. No error appears.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile optax==0.2.8 jax==0.10.2 numpy==2.4.6

cat >"$folder/updates.py" <<'EOF'
import sys
from importlib.metadata import version

import jax.numpy as jnp
import optax

GRADIENTS = [1.0, 1.0, float("nan"), *[1.0] * 7]


def weights(optimizer):
    """A weight after each of the gradients; every second one completes an update."""
    weight, seen = jnp.zeros(()), []
    state = optimizer.init(weight)
    for gradient in GRADIENTS:
        update, state = optimizer.update(jnp.asarray(gradient), state, weight)
        weight = optax.apply_updates(weight, update)
        seen.append(float(weight))
    return seen


print("optax", version("optax"))
print("gradients:                   ", GRADIENTS)
inside = weights(optax.MultiSteps(optax.apply_if_finite(optax.sgd(1.0), 100), 2))
print("guard inside of accumulation:", inside)
outside = weights(optax.apply_if_finite(optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation(), 100))
print("guard around accumulation:   ", outside)
if inside[1:] != [-1.0] * 9 or outside[-1] != -4.0:
    sys.exit("Changed: one NaN no longer stops all later updates of MultiSteps around apply_if_finite.")
EOF
JAX_PLATFORMS=cpu timeout -k 5 300 "$folder/venv/bin/python" "$folder/updates.py"
