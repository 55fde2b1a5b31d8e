"""Write a table of the measured and predicted values, and their differences, to a page."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cell import Cell

BYTES_APART, SECONDS_APART = 1.0, 10.0  # percent; limits for the planner's errors
BEGIN, END = "<!-- begin table -->\n", "<!-- end table -->\n"
HEAD = """\
| Mbit/s | Machines | All-reduce by | MiB sent | predicted | error, % | Seconds | predicted | error, % |
|---:|---:|---|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Pair:
    """The measured value and the predicted value of a quantity."""

    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The difference in percent of the prediction. If the measured value is larger, the difference is positive."""
        return 100 * (self.measured / self.predicted - 1)


@dataclass(frozen=True)
class Row:
    """The measurements and predictions for a cell."""

    cell: Cell
    sent: Pair  # bytes that the busiest machine sent
    seconds: Pair


def table(rows: Sequence[Row]) -> str:
    return HEAD + "".join(f"| {' | '.join(texts(row))} |\n" for row in rows)


def line(row: Row) -> str:
    """Return the text of a row for a terminal."""
    sent, _, sent_error, seconds, _, seconds_error = texts(row)[3:]
    return f"{row.cell}: {sent} MiB ({sent_error} %), {seconds} s ({seconds_error} %)"


def texts(row: Row) -> list[str]:
    """Return the cells of a row for the table."""
    sent = [f"{size / 2**20:.2f}" for size in (row.sent.measured, row.sent.predicted)]
    seconds = [f"{value:.3f}" for value in (row.seconds.measured, row.seconds.predicted)]
    errors = [f"{pair.error:+.2f}" for pair in (row.sent, row.seconds)]
    return [str(row.cell.mbit), str(row.cell.machines), row.cell.way, *sent, errors[0], *seconds, errors[1]]


def too_far(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each row whose difference from the prediction exceeds the limit for the planner."""
    return [
        f"out of bounds: {line(row)}; repeat the measurement on an idle machine"
        for row in rows
        if abs(row.sent.error) > BYTES_APART or abs(row.seconds.error) > SECONDS_APART
    ]


def around(path: Path) -> tuple[str, str]:
    """Return the text before and after the page's table. Raises SystemExit if the page doesn't contain the markers."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"error: {path}: the page must contain the lines {BEGIN.strip()} and {END.strip()}")
    return before + begin, end + after


def write(path: Path, rows: Sequence[Row]) -> None:
    """Replace the text between the page's markers, and draw the chart of the same name."""
    before, after = around(path)
    path.write_text(f"{before}\n{summary(rows)}\n{table(rows)}\n{after}", encoding="utf-8")
    importlib.import_module("chart").draw(rows, path.with_suffix(".svg"))  # only this function requires matplotlib


def summary(rows: Sequence[Row]) -> str:
    cell = rows[0].cell
    sent = max(abs(row.sent.error) for row in rows)
    seconds = max(abs(row.seconds.error) for row in rows)
    return (
        f"Each vector has {cell.mib} MiB. "
        f"Each number is the median of {cell.repetitions - 1} repetitions after a warm-up. "
        f"The largest error in the {len(rows)} rows is {sent:.2f}% for bytes and {seconds:.1f}% for seconds.\n"
    )
