"""Copies of the model that differ: whose, in which tensor, and where the run goes on; and models that answer otherwise.

Parameters say nothing about what else a model computes with, such as an order that `build` has drawn. Its answers do.
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

SAMPLES = 32  # whose answers are compared
EXACT, ROUNDED = 1e-3, 2e-2  # largest difference of losses, computed in float32 and in lower precision
DRAWN = "have build() of trainer/model.py draw all from the generators that --seed sets, or keep it in the state dict"
CURE = (
    "if it names the same replica again, replace the machine, or look for code that changes the state outside of the"
    " optimizer; --anyway goes on as it is"
)
INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}  # by bytes
WEIGHTS = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1  # odd, of rows and of columns


def require_alike(job: Job, step: int, saved: str, names: Sequence[str], copies: Sequence[Mapping[str, int]]) -> None:
    """Name the copies that are not like most of them; all, where no value is that of most.

    Args:
        saved: name of the newest checkpoint; empty if there is none.
        names: of the replica, or process, that holds each copy.
        copies: digest of each tensor, by its name, of each copy.

    Raises:
        PeerError: copies are not alike, unless the run is to go on anyway: then the chief warns.
    """
    tensor = next((name for name, value in copies[0].items() if any(copy[name] != value for copy in copies)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(copy[tensor] for copy in copies).most_common(1)
    most = count * 2 > len(copies)
    odd = [*dict.fromkeys(name for name, copy in zip(names, copies, strict=True) if not most or copy[tensor] != usual)]
    differ = f"{'differs' if len(odd) == 1 else 'differ'} from {'the others' if most else 'one another'}"
    fault = f"after step {step} {' and '.join(odd)} {differ} in {tensor}"
    resume = f"resumes from {saved}" if saved else "begins at the first step"
    said = f"{fault}; nothing is saved, and the next start {resume}: {CURE}"
    job.object_to(fault, PeerError(said, differs=[name.rpartition(" ")[2] for name in odd]))


class Answers(NamedTuple):
    """Losses of the first held-out samples, by which models are compared."""

    losses: Sequence[float]
    tolerance: float = EXACT

    def differ(self, other: Sequence[float]) -> bool:
        """Whether the mean difference, relative to a loss of more than 1, is too large; if both have losses at all."""
        count = min(len(self.losses), len(other))
        own, theirs = np.array(self.losses[:count]), np.array(other[:count])
        differences = np.nan_to_num(np.abs(own - theirs) / (1 + np.abs(own)))
        return bool(differences.size) and float(differences.mean()) > self.tolerance


def repeated(losses: Callable[[], Any], tolerance: float) -> Answers:
    """Return a model's losses; NaNs, which equal all, if it draws numbers in evaluation and so has others each time."""
    first, second = (np.asarray(losses(), np.float32).tolist() for _ in range(2))
    answers = Answers(first, tolerance)
    return Answers([math.nan] * len(first)) if answers.differ(second) else answers


def require_same_answers(job: Job, of_each: Sequence[Answers], names: Sequence[str]) -> Answers:
    """Compare the answers of all processes, or machines, with those of the first that has some; returns the latter.

    Raises:
        TrainerError: they differ, unless the run is to go on anyway: then the chief warns.
    """
    first, name = next((pair for pair in zip(of_each, names, strict=True) if pair[0].losses), (of_each[0], names[0]))
    for answers, other in zip(of_each, names, strict=True):
        if first.differ(answers.losses):
            fault = f"the model of {other} answers otherwise than that of {name}, with the same weights"
            job.object_to(fault, TrainerError(f"{fault}; {DRAWN}"))
    return first


def parted(state: State, world: World) -> dict[int, dict[str, int]]:
    """Return the digests of all tensors, by data rank, of copies that are not alike; empty if all are.

    Every machine must call it. One number a copy travels where they are alike.
    """
    if world.strategy.num_replicas_in_sync == 1:  # parameter servers, too, hold one
        return {}
    held = [*state.net.trainable_variables, *state.optimizer.variables]  # buffers may differ, as those of BatchNorm
    of_each_device = [[digest(copy) for copy in world.strategy.experimental_local_results(one.value)] for one in held]
    own = np.array(of_each_device).T
    if len({total for totals in world.gather([zlib.crc32(row.tobytes()) for row in own]) for total in totals}) == 1:
        return {}
    rows = np.array(world.gather(own.flatten().tolist())).reshape(-1, len(held)).tolist()
    return {i: {one.path: value for one, value in zip(held, row, strict=True)} for i, row in enumerate(rows)}


def digest(tensor: Any) -> tf.Tensor:
    """Return the sum of all bit patterns, each times a weight by its row and column: a whole number, which wraps."""
    with tf.device(tensor.device):
        bits = tf.bitcast(tensor, INTEGERS[tensor.dtype.size])
        # Else two signs that change would cancel out in a sum that wraps.
        half = tf.constant(4 * tensor.dtype.size, bits.dtype)
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, half))
        bits = tf.cast(bits, tf.int64) if "GPU" in tensor.device else bits  # TensorFlow adds up int32 on CPUs alone
        bits = tf.reshape(bits, [-1, tensor.shape[-1] if tensor.shape.rank else 1])
        sums = (tf.cast(tf.reduce_sum(bits, axis), tf.int64) for axis in (1, 0))
        rows, columns = (tf.reduce_sum(tf.cumsum(one)) for one in sums)  # a running sum weighs each by its place
        return rows * WEIGHTS[0] + columns * WEIGHTS[1]
