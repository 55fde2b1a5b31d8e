"""A trace of some steps of the chief's process: what each kernel and each operation took."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import profiler
from torch.autograd.profiler_util import FunctionEvent

from trainer import profiled
from trainer.telemetry import say
from trainer.writable import writing

# What PyTorch calls what it traces.
OPERATION = re.compile("aten::|gloo:")
COPIES = ("Memcpy", "Memset")  # a GPU makes them beside its computations
COMMUNICATES = re.compile("nccl|gloo:")


@contextlib.contextmanager
def trace(profile: str | None, folder: Path, start: int) -> Iterator[Callable[[], None]]:
    """Call what the block is given after each step.

    Args:
        profile: as --profile says; None for no trace.
        folder: where to.
        start: steps that were taken before the block.
    """
    steps = profiled.ahead(profile, start)
    if not steps:
        yield lambda: None
        return
    path = folder / f"steps-{steps.start}-{steps.stop}.json.gz"  # PyTorch packs what ends so

    def write(traced: profiler.profile) -> None:
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(path))
        say(f"a trace of steps {steps.start + 1} to {steps.stop} is in {path}; open it at https://ui.perfetto.dev")
        say(told(traced, len(steps)))

    # The step before warms the profiler up: its own start would be the longest thing in the trace.
    warmup = min(steps.start - start, 1)
    plan = profiler.schedule(
        skip_first=steps.start - start - warmup, wait=0, warmup=warmup, active=len(steps), repeat=1
    )
    with profiler.profile(schedule=plan, on_trace_ready=write, acc_events=True) as traced:
        taken = itertools.count(start + 1)

        def step() -> None:
            if next(taken) == steps.start and torch.cuda.is_available():
                torch.cuda.synchronize()  # what a GPU has still to do is not of the traced steps
            traced.step()

        yield step


def told(traced: profiler.profile, count: int) -> str:
    """What the device did in so many steps: a GPU by its kernels, a CPU by its operations."""
    events = traced.events() or []
    steps = [one for one in events if one.name.startswith("ProfilerStep") and one.device_type.name == "CPU"]
    on_gpu = [one for one in events if one.device_type.name == "CUDA" and not one.is_user_annotation]
    kernels = [one for one in on_gpu if not one.name.startswith(COPIES)]
    work = kernels or [one for one in events if OPERATION.match(one.name)]
    communicating = [one for one in work if COMMUNICATES.match(one.name)]
    computing = [one for one in work if not COMMUNICATES.match(one.name)]
    # A GPU ends after the program that has told it what to do.
    seconds = max(end for _, end in spans([*steps, *work])) - min(begin for begin, _ in spans(steps))
    return profiled.split(spans(computing), spans(communicating), seconds, count)


def spans(events: list[FunctionEvent]) -> list[profiled.Span]:
    return [(one.time_range.start / 1e6, one.time_range.end / 1e6) for one in events]
