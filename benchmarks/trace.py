"""Draw one step of a trace that --profile wrote. The step trains the model `small` in two processes.

    python benchmarks/trace.py PROJECT docs/trace.png

Run this program with the Python of a PyTorch project. The picture shows the chief's forward pass, backward pass,
all-reduces and optimizer. The program finds these events by their names in PyTorch's profiler.
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from step import run_job

FLAGS = ["--size", "small", "--global-batch", "64", "--steps", "8", "--warmup", "2", "--profile", "5:7"]
STEP = "ProfilerStep#6"
# The rows of the picture, with the prefix of each row's events.
ROWS = {
    "forward": "DistributedDataParallel.forward",
    "backward": "autograd::engine::evaluate_function",
    "all-reduce": "gloo:all_reduce",
    "optimizer": "Optimizer.step",
}
COLORS = dict(zip(ROWS, ("#4285f4", "#1a56c4", "#ea8600", "#34a853"), strict=True))


def main(project: Path, picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_job(["python", "-m", "trainer.task", *FLAGS], project, Path(folder))
        (path,) = Path(folder).glob(".vertex/gcs/*/*/logs/profile/*.json.gz")
        with gzip.open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    draw(events, picture)


def draw(events: list[dict[str, Any]], picture: Path) -> None:
    (step,) = (event for event in events if event["name"] == STEP and event["cat"] == "user_annotation")
    figure, axes = pyplot.subplots(figsize=(9, 2.2), dpi=150)
    for number, (row, beginning) in enumerate(ROWS.items()):
        bars = [*spans(events, beginning, step["ts"], step["ts"] + step["dur"])]
        axes.broken_barh(bars, (number - 0.38, 0.76), color=COLORS[row])
        axes.text(bars[-1][0] + bars[-1][1] + 4, number, f"{sum(length for _, length in bars):.0f} ms", va="center")
    axes.set_yticks(range(len(ROWS)), ROWS)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * step["dur"] / 1000)
    axes.set_xlabel("milliseconds of one step")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.tight_layout()
    figure.savefig(picture)


def spans(events: list[dict[str, Any]], beginning: str, start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the start and duration of events with this prefix, in milliseconds. Adjacent events are merged."""
    mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith(beginning))
    mine = [(first, last) for first, last in mine if start <= first < end]
    while mine:
        first, last = mine.pop(0)
        while mine and mine[0][0] <= last + 200:  # microseconds
            last = max(last, mine.pop(0)[1])
        yield (first - start) / 1000, (last - first) / 1000


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
