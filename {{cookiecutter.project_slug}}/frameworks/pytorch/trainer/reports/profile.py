"""Traces the kernels and operations of selected training steps on the chief."""

import math
import re
from collections.abc import Iterable

import torch
from torch import profiler
from torch.autograd.profiler_util import FunctionEvent

from trainer.config import Config, Job, traced_steps
from trainer.vertex.log import say, warn
from trainer.vertex.writable import Dispensable

# The names that PyTorch gives to traced operations.
OPERATION = re.compile("aten::|gloo:")
COPIES = ("Memcpy", "Memset")  # a GPU copies in parallel with its computations
COMMUNICATES = re.compile("nccl|gloo:")
Span = tuple[float, float]  # start and end of an operation, in seconds


class Trace:
    """The trace of the steps that --profile selects. Call `step` after each step of the run.

    Args:
        start: the number of steps that earlier runs finished.
        is_chief: True if this process writes a trace.
    """

    def __init__(self, job: Job, start: int, is_chief: bool) -> None:
        steps = steps_ahead(job.config, start) if is_chief else range(0)
        self._steps, self._folder = steps, job.storage.logs / "profile"
        self._profiler: profiler.profile | None = None
        if steps:
            # The previous step warms up the profiler. Otherwise the profiler's start would dominate the trace.
            warmup = min(steps.start - start, 1)
            ahead = steps.start - start - warmup
            plan = profiler.schedule(skip_first=ahead, wait=0, warmup=warmup, active=len(steps), repeat=1)
            self._profiler = profiler.profile(schedule=plan, on_trace_ready=self._write, acc_events=True)
            self._profiler.start()

    def step(self, step: int) -> None:
        """Advance to the next step. `step` is the number of finished steps."""
        if self._profiler is None:
            return
        if step == self._steps.start and torch.cuda.is_available():
            torch.cuda.synchronize()  # the GPU's earlier work isn't part of the traced steps
        self._profiler.step()
        if step >= self._steps.stop:
            self._profiler.stop()
            self._profiler = None

    def _write(self, traced: profiler.profile) -> None:
        path = self._folder / f"steps-{self._steps.start}-{self._steps.stop}.json.gz"  # PyTorch compresses .gz files
        told = f"a trace of steps {self._steps.start + 1} to {self._steps.stop} is in {path}"
        with Dispensable(path).writing(RuntimeError):
            path.parent.mkdir(exist_ok=True)
            traced.export_chrome_trace(str(path))
            say(f"{told}; open the trace at https://ui.perfetto.dev")
        say(summary(traced, len(self._steps)))


def summary(traced: profiler.profile, count: int) -> str:
    """Return a summary of `count` traced steps, based on GPU kernels or CPU operations."""
    events = traced.events() or []
    steps = [event for event in events if event.name.startswith("ProfilerStep") and event.device_type.name == "CPU"]
    on_gpu = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]
    kernels = [event for event in on_gpu if not event.name.startswith(COPIES)]
    work = kernels or [event for event in events if OPERATION.match(event.name)]
    communicating = [event for event in work if COMMUNICATES.match(event.name)]
    computing = [event for event in work if not COMMUNICATES.match(event.name)]
    # A GPU finishes after the program that launched its kernels.
    seconds = max(end for _, end in times([*steps, *work])) - min(begin for begin, _ in times(steps))
    return split(times(computing), times(communicating), seconds, count)


def times(events: list[FunctionEvent]) -> list[Span]:
    return [(event.time_range.start / 1e6, event.time_range.end / 1e6) for event in events]


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
