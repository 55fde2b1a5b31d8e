"""Speed of a run: where its seconds go, which replica is slow, and which share of the GPUs' peak the model uses.

Each second belongs to one phase, and the share that trained is the goodput. A run goes through START, FIRST_STEP,
TRAINING and EXPORT; the others interrupt these. So all phases together are the time since the program began.
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
LAST_CHECKPOINT = "last checkpoint"  # nothing trains any more while it is written
REPEATED = "repeated"  # steps that a start before this one had taken, and lost
IdleTimer = Callable[[], Callable[[], float]]
Item = TypeVar("Item")
COMPARED = 5  # reports whose timed steps are compared: a single one may have been held up by chance
SLOW = 1.5  # times the median of the others
# 10^12 operations a second, dense, by a word of the GPU's name, in the precision that the trainer uses there.
# Source: NVIDIA's data sheets.
PEAKS = {
    "bfloat16": {
        **{"GB200": 2500.0, "B200": 2250.0, "H200": 989.0, "H100": 989.0, "A100": 312.0},
        **{"RTX PRO 6000": 503.0, "L4": 121.0},
    },
    "float32": {"V100": 15.7, "P100": 9.3, "T4": 8.1, "P4": 5.5},
}


def process_start() -> float:
    """Time at which this process began, on the clock of time.monotonic; now, where the system does not tell.

    Source: proc_pid_stat(5), field 22, in clock ticks since the boot.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic()
    return time.monotonic() - max(age, 0.0)


@dataclass
class Clock:
    """Seconds of each phase of a run; another process of this machine may go on with it."""

    last: float = field(default_factory=time.monotonic)  # until then all is counted
    current: str = START
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    repeats: bool = False  # whether the present steps were taken before

    def begin(self, phase: str) -> None:
        """Count the time until now, and go on to this phase."""
        now = time.monotonic()
        self.seconds[REPEATED if self.repeats and self.current == TRAINING else self.current] += now - self.last
        self.last, self.current = now, phase

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block as this phase's, then go on with the phase before."""
        before = self.current
        self.begin(name)
        yield
        self.begin(before)

    def timed(self, batches: Iterator[Item], idle_timer: IdleTimer | None) -> Iterator[Item]:
        """Yield the batches and count how long the device waited for each.

        Args:
            idle_timer: returns a function that returns for how many seconds the device has had nothing to do; None
                where nobody can tell.
        """
        asked, idle = time.monotonic(), idle_timer and idle_timer()
        for batch in batches:
            if idle:
                waited = min(idle(), time.monotonic() - asked)
                self.seconds[DATA] += waited
                self.last += waited  # it is no time of the present phase any more
            yield batch
            asked, idle = time.monotonic(), idle_timer and idle_timer()

    @property
    def stepping(self) -> float:
        """Seconds of all steps, with their waits for data."""
        return sum(self.seconds.get(phase, 0.0) for phase in (FIRST_STEP, REPEATED, TRAINING, DATA))

    @property
    def goodput(self) -> float:
        """Share of the time that trained."""
        return self.seconds[TRAINING] / sum(self.seconds.values())

    def __str__(self) -> str:
        """`goodput 83 %: of 312.1 s 259.0 trained; start 12.3, roll call 3.0, first step 9.1, data 4.2, ...`"""
        rest = ", ".join(f"{phase} {taken:.1f}" for phase, taken in self.seconds.items() if phase != TRAINING)
        whole = sum(self.seconds.values())
        return f"goodput {self.goodput:.0%}: of {whole:.1f} s {self.seconds[TRAINING]:.1f} trained; {rest}"


class Slowest:
    """Comparison of the seconds that processes, by these names, compute in the timed steps of the last reports."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._reports = names, deque[Sequence[float]](maxlen=COMPARED)

    def values(self, seconds: Sequence[float]) -> Values:
        """Return how many times as long as the others the slowest computes, by its name; empty if none is slow."""
        self._reports.append(seconds)
        *others, most = sorted(map(sum, zip(*self._reports, strict=True)))
        usual = statistics.median(others) if others else 0.0
        if len(self._reports) < COMPARED or most < SLOW * usual or not usual:
            return {}
        slowest = max(range(len(seconds)), key=lambda rank: sum(each[rank] for each in self._reports))
        return {f"{COMPUTES}{self._names[slowest]}": most / usual}


def peak_flops(device: str, precision: str) -> float:
    """Return the peak of one GPU, in operations a second; 0.0 where it is not known, as of a CPU.

    What a model's own operations make of it is its MFU, the model FLOPs utilization.
    Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.

    Args:
        device: `NVIDIA A100-SXM4-40GB`.
        precision: `bfloat16` or `float32`.
    """
    peaks = PEAKS.get(precision, {}).items()
    return next((peak * 1e12 for name, peak in peaks if re.search(rf"\b{name}\b", device)), 0.0)
