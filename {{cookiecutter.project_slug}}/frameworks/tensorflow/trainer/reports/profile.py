"""Traces of some steps of the chief, with each kernel and each operation."""

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

# Names that TensorFlow gives to threads and their operations.
KERNELS = re.compile("Stream [^:]*: (?!Memcpy|Memset)")  # copies ahead compute nothing
OPERATION = re.compile(r"(tf_Compute|collective_ops)\S*: [^ :]+:[A-Z]\w*$")
COMMUNICATES = re.compile(r"nccl|:Collective\w+$")
Span = tuple[float, float]  # start and end of an operation, in seconds


class Trace:
    """Trace of the steps that --profile names; told after each call of the run.

    Args:
        start: steps that were taken before this run.
        is_chief: whether this process writes one.
    """

    def __init__(self, job: Job, start: int, is_chief: bool) -> None:
        self._steps = steps_ahead(job.config, start) if is_chief else range(0)
        self._folder = job.storage.logs  # of the curves, beside which TensorBoard looks for traces
        self._first, self._since = -1, 0.0
        self.step(start)

    def step(self, step: int) -> None:
        """Begin or end the trace where it is due; `step` counts the finished ones."""
        if self._first < 0 and step in self._steps:
            tf.profiler.experimental.start(str(self._folder))  # which may take a second
            sync_gpus()
            self._first, self._since = step, time.monotonic()
        elif self._first >= 0 and step >= self._steps.stop:
            sync_gpus()
            seconds = time.monotonic() - self._since
            told = f"a trace of steps {self._first + 1} to {step} is in {self._folder}/plugins/profile"
            with Dispensable(self._folder).writing(tf.errors.OpError):
                tf.profiler.experimental.stop()
                say(f"{told}; TensorBoard shows it")
                say(summary(self._folder, seconds, step - self._first))
            self._steps, self._first = range(0), -1


def sync_gpus() -> None:
    """Return when the GPUs of this machine have done what they were told; TensorFlow's own looks for all machines'."""
    for index, _ in enumerate(tf.config.list_physical_devices("GPU")):
        with tf.device(f"GPU:{index}"):
            tf.raw_ops.SyncDevice()


def summary(folder: Path, seconds: float, count: int) -> str:
    """Say what the devices of the chief did in so many steps: the GPUs by their kernels, a CPU by its operations."""
    newest = max((folder / "plugins/profile").glob("*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    space = XSpace.FromString(newest.read_bytes())
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    work = [*times(gpus, KERNELS)] or [*times(space.planes, OPERATION)]
    communicating = [span for name, span in work if COMMUNICATES.search(name)]
    computing = [span for name, span in work if not COMMUNICATES.search(name)]
    return split(computing, communicating, seconds, count)


def times(planes: Sequence[XPlane], kind: re.Pattern[str]) -> Iterator[tuple[str, Span]]:
    """Yield name and time of each traced operation of this kind; `tf_Compute: block/dense/MatMul:MatMul`."""
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                name = f"{line.name}: {plane.event_metadata[event.metadata_id].name}"
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                if kind.match(name):
                    yield name, (start, start + event.duration_ps / 1e12)


def steps_ahead(config: Config, start: int) -> range:
    """Indices of the steps to trace in a run that resumes at `start`; none, and a warning, if one lies behind it."""
    traced = traced_steps(config)
    if traced and traced.start < start:
        warn(f"--profile {config.profile}: the run resumes behind its first step, and is not traced")
        return range(0)
    return traced


def split(computing: Iterable[Span], communicating: Iterable[Span], seconds: float, steps: int) -> str:
    """Divide the time of the traced steps; communication beside a computation costs nothing.

    `52.1 ms a step: computing 30.0, communicating 25.0, of which 8.0 alone; neither 14.1`
    """
    kernels, messages = [*computing], [*communicating]
    either, computed, communicated = covered(kernels + messages), covered(kernels), covered(messages)
    parts = (seconds, computed, communicated, either - computed, max(seconds - either, 0.0))
    step, computes, communicates, alone, neither = (f"{1000 * part / steps:.1f}" for part in parts)
    summary = f"{step} ms a step: computing {computes}, communicating {communicates}, of which {alone} alone"
    return f"{summary}; neither {neither}"


def covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans lasts."""
    total, end = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total
