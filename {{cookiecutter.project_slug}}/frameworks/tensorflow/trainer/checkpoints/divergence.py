"""Detects replicas whose parameters have diverged, and models whose losses differ.

Comparing parameters isn't enough, because a model can also use other values, such as a random permutation that `build`
generates. Comparing losses also detects differences in such values.
"""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.cluster.world import World
from trainer.config import Job
from trainer.step.state import State
from trainer.vertex.errors import PeerError, TrainerError

SAMPLES = 32  # the number of samples whose losses are compared
EXACT, ROUNDED = 1e-3, 2e-2  # largest difference between losses, in float32 and in lower precision
DRAWN = (
    "in build() of trainer/model.py, draw all random values from the generators that --seed seeds, or store the values"
    " in the state dict"
)
CURE = (
    "if the same replica diverges again, replace its machine, or find the code that changes the state outside the"
    " optimizer; to continue despite the divergence, use --anyway"
)
INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}  # by size in bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd weights of rows and columns


def require_no_divergence(
    job: Job, step: int, saved: str, names: Sequence[str], digests: Sequence[Mapping[str, int]]
) -> None:
    """Check that the replicas' tensors are identical.

    The error lists the replicas that differ from the majority. If there is no majority, the error lists all replicas.

    Args:
        saved: the name of the latest checkpoint, or an empty string if no checkpoint exists.
        names: the names of the replicas or processes.
        digests: the digests of all tensors for each replica or process, keyed by tensor name.

    Raises:
        PeerError: if parameters have diverged. If --anyway is set, the chief prints a warning instead.
    """
    tensor = next((name for name, value in digests[0].items() if any(one[name] != value for one in digests)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(one[tensor] for one in digests).most_common(1)
    most = count * 2 > len(digests)
    odd = [*dict.fromkeys(name for name, one in zip(names, digests, strict=True) if not most or one[tensor] != usual)]
    diverged = f"{'has' if len(odd) == 1 else 'have'} diverged from {'the others' if most else 'one another'}"
    fault = f"after step {step}, {' and '.join(odd)} {diverged} in {tensor}"
    resume = f"training resumes from {saved}" if saved else "training begins at the first step"
    said = f"{fault}; this state isn't saved, and after a restart, {resume}; {CURE}"
    job.object_to(fault, PeerError(said, diverged=[name.rpartition(" ")[2] for name in odd]))


class Answers(NamedTuple):
    """The losses of a model on the first held-out samples, for comparison with those of another model."""

    losses: Sequence[float]
    tolerance: float = EXACT

    def differ(self, other: Sequence[float]) -> bool:
        """Return whether the mean relative difference between the losses exceeds the tolerance.

        If losses are missing for either model, return False.
        """
        count = min(len(self.losses), len(other))
        own, theirs = np.array(self.losses[:count]), np.array(other[:count])
        differences = np.nan_to_num(np.abs(own - theirs) / (1 + np.abs(own)))
        return bool(differences.size) and float(differences.mean()) > self.tolerance


def repeated(losses: Callable[[], Any], tolerance: float) -> Answers:
    """Compute a model's losses twice. If both results match, return the first one.

    Otherwise, return NaN values, which match any losses. Losses can't be compared if the model draws random numbers
    during evaluation.
    """
    first, second = (np.asarray(losses(), np.float32).tolist() for _ in range(2))
    answers = Answers(first, tolerance)
    return Answers([math.nan] * len(first)) if answers.differ(second) else answers


def require_same_answers(job: Job, of_each: Sequence[Answers], names: Sequence[str]) -> Answers:
    """Compare the losses of all processes or machines with the first nonempty losses, and return the latter.

    Raises:
        TrainerError: if the losses differ. If --anyway is set, the chief prints a warning instead.
    """
    first, name = next((pair for pair in zip(of_each, names, strict=True) if pair[0].losses), (of_each[0], names[0]))
    for answers, other in zip(of_each, names, strict=True):
        if first.differ(answers.losses):
            fault = f"the model of {other} returns different losses than the model of {name} with the same weights"
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))
    return first


def diverged(state: State, world: World) -> dict[int, dict[str, int]]:
    """Return the tensor digests of all devices, keyed by data rank.

    If no device has diverged, return an empty dictionary.

    Every machine must call this function. If no device has diverged, each machine sends only one number per device.
    """
    if world.strategy.num_replicas_in_sync == 1:  # also with parameter servers, which hold one model
        return {}
    held = [*state.net.trainable_variables, *state.optimizer.variables]  # buffers may differ, such as BatchNorm's means
    of_each_device = [[digest(one) for one in world.strategy.experimental_local_results(own.value)] for own in held]
    own = np.array(of_each_device).T
    if len({total for totals in world.gather([zlib.crc32(row.tobytes()) for row in own]) for total in totals}) == 1:
        return {}
    rows = np.array(world.gather(own.flatten().tolist())).reshape(-1, len(held)).tolist()
    return {i: {one.path: value for one, value in zip(held, row, strict=True)} for i, row in enumerate(rows)}


def digest(tensor: Any) -> tf.Tensor:
    """Return an integer digest of a tensor: the sum of all bit patterns, weighted by row and column."""
    with tf.device(tensor.device):
        bits = tf.bitcast(tensor, INTEGERS[tensor.dtype.size])
        # Otherwise two changed signs would cancel out in the sum.
        half = tf.constant(4 * tensor.dtype.size, bits.dtype)
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, half))
        bits = tf.cast(bits, tf.int64) if "GPU" in tensor.device else bits  # TensorFlow sums int32 only on CPUs
        bits = tf.reshape(bits, [-1, tensor.shape[-1] if tensor.shape.rank else 1])
        sums = (tf.cast(tf.reduce_sum(bits, axis), tf.int64) for axis in (1, 0))
        rows, columns = (tf.reduce_sum(tf.cumsum(one)) for one in sums)  # weights each value by its position
        return rows * WEIGHTS[0] + columns * WEIGHTS[1]
