"""Traces of some steps of the chief's process, with each kernel and each operation."""

import math
import re
from collections.abc import Iterable

import torch
from torch import profiler
from torch.autograd.profiler_util import FunctionEvent

from trainer.config import Config, Job, traced_steps
from trainer.vertex.log import say, warn
from trainer.vertex.writable import Dispensable

# Names that PyTorch gives to the operations that it traces.
OPERATION = re.compile("aten::|gloo:")
COPIES = ("Memcpy", "Memset")  # a GPU makes them beside its computations
COMMUNICATES = re.compile("nccl|gloo:")
Span = tuple[float, float]  # start and end of an operation, in seconds


class Trace:
    """Trace of the steps that --profile names; told after each step of the run.

    Args:
        start: steps that were taken before this run.
        is_chief: whether this process writes one.
    """

    def __init__(self, job: Job, start: int, is_chief: bool) -> None:
        steps = steps_ahead(job.config, start) if is_chief else range(0)
        self._steps, self._folder = steps, job.storage.logs / "profile"
        self._profiler: profiler.profile | None = None
        if steps:
            # The step before warms the profiler up: its own start would be the longest thing in the trace.
            warmup = min(steps.start - start, 1)
            ahead = steps.start - start - warmup
            plan = profiler.schedule(skip_first=ahead, wait=0, warmup=warmup, active=len(steps), repeat=1)
            self._profiler = profiler.profile(schedule=plan, on_trace_ready=self._write, acc_events=True)
            self._profiler.start()

    def step(self, step: int) -> None:
        """Go on to the next step; `step` counts the finished ones."""
        if self._profiler is None:
            return
        if step == self._steps.start and torch.cuda.is_available():
            torch.cuda.synchronize()  # the GPU's earlier work does not belong to the traced steps
        self._profiler.step()
        if step >= self._steps.stop:
            self._profiler.stop()
            self._profiler = None

    def _write(self, traced: profiler.profile) -> None:
        path = self._folder / f"steps-{self._steps.start}-{self._steps.stop}.json.gz"  # PyTorch packs what ends so
        told = f"a trace of steps {self._steps.start + 1} to {self._steps.stop} is in {path}"
        with Dispensable(path).writing(RuntimeError):
            path.parent.mkdir(exist_ok=True)
            traced.export_chrome_trace(str(path))
            say(f"{told}; open it at https://ui.perfetto.dev")
        say(summary(traced, len(self._steps)))


def summary(traced: profiler.profile, count: int) -> str:
    """Say what the device did in so many steps: a GPU by its kernels, a CPU by its operations."""
    events = traced.events() or []
    steps = [event for event in events if event.name.startswith("ProfilerStep") and event.device_type.name == "CPU"]
    on_gpu = [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]
    kernels = [event for event in on_gpu if not event.name.startswith(COPIES)]
    work = kernels or [event for event in events if OPERATION.match(event.name)]
    communicating = [event for event in work if COMMUNICATES.match(event.name)]
    computing = [event for event in work if not COMMUNICATES.match(event.name)]
    # A GPU ends after the program that has told it what to do.
    seconds = max(end for _, end in times([*steps, *work])) - min(begin for begin, _ in times(steps))
    return split(times(computing), times(communicating), seconds, count)


def times(events: list[FunctionEvent]) -> list[Span]:
    return [(event.time_range.start / 1e6, event.time_range.end / 1e6) for event in events]


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
