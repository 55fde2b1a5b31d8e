"""The file in which a trial reports its metrics, in cloudml-hypertune's format: a line of JSON for a metric at a step.

The library writes the file anew for each report, with its last 100 lines; other programs may only add to it.
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

HEAD = 256  # bytes, with a time of the first report; a file that begins otherwise than before was written anew
CHUNK = 2**22  # bytes of a running trial to read at once: 0.3 s
CURE = 'write lines such as {"global_step": 1, "timestamp": 0.5, "loss": 0.25}'
NO_METRICS = ("checkpoint_path", "global_step", "timestamp", "trial")  # keys of a line
SHOWN, LONGEST = 3, 40  # names, and characters of one or of a value


class MetricFile:
    """The measurements of these metrics that a trial has reported; each line is read once."""

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path, self._ids = path, ids
        self._before, self._measurements = list[Measurement](), list[Measurement]()
        self._begin()

    def _begin(self) -> None:
        self._before = _joined(self._before, self._measurements)  # of the files in whose place there is another one
        self._head, self._position, self._lines = b"", 0, 0
        self._measurements = list[Measurement]()
        self._names = dict[str, None]()  # of all that has been reported
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
        return _joined(self._before, self._measurements)

    def why_none(self) -> str:
        """Return why no measurement has all metrics, and what mends that."""
        missing = [id for id in self._ids if id not in self._names]
        seen = [name[:LONGEST] for name in self._names][:SHOWN]
        fault = f"no metric {listed(missing or self._ids, 'or')} was reported"
        if missing and seen:
            meant = nearest(missing[0], [name for name in self._names if name not in self._ids])
            cure = f"Write metricId: {meant}, or report" if meant else "Report"
            return f"{fault}; {listed(seen, 'and')} {'was' if len(seen) == 1 else 'were'}. {cure} {missing[0]}."
        if self.fault or not missing:
            return f"{fault}{f'; {self.fault}' if self.fault else ' at one step. Report all at each step.'}"
        for file in self.path.parent.glob(f"*{self.path.suffix}"):
            if MetricFile(file, self._ids).read(ended=True):
                return f"{fault} by the chief; {file.stem} reported it. Report from {self.path.stem}."
        # That no other file counts is inferred: the service sets the variable, and has a folder for that file alone.
        # Source: github.com/GoogleCloudPlatform/cloudml-hypertune, hypertune.py and issue 6.
        nowhere = "the chief did not write the file that CLOUD_ML_HP_METRIC_FILE names; /tmp/hypertune does not count"
        return f"{fault}: {nowhere}. Report with cloudml-hypertune, or {CURE} there"

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
            (names, report), steps = _measurement(line, self._ids), self._measurements
        except ValueError as error:
            self.fault = self.fault or f"line {self._lines} of its metric file {error}; {CURE}"
            return
        self._names |= names
        if report and steps and steps[-1].step == report.step and steps[-1].metrics.keys().isdisjoint(report.metrics):
            report = Measurement(report.step, report.time, {**steps.pop().metrics, **report.metrics})
        if report:
            steps.append(report)


def _joined(before: list[Measurement], now: list[Measurement]) -> list[Measurement]:
    """Put what was read of a file in front of what is read of its successor, which may begin within a step."""
    if not before or not now:
        return now or before
    kept = [one for one in before if one.step < now[0].step]
    cut = next((one.metrics for one in before if one.step == now[0].step), {})
    return [*kept, replace(now[0], metrics={**cut, **now[0].metrics}), *now[1:]]


def _measurement(line: bytes, ids: Sequence[str]) -> tuple[dict[str, None], Measurement | None]:
    """Return the names in a line, and its report, None if it has no such metric; raises ValueError with its fault."""
    try:
        entry = jsons.loads(line or b"{}")
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError("is no JSON object")
    names = dict.fromkeys(key for key in entry if key not in NO_METRICS and key.isprintable())
    metrics = {id: _number(entry, id) for id in ids if id in entry}
    return names, Measurement(_step(entry), _time(entry), metrics) if metrics else None


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
        other = f", but {json.dumps(entry[key])[:LONGEST]}" if key in entry else ""
        raise ValueError(f"has no number as {key}{other}") from None
