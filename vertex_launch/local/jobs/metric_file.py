"""The file in which a trial reports its metrics, in cloudml-hypertune's format: a line of JSON for a metric at a step.

The library writes the file anew for each report, with its last 100 lines; other programs may only add to it.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from vertex_launch import jsons
from vertex_launch.local.jobs.search import Measurement
from vertex_launch.regular_file import LARGEST, open_regular

HEAD = 256  # bytes, with a time of the first report; a file that begins otherwise than before was written anew
CHUNK = 2**22  # bytes of a running trial to read at once: 0.3 s
CURE = 'write lines such as {"global_step": 1, "timestamp": 0.5, "loss": 0.25}'


class MetricFile:
    """The measurements of these metrics that a trial has reported; each line is read once."""

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path, self._ids = path, ids
        self._begin()

    def _begin(self) -> None:
        self._head, self._position, self._lines = b"", 0, 0
        self._measurements = list[Measurement]()
        self.fault = ""  # of the file, or of its first line that is no report

    def read(self, ended: bool = False) -> list[Measurement]:
        """Return all measurements until now, in the order of their lines; of an ended trial, those of all lines."""
        try:
            with contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
                head = file.read(HEAD)
                if not head.startswith(self._head):
                    self._begin()
                self._head = head
                while self._read_chunk(file, ended) and ended:
                    pass
        except OSError as error:
            self.fault = f"its metric file cannot be read ({error.strerror}); {CURE}"
        return self._measurements

    def _read_chunk(self, file: BinaryIO, ended: bool) -> bool:
        """Read the next lines; returns whether there may be more."""
        file.seek(self._position)
        data = file.read(CHUNK)
        full = len(data) == CHUNK
        # The end of the data is the end of a line where nobody adds to it, or where the line is longer than a chunk.
        end = data.rfind(b"\n") + 1 or (len(data) if full else 0)
        end = len(data) if ended and not full else end
        for line in data[:end].splitlines():
            self._lines += 1
            self._add(line)
        self._position += end
        if self._position > LARGEST:
            self.fault = self.fault or f"its metric file is larger than {LARGEST // 2**20} MiB; report less often"
        return full and self._position <= LARGEST

    def _add(self, line: bytes) -> None:
        """Add the metrics of a line to the measurement of its step."""
        try:
            report, steps = _measurement(line, self._ids), self._measurements
        except ValueError as error:
            self.fault = self.fault or f"line {self._lines} of its metric file {error}; {CURE}"
            return
        if report and steps and steps[-1].step == report.step and steps[-1].metrics.keys().isdisjoint(report.metrics):
            report = Measurement(report.step, report.time, {**steps.pop().metrics, **report.metrics})
        if report:
            steps.append(report)


def _measurement(line: bytes, ids: Sequence[str]) -> Measurement | None:
    """Return the report of a line, None if it has no such metric; raises ValueError with the line's fault."""
    try:
        entry = jsons.loads(line or b"{}")
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError("is no JSON object")
    metrics = {id: _number(entry, id) for id in ids if id in entry}
    return Measurement(_step(entry), _time(entry), metrics) if metrics else None


def _step(entry: Mapping[str, Any]) -> int:
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        if -(2**63) <= (step := int(entry["global_step"])) < 2**63:  # as the API counts
            return step
    raise ValueError("has no whole number of 64 bits as global_step")


def _time(entry: Mapping[str, Any]) -> float:
    if not math.isfinite(time := _number(entry, "timestamp")):
        raise ValueError("has no number as timestamp")
    return time


def _number(entry: Mapping[str, Any], key: str) -> float:
    try:
        return float(str(entry[key]))
    except (KeyError, ValueError):
        raise ValueError(f"has no number as {key}") from None
