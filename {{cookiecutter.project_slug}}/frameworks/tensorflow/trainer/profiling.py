"""A trace of some steps of the chief: what each kernel and each operation took."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace

from trainer import profiled
from trainer.telemetry import say
from trainer.writable import writing

# How TensorFlow names the threads and what they do.
KERNELS = re.compile("Stream [^:]*: (?!Memcpy|Memset)")  # copies ahead compute nothing
OPERATION = re.compile(r"(tf_Compute|collective_ops)\S*: [^ :]+:[A-Z]\w*$")
COMMUNICATES = re.compile(r"nccl|:Collective\w+$")


@contextlib.contextmanager
def trace(profile: str | None, folder: Path, start: int) -> Iterator[Callable[[int], None]]:
    """Call what the block is given after each call of TensorFlow, with the number of steps taken.

    Args:
        profile: as --profile says; None for no trace.
        folder: of the curves, beside which TensorBoard looks for traces.
        start: steps that were taken before the block.
    """
    steps = profiled.ahead(profile, start)
    running, first, since = False, 0, 0.0

    def after(step: int) -> None:
        nonlocal running, first, since
        if running and step >= steps.stop:
            sync_gpus()
            running, seconds = False, time.monotonic() - since
            with writing(folder):
                tf.profiler.experimental.stop()
            say(f"a trace of steps {first + 1} to {step} is in {folder}/plugins/profile; TensorBoard shows it")
            say(told(folder, seconds, step - first))
        elif not running and step in steps:
            tf.profiler.experimental.start(str(folder))  # which may take a second
            sync_gpus()
            running, first, since = True, step, time.monotonic()

    after(start)
    try:
        yield after
    finally:
        if running:
            tf.profiler.experimental.stop(save=False)


def sync_gpus() -> None:
    """Return when the GPUs of this machine have done what they were told; TensorFlow's own looks for all machines'."""
    for index, _ in enumerate(tf.config.list_physical_devices("GPU")):
        with tf.device(f"GPU:{index}"):
            tf.raw_ops.SyncDevice()


def told(folder: Path, seconds: float, count: int) -> str:
    """What the devices of the chief did in so many steps: the GPUs by their kernels, a CPU by its operations."""
    newest = max((folder / "plugins/profile").glob("*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    space = XSpace.FromString(newest.read_bytes())
    gpus = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    work = [*spans(gpus, KERNELS)] or [*spans(space.planes, OPERATION)]
    communicating = [span for name, span in work if COMMUNICATES.search(name)]
    computing = [span for name, span in work if not COMMUNICATES.search(name)]
    return profiled.split(computing, communicating, seconds, count)


def spans(planes: Sequence[XPlane], kind: re.Pattern[str]) -> Iterator[tuple[str, profiled.Span]]:
    """Name and time of what was traced of this kind; `tf_Compute: block/dense/MatMul:MatMul`."""
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                name = f"{line.name}: {plane.event_metadata[event.metadata_id].name}"
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                if kind.match(name):
                    yield name, (start, start + event.duration_ps / 1e12)
