"""Reads a trial's metric file. In cloudml-hypertune's format, each JSON line contains one metric at one step.

The cloudml-hypertune library rewrites the file for each report and keeps only the last 100 lines. Some other programs
only append to the file.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from vertex_launch.errors import listed, nearest
from vertex_launch.local.jobs.search import Measurement
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.regular_file import LARGEST, open_regular

HEAD = 256  # bytes that contain the first report's time; if they change, the file was rewritten
CHUNK = 2**22  # how many bytes to read at a time while a trial runs; reading them takes 0.3 s
CURE = 'write lines such as {"global_step": 1, "timestamp": 0.5, "loss": 0.25}'
NO_METRICS = ("checkpoint_path", "global_step", "timestamp", "trial")  # keys of a line that aren't metrics
SHOWN, LONGEST = 3, 40  # the maximum numbers of names, and of characters in a name or value


class MetricFile:
    """The measurements of selected metrics that a trial reported. Each line of the metric file is read only once."""

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path, self._ids = path, ids
        self._before, self._measurements = list[Measurement](), list[Measurement]()
        self._begin()

    def _begin(self) -> None:
        self._before = _joined(self._before, self._measurements)  # the measurements of files that were replaced
        self._head, self._position, self._lines = b"", 0, 0
        self._measurements = list[Measurement]()
        self._names = dict[str, None]()  # the names in all reports
        self.fault = ""  # the error of the file or of the first line that isn't a report

    def read(self, ended: bool = False) -> list[Measurement]:
        """Return all measurements in the order of their lines. If the trial has ended, read the entire file."""
        try:
            with contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
                head = file.read(HEAD)
                if not head.startswith(self._head):
                    self._begin()
                self._head = head
                while self._read_chunk(file, ended) and ended:
                    pass
        except OSError as error:
            self.fault = f"the trial's metric file can't be read ({error.strerror}); {CURE}"
        return _joined(self._before, self._measurements)

    def why_none(self) -> str:
        """Return a message that explains why no measurement contains all metrics and how to fix the problem."""
        missing = [id for id in self._ids if id not in self._names]
        seen = [name[:LONGEST] for name in self._names][:SHOWN]
        fault = f"no metric {listed(missing or self._ids, 'or')} was reported"
        if missing and seen:
            meant = nearest(missing[0], [name for name in self._names if name not in self._ids])
            cure = f"Set metricId to {meant}, or report" if meant else "Report"
            return f"{fault}, but {listed(seen, 'and')} {'was' if len(seen) == 1 else 'were'}. {cure} {missing[0]}."
        if self.fault or not missing:
            return (
                f"{fault}{f': {self.fault}' if self.fault else ' at the same step. Report all metrics at each step.'}"
            )
        for file in self.path.parent.glob(f"*{self.path.suffix}"):
            if MetricFile(file, self._ids).read(ended=True):
                return f"{fault} by the chief, only by {file.stem}. Report the metric from {self.path.stem}."
        # Inferred: other files aren't read, because the service sets the variable and provides a folder only for this
        # file.
        # Source: github.com/GoogleCloudPlatform/cloudml-hypertune, hypertune.py and issue 6.
        nowhere = "the chief didn't write to CLOUD_ML_HP_METRIC_FILE, and files in /tmp/hypertune are ignored"
        return f"{fault}: {nowhere}. Use cloudml-hypertune, or {CURE} to this file"

    def _read_chunk(self, file: BinaryIO, ended: bool) -> bool:
        """Read the next chunk of the file. Return whether the file might contain more lines."""
        file.seek(self._position)
        data = file.read(CHUNK)
        full = len(data) == CHUNK
        # The data ends with a complete line if no program is still writing, or if the line is longer than a chunk.
        end = data.rfind(b"\n") + 1 or (len(data) if full else 0)
        end = len(data) if ended and not full else end
        for line in data[:end].splitlines():
            self._lines += 1
            self._add(line)
        self._position += end
        if self._position > LARGEST:
            self.fault = (
                self.fault
                or f"the trial's metric file is larger than {LARGEST // 2**20} MiB; report metrics less often"
            )
        return full and self._position <= LARGEST

    def _add(self, line: bytes) -> None:
        """Add a line's metrics to the measurement for its step."""
        try:
            (names, report), steps = _measurement(line, self._ids), self._measurements
        except ValueError as error:
            self.fault = self.fault or f"line {self._lines} of the trial's metric file {error}; {CURE}"
            return
        self._names |= names
        if report and steps and steps[-1].step == report.step and steps[-1].metrics.keys().isdisjoint(report.metrics):
            report = Measurement(report.step, report.time, {**steps.pop().metrics, **report.metrics})
        if report:
            steps.append(report)


def _joined(before: list[Measurement], now: list[Measurement]) -> list[Measurement]:
    """Combine the measurements of a metric file with those of the file that replaced it.

    The new file might begin in the middle of a step.
    """
    if not before or not now:
        return now or before
    kept = [one for one in before if one.step < now[0].step]
    cut = next((one.metrics for one in before if one.step == now[0].step), {})
    return [*kept, replace(now[0], metrics={**cut, **now[0].metrics}), *now[1:]]


def _measurement(line: bytes, ids: Sequence[str]) -> tuple[dict[str, None], Measurement | None]:
    """Return a line's metric names and measurement.

    The measurement is None if the line doesn't contain any metric in `ids`. Raises ValueError if the line isn't valid.
    """
    try:
        entry = jsons.loads(line or b"{}")
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError("isn't a JSON object")
    names = dict.fromkeys(key for key in entry if key not in NO_METRICS and key.isprintable())
    metrics = {id: _number(entry, id) for id in ids if id in entry}
    return names, Measurement(_step(entry), _time(entry), metrics) if metrics else None


def _step(entry: Mapping[str, Any]) -> int:
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        if -(2**63) <= (step := int(entry["global_step"])) < 2**63:  # the range of the API
            return step
    raise ValueError("has no 64-bit integer as global_step")


def _time(entry: Mapping[str, Any]) -> float:
    if not math.isfinite(time := _number(entry, "timestamp")):
        raise ValueError("has no number as timestamp")
    return time


def _number(entry: Mapping[str, Any], key: str) -> float:
    try:
        return float(str(entry[key]))
    except (KeyError, ValueError):
        other = f", but {json.dumps(entry[key])[:LONGEST]}" if key in entry else ""
        raise ValueError(f"has no number as {key}{other}") from None
