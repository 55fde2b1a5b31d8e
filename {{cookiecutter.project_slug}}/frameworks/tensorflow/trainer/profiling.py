"""A trace of some steps of the chief: what each kernel and each operation took."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from trainer import profiled
from trainer.telemetry import say
from trainer.writable import writing


@contextlib.contextmanager
def trace(profile: str | None, folder: Path, start: int) -> Iterator[Callable[[int], None]]:
    """Call what the block is given after each call of TensorFlow, with the number of steps taken.

    Args:
        profile: as --profile says; None for no trace.
        folder: of the curves, beside which TensorBoard looks for traces.
        start: steps that were taken before the block.
    """
    steps = profiled.ahead(profile, start)
    running = False

    def after(step: int) -> None:
        nonlocal running
        if running and step >= steps.stop:
            running = False
            with writing(folder):
                tf.profiler.experimental.stop()
            say(f"a trace of steps {steps.start + 1} to {step} is in {folder}/plugins/profile; TensorBoard shows it")
        elif not running and step in steps:
            running = True
            tf.profiler.experimental.start(str(folder))

    after(start)
    try:
        yield after
    finally:
        if running:
            tf.profiler.experimental.stop(save=False)
