"""Traces the kernels and operations of selected training steps on the chief."""

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace

from trainer.config import Config, Job, traced_steps
from trainer.vertex.log import say, warn
from trainer.vertex.writable import Dispensable

# The names that TensorFlow gives to threads and their operations.
KERNELS = re.compile("Stream [^:]*: (?!Memcpy|Memset)")  # copies don't compute anything
OPERATION = re.compile(r"(tf_Compute|collective_ops)\S*: [^ :]+:[A-Z]\w*$")
COMMUNICATES = re.compile(r"nccl|:Collective\w+$")
Span = tuple[float, float]  # start and end of an operation, in seconds


class Trace:
    """The trace of the steps that --profile selects. Call `step` after each step of the run.

    Args:
        start: the number of steps that earlier runs finished.
        is_chief: True if this process writes a trace.
    """

    def __init__(self, job: Job, start: int, is_chief: bool) -> None:
        self._steps = steps_ahead(job.config, start) if is_chief else range(0)
        self._folder = job.storage.logs  # the folder of the curves, where TensorBoard looks for traces
        self._first, self._since = -1, 0.0
        self.step(start)

    def step(self, step: int) -> None:
        """Start the trace before the first selected step, and stop it after the last.

        `step` is the number of finished steps.
        """
        if self._first < 0 and step in self._steps:
            tf.profiler.experimental.start(str(self._folder))  # may take a second
            sync_gpus()
            self._first, self._since = step, time.monotonic()
        elif self._first >= 0 and step >= self._steps.stop:
            sync_gpus()
            seconds = time.monotonic() - self._since
            told = f"a trace of steps {self._first + 1} to {step} is in {self._folder}/plugins/profile"
            with Dispensable(self._folder).writing(tf.errors.OpError):
                tf.profiler.experimental.stop()
                say(f"{told}; open the trace in TensorBoard")
                say(summary(self._folder, seconds, step - self._first))
            self._steps, self._first = range(0), -1


def sync_gpus() -> None:
    """Wait until the GPUs of this machine are idle. TensorFlow's own function waits for the GPUs of all machines."""
    for index, _ in enumerate(tf.config.list_physical_devices("GPU")):
        with tf.device(f"GPU:{index}"):
            tf.raw_ops.SyncDevice()


def summary(folder: Path, seconds: float, count: int) -> str:
    """Return a summary of `count` traced steps, based on GPU kernels or CPU operations."""
    newest = max((folder / "plugins/profile").glob("*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    space = XSpace.FromString(newest.read_bytes())
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    work = [*times(gpus, KERNELS)] or [*times(space.planes, OPERATION)]
    communicating = [span for name, span in work if COMMUNICATES.search(name)]
    computing = [span for name, span in work if not COMMUNICATES.search(name)]
    return split(computing, communicating, seconds, count)


def times(planes: Sequence[XPlane], kind: re.Pattern[str]) -> Iterator[tuple[str, Span]]:
    """Yield the name and the time span of each operation whose name matches `kind`.

    Example name: `tf_Compute: block/dense/MatMul:MatMul`
    """
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                name = f"{line.name}: {plane.event_metadata[event.metadata_id].name}"
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                if kind.match(name):
                    yield name, (start, start + event.duration_ps / 1e12)


def steps_ahead(config: Config, start: int) -> range:
    """Return the indices of the steps to trace.

    If the run resumes after the first of these steps, return an empty range.
    """
    traced = traced_steps(config)
    if traced and traced.start < start:
        warn(f"--profile {config.profile} doesn't write a trace, because the run resumes after the first traced step")
        return range(0)
    return traced


def split(computing: Iterable[Span], communicating: Iterable[Span], seconds: float, steps: int) -> str:
    """Return a sentence about the average duration of the traced steps.

    Communication that overlaps with computation doesn't make a step slower.

    Example: `an average step took 52.1 ms: 30.0 ms of computation, 25.0 ms of communication (8.0 ms didn't overlap with
    computation), and 14.1 ms of other time`
    """
    kernels, messages = [*computing], [*communicating]
    either, computed, communicated = covered(kernels + messages), covered(kernels), covered(messages)
    parts = (seconds, computed, communicated, either - computed, max(seconds - either, 0.0))
    step, computes, communicates, alone, neither = (f"{1000 * part / steps:.1f}" for part in parts)
    summary = f"an average step took {step} ms: {computes} ms of computation, {communicates} ms of communication"
    return f"{summary} ({alone} ms didn't overlap with computation), and {neither} ms of other time"


def covered(spans: Iterable[Span]) -> float:
    """Return the total time, in seconds, that the spans cover. Overlaps count only once."""
    total, end = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total
