"""One sentence about a trace: the time of its steps that computed, communicated, or did neither."""

import math
from collections.abc import Iterable

from trainer.config import Config, traced_steps
from trainer.vertex.log import warn

Span = tuple[float, float]  # start and end of an operation, in seconds


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
