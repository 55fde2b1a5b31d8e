"""Destinations of reports: curves for TensorBoard, log lines, and the metric of a search's trial."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainer import optional
from trainer.vertex.log import say
from trainer.vertex.storage import Trial
from trainer.vertex.writable import writing

Values = Mapping[str, float]

TRAIN, HELDOUT = "train/", "heldout/"
PER_SECOND = "_per_second"
PER_DEVICE = f"{TRAIN}samples{PER_SECOND}_per_device"
NOTABLE = 0.05  # of a step
LOSING = {f"{TRAIN}data_seconds": "waiting for data", f"{TRAIN}communication_seconds": "communicating"}
UNSHOWN = (
    *(PER_DEVICE, f"{TRAIN}step_seconds", *LOSING, f"{TRAIN}learning_rate"),
    *(f"{TRAIN}reducers_in_use", f"{TRAIN}memory_bytes"),
)


class Sink(Protocol):
    """A destination of reports."""

    def write(self, step: int, values: Values) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars, one curve a name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventFileWriter(str(folder))

    def write(self, step: int, values: Values) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        with writing(self._folder):
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
            self._writer.flush()  # a run that is cut off has told how far it came

    def close(self) -> None:
        with writing(self._folder):
            self._writer.close()


class Lines:
    """One log line a report; its numbers are fields that Cloud Logging indexes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, step: int, values: Values) -> None:
        # JSON has no NaN: the line would arrive as plain text just when a run diverges.
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        say(f"step {step}/{self._steps}  {describe(values)}", **{"step": step, **numbers})

    def close(self) -> None:
        """Nothing is kept open."""


def describe(values: Values) -> str:
    """Format the values worth a glance: `loss 0.1234  accuracy 0.9722  1520 samples/s`."""
    shown = {name.removeprefix(TRAIN): value for name, value in values.items() if name not in UNSHOWN}
    speeds = {name: value for name, value in shown.items() if name.endswith(PER_SECOND)}
    numbers = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in shown.items()}
    parts = [f"{name.replace('/', ' ')} {value}" for name, value in numbers.items() if name not in speeds]
    parts += [f"{value:.0f} {name.removesuffix(PER_SECOND)}/s" for name, value in speeds.items()]
    for name, doing in LOSING.items():
        share = min(values.get(name, 0.0) / values.get(f"{TRAIN}step_seconds", math.inf), 1.0)
        parts += [f"{share:.0%} {doing}"] if share >= NOTABLE else []
    return "  ".join(parts)


def sinks(logs: Path, steps: int, trial: Trial | None = None) -> tuple[Sink, ...]:
    """Return the sinks of the chief's process; `trial` is its part in a search, if it has one."""
    of_trial = (optional.load("vertex.tuning", "a trial of a search").MetricFile(trial),) if trial else ()
    return TensorBoard(logs), Lines(steps), *of_trial


def last_reported(logs: Path) -> int:
    """Return the last step of the curves in this folder; 0 if there are none."""
    files = [*logs.glob("events.out.tfevents.*")]
    if not files:
        return 0
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # which takes half a second

    return max((event.step for file in files for event in EventFileLoader(str(file)).Load()), default=0)
