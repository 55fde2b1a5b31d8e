"""Traces of some steps of the chief, with each kernel and each operation."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace

from trainer.job import Job
from trainer.reports import spans
from trainer.vertex.log import say
from trainer.vertex.writable import Dispensable

# Names that TensorFlow gives to threads and their operations.
KERNELS = re.compile("Stream [^:]*: (?!Memcpy|Memset)")  # copies ahead compute nothing
OPERATION = re.compile(r"(tf_Compute|collective_ops)\S*: [^ :]+:[A-Z]\w*$")
COMMUNICATES = re.compile(r"nccl|:Collective\w+$")


class Trace:
    """Trace of the steps that --profile names; told after each call of the run.

    Args:
        start: steps that were taken before this run.
        is_chief: whether this process writes one.
    """

    def __init__(self, job: Job, start: int, is_chief: bool) -> None:
        self._steps = spans.steps_ahead(job.config, start) if is_chief else range(0)
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
    return spans.split(computing, communicating, seconds, count)


def times(planes: Sequence[XPlane], kind: re.Pattern[str]) -> Iterator[tuple[str, spans.Span]]:
    """Yield name and time of each traced operation of this kind; `tf_Compute: block/dense/MatMul:MatMul`."""
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                name = f"{line.name}: {plane.event_metadata[event.metadata_id].name}"
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                if kind.match(name):
                    yield name, (start, start + event.duration_ps / 1e12)
