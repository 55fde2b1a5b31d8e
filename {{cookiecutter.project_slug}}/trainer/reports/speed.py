"""Measures a run's speed: the duration of each phase, slow replicas, and the peak FLOPS of a GPU.

Each second of a run belongs to exactly one phase. Goodput is the fraction of time that a run spends in the TRAINING
phase. A run goes through the START, FIRST_STEP, TRAINING, and EXPORT phases. All other phases interrupt one of these
four phases. Therefore, the times of all phases add up to the time since the program started.
"""

import os
import re
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainer.reports.sinks import COMPUTES, Values

START, ROLL_CALL, FIRST_STEP, DATA, TRAINING = "start", "roll call", "first step", "data", "training"
REPORTS, CHECKPOINTS, EVALUATION, EXPORT = "reports", "checkpoints", "evaluation", "export"
LAST_CHECKPOINT = "last checkpoint"  # written after the training
REPEATED = "repeated"  # steps that were lost in an earlier start and are taken again
IdleTimer = Callable[[], Callable[[], float]]
Item = TypeVar("Item")
COMPARED = 5  # reports whose timed steps are compared, because a single step may be slow by chance
SLOW = 1.5  # times the median of the others
# Dense peaks in 10^12 operations per second, by a part of the GPU's name, in the precision that the trainer uses on it.
# Source: NVIDIA's data sheets.
PEAKS = {
    "bfloat16": {
        **{"GB200": 2500.0, "B200": 2250.0, "H200": 989.0, "H100": 989.0, "A100": 312.0},
        **{"RTX PRO 6000": 503.0, "L4": 121.0},
    },
    "float32": {"V100": 15.7, "P100": 9.3, "T4": 8.1, "P4": 5.5},
}


def process_start() -> float:
    """Return this process's start time as a time.monotonic value.

    If the start time is unknown, return the current time.
    Source: proc_pid_stat(5), field 22 (starttime, in clock ticks since boot).
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic()
    return time.monotonic() - max(age, 0.0)


@dataclass
class Clock:
    """A clock that times the phases of a run. Another process on the same machine can continue the clock."""

    last: float = field(default_factory=time.monotonic)  # all time up to this moment is counted
    current: str = START
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    repeats: bool = False  # whether an earlier start had already taken the current steps

    def begin(self, phase: str) -> None:
        """Add the elapsed time to the current phase, and start the given phase."""
        now = time.monotonic()
        self.seconds[REPEATED if self.repeats and self.current == TRAINING else self.current] += now - self.last
        self.last, self.current = now, phase

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's duration toward this phase, and then return to the previous phase."""
        before = self.current
        self.begin(name)
        yield
        self.begin(before)

    def timed(self, batches: Iterator[Item], idle_timer: IdleTimer | None) -> Iterator[Item]:
        """Yield the batches, and measure how long the device waited for each batch.

        Args:
            idle_timer: a function that starts a measurement and returns a second function, which returns the device's
                idle time in seconds. Pass None if the idle time can't be measured.
        """
        asked, idle = time.monotonic(), idle_timer and idle_timer()
        for batch in batches:
            if idle:
                waited = min(idle(), time.monotonic() - asked)
                self.seconds[DATA] += waited
                self.last += waited  # this time no longer counts for the current phase
            yield batch
            asked, idle = time.monotonic(), idle_timer and idle_timer()

    @property
    def stepping(self) -> float:
        """The total time of all steps, in seconds, including the time spent waiting for data."""
        return sum(self.seconds.get(phase, 0.0) for phase in (FIRST_STEP, REPEATED, TRAINING, DATA))

    @property
    def goodput(self) -> float:
        """The fraction of the run's time that was spent on training."""
        return self.seconds[TRAINING] / sum(self.seconds.values())

    def __str__(self) -> str:
        """Format the goodput and each phase's duration in seconds.

        Example: `goodput 83%: 259.0 of 312.1 s spent on training; start 12.3, roll call 3.0, data 4.2, ...`
        """
        rest = ", ".join(f"{phase} {taken:.1f}" for phase, taken in self.seconds.items() if phase != TRAINING)
        whole = sum(self.seconds.values())
        return f"goodput {self.goodput:.0%}: {self.seconds[TRAINING]:.1f} of {whole:.1f} s spent on training; {rest}"


class Slowest:
    """A comparison of the processes' computation times, based on the timed steps of the most recent reports."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._reports = names, deque[Sequence[float]](maxlen=COMPARED)

    def values(self, seconds: Sequence[float]) -> Values:
        """Map the slowest process to its computation time, divided by the other processes' median.

        If no process is slow, return an empty dictionary.
        """
        self._reports.append(seconds)
        *others, most = sorted(map(sum, zip(*self._reports, strict=True)))
        usual = statistics.median(others) if others else 0.0
        if len(self._reports) < COMPARED or most < SLOW * usual or not usual:
            return {}
        slowest = max(range(len(seconds)), key=lambda rank: sum(each[rank] for each in self._reports))
        return {f"{COMPUTES}{self._names[slowest]}": most / usual}


def peak_flops(device: str, precision: str) -> float:
    """Return the peak FLOPS of one GPU. If the peak is unknown (for example, for a CPU), return 0.0.

    The model FLOPs utilization (MFU) is the fraction of peak FLOPS that a model's operations reach.
    Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.

    Args:
        device: the device's name, such as `NVIDIA A100-SXM4-40GB`.
        precision: the data type of the computation, `bfloat16` or `float32`.
    """
    peaks = PEAKS.get(precision, {}).items()
    return next((peak * 1e12 for name, peak in peaks if re.search(rf"\b{name}\b", device)), 0.0)
