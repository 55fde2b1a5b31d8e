"""The replica that computes longer than the others, which wait for it in each step as if they communicated."""

import statistics
from collections import deque
from collections.abc import Sequence

from trainer.reports.sinks import COMPUTES, Values

REPORTS = 5  # whose timed steps are compared: a single one may have been held up by chance
SLOW = 1.5  # times the median of the others


class Slowest:
    """Comparison of the seconds that processes, by these names, compute in the timed steps of the last reports."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._reports = names, deque[Sequence[float]](maxlen=REPORTS)

    def values(self, seconds: Sequence[float]) -> Values:
        """Return how many times as long as the others the slowest computes, by its name; empty if none is slow."""
        self._reports.append(seconds)
        *others, most = sorted(map(sum, zip(*self._reports, strict=True)))
        usual = statistics.median(others) if others else 0.0
        if len(self._reports) < REPORTS or most < SLOW * usual or not usual:
            return {}
        slowest = max(range(len(seconds)), key=lambda rank: sum(each[rank] for each in self._reports))
        return {f"{COMPUTES}{self._names[slowest]}": most / usual}
