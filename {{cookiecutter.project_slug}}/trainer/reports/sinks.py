"""Formats reports, and writes them to the log and to the metric file of a tuning trial."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from trainer.vertex.log import say
from trainer.vertex.storage import Trial
from trainer.vertex.writable import Dispensable, writing

Values = Mapping[str, float]
Sink: TypeAlias = Callable[[int, Values], None]  # writes the values of a step

TRAIN, HELDOUT = "train/", "heldout/"
PER_SECOND = "_per_second"
PER_DEVICE = f"{TRAIN}samples{PER_SECOND}_per_device"
NOTABLE = 0.05  # share of a step's time from which a wait is reported
COMPUTES = "computes_times/"  # the prefix of a slow replica's name
STEP, COMPUTING, COMMUNICATION = f"{TRAIN}step_seconds", f"{TRAIN}computing_seconds", f"{TRAIN}communication_seconds"
# The name of a lost time -> a phrase, and the names of the times that make up the whole. The communication of only one
# step is timed.
LOSING = {
    f"{TRAIN}data_seconds": ("waiting for data", [STEP]),
    COMMUNICATION: ("communicating", [COMPUTING, COMMUNICATION]),
}
UNSHOWN = (
    *(PER_DEVICE, STEP, COMPUTING, *LOSING, f"{TRAIN}learning_rate"),
    *(f"{TRAIN}reducers_in_use", f"{TRAIN}memory_bytes"),
)


class Lines:
    """A sink that prints one log line per report. The report's numbers are fields that Cloud Logging indexes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, step: int, values: Values) -> None:
        # JSON doesn't support NaN. A line with NaN would arrive as plain text, just when a run diverges.
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        event = {"step": step, "steps": self._steps, "metric": next(iter(values), "")}
        say(f"step {step}/{self._steps}  {describe(values)}", **event, **numbers)


class MetricFile:
    """A sink that writes a tuning trial's held-out metrics to a file, under plain names such as `accuracy` and `loss`.

    The file has the format of cloudml-hypertune 0.1.0.dev6: one JSON object per metric and step, with numbers as
    strings. Each report rewrites the file in place, because Google doesn't document how Vertex AI reads it. The
    cloudml-hypertune library keeps the last hundred lines, but this class keeps the lines of the last hundred
    evaluations.

    Args:
        steps: the number of steps in the run. The tuning job uses the last step's metrics, so the trial fails only if
            these metrics can't be written.
    """

    def __init__(self, trial: Trial, steps: int) -> None:
        with writing(trial.metric_file):
            trial.metric_file.parent.mkdir(parents=True, exist_ok=True)
        self._trial, self._steps, self._place = trial, steps, Dispensable(trial.metric_file)
        self._evaluations: deque[str] = deque(maxlen=100)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        heldout = {name.removeprefix(HELDOUT): value for name, value in values.items() if name.startswith(HELDOUT)}
        if heldout:
            self._evaluations.append("".join(self._line(step, *metric) for metric in heldout.items()))
            with writing(self._trial.metric_file) if step == self._steps else self._place.writing():
                self._trial.metric_file.write_text("".join(self._evaluations), encoding="utf-8")

    def _line(self, step: int, name: str, value: float) -> str:
        entry = {"timestamp": time.time(), "trial": self._trial.id, "checkpoint_path": ""}
        return json.dumps(entry | {name: str(float(value)), "global_step": str(step)}, sort_keys=True) + "\n"


def describe(values: Values) -> str:
    """Format the most important values. Example: `loss 0.1234  accuracy 0.9722  1520 samples/s`."""
    slow = {name: value for name, value in values.items() if name.startswith(f"{TRAIN}{COMPUTES}")}
    shown = {name.removeprefix(TRAIN): values[name] for name in values if name not in (*UNSHOWN, *slow)}
    speeds = {name: value for name, value in shown.items() if name.endswith(PER_SECOND)}
    numbers = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in shown.items()}
    parts = [f"{name.replace('/', ' ')} {value}" for name, value in numbers.items() if name not in speeds]
    parts += [f"{value:.0f} {name.removesuffix(PER_SECOND)}/s" for name, value in speeds.items()]
    for name, times in slow.items():
        parts += [f"{name.rpartition('/')[2]} takes {times:.1f} times as long to compute as the others"]
    for name, (doing, whole) in LOSING.items() if not slow else ():  # the other replicas wait for the slow one
        share = min(values.get(name, 0.0) / (sum(values.get(part, 0.0) for part in whole) or math.inf), 1.0)
        parts += [f"{share:.0%} {doing}"] if share >= NOTABLE else []
    return "  ".join(parts)


def sinks(logs: Path, steps: int, trial: Trial | None = None) -> tuple[Sink, ...]:
    """Return the sinks for the chief's process. If the run is a tuning trial, pass it as `trial`."""
    from trainer.reports.curves import TensorBoard  # takes a tenth of a second, and only the chief writes curves

    of_trial = (MetricFile(trial, steps).write,) if trial else ()
    return TensorBoard(logs).write, Lines(steps).write, *of_trial


def last_reported(logs: Path) -> int:
    """Return the last step in a folder's TensorBoard curves. If the folder doesn't contain curves, return 0."""
    files = [path for path in logs.glob("events.out.tfevents.*") if path.is_file()]
    if not files:
        return 0
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # the import takes half a second

    return max((event.step for file in files for event in EventFileLoader(str(file)).Load()), default=0)
