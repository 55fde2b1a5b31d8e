"""Reports of a run: curves for TensorBoard, one JSON line per report in a cluster, a progress bar on a terminal.

Cloud Logging parses a JSON line on stdout: `message` is what people see, `severity` its colour, and
every other key can be searched for.
Source: Cloud Logging documentation, "Structured logging", 2026.
"""

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import rich.progress
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainer import optional
from trainer.errors import TrainerError
from trainer.goodput import DATA, EVALUATION, REPORTS, START, TRAINING, Stopwatch
from trainer.storage import Trial
from trainer.writable import writing

Values = Mapping[str, float]

HELDOUT = "heldout/"


def say(message: str, severity: str = "INFO", /, **fields: Any) -> None:
    """Print one sentence: plain on a terminal, a JSON line otherwise. Threads may call it at the same time."""
    if sys.stdout.isatty():
        rich.print({"WARNING": "[yellow]", "ERROR": "[red]"}.get(severity, "") + rich.markup.escape(message))
    else:
        # In one write, for another thread that says something at the same time: print writes the line's end by itself.
        sys.stdout.write(_json_line(message, severity, **fields))
        sys.stdout.flush()


def say_last(message: str, severity: str = "INFO") -> None:
    """Print one sentence in the handler of a signal that ends this process.

    Past sys.stdout: the signal may have come within a write, and Python lets no other one into the same buffer.
    """
    line = f"{message}\n" if sys.stdout.isatty() else _json_line(message, severity)
    os.write(sys.stdout.fileno(), line.encode())


def say_lines(text: str, severity: str = "INFO") -> None:
    """Print each line of a text as a sentence of its own."""
    for line in text.splitlines():
        say(line, severity)


def warn(message: str) -> None:
    say(message, "WARNING")


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


class JsonLines:
    """What Cloud Logging shows and indexes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, step: int, values: Values) -> None:
        # JSON has no NaN: the line would arrive as plain text just when a run diverges.
        numbers = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        say(f"step {step}/{self._steps}  {describe(values)}", **{"step": step, **numbers})

    def close(self) -> None:
        pass


class Bar:
    """A progress bar with the newest values."""

    def __init__(self, steps: int, start: int) -> None:
        columns = (
            *rich.progress.Progress.get_default_columns(),
            rich.progress.TextColumn("{task.fields[values]}"),
        )
        self._progress = rich.progress.Progress(*columns)
        self._task = self._progress.add_task("training", total=steps, completed=start, values="")
        self._progress.start()

    def write(self, step: int, values: Values) -> None:
        if f"{HELDOUT}loss" in values:
            self._progress.console.print(f"step {step}  {describe(values)}")
        else:
            self._progress.update(self._task, completed=step, values=describe(values))

    def close(self) -> None:
        self._progress.stop()


def describe(values: Values) -> str:
    """The values worth a glance: `loss 0.1234  accuracy 0.9722  1520 samples/s`."""
    shown = {name.removeprefix("train/"): value for name, value in values.items() if name not in UNSHOWN}
    speeds = {name: value for name, value in shown.items() if name.endswith(PER_SECOND)}
    parts = [f"{name.replace('/', ' ')} {value:.4f}" for name, value in shown.items() if name not in speeds]
    parts += [f"{value:.0f} {name.removesuffix(PER_SECOND)}/s" for name, value in speeds.items()]
    for name, doing in LOSING.items():
        share = min(values.get(name, 0.0) / values.get("train/step_seconds", math.inf), 1.0)
        parts += [f"{share:.0%} {doing}"] if share >= NOTABLE else []
    return "  ".join(parts)


NOTABLE = 0.05  # of a step
LOSING = {"train/data_seconds": "waiting for data", "train/communication_seconds": "communicating"}
PER_SECOND = "_per_second"
PER_DEVICE = f"train/samples{PER_SECOND}_per_device"
UNSHOWN = (
    *(PER_DEVICE, "train/step_seconds", *LOSING, "train/learning_rate"),
    *("train/reducers_in_use", "train/memory_bytes"),
)


class Telemetry:
    """Reports of one run, from the end of its start. Only the chief's process has sinks; the others may call it, too.

    Args:
        start: number of steps that were finished before this run, as after a resume.
        per_step: what a step takes: {"samples": 96, "tokens": 6144}.
        device_count: devices that share it.
        watch: which the loop tells where its time goes.
        furthest: the last step that a start before this one has reported.
        flops: operations of a step as a share of what the devices are built for in a second; 0 where unknown.
    """

    def __init__(
        self,
        sinks: tuple[Sink, ...],
        *,
        start: int,
        per_step: Mapping[str, int],
        device_count: int,
        watch: Stopwatch | None = None,
        furthest: int = 0,
        flops: float = 0.0,
    ) -> None:
        self._sinks = sinks
        self._reported = start
        self._per_step = per_step
        self._device_count = device_count
        self._watch = watch or Stopwatch()
        self._watch.repeats = start < furthest
        self._furthest, self._flops = furthest, flops
        self._stepping, self._waiting = self._watch.stepping, self._watch.seconds.get(DATA, 0.0)

    def report(self, step: int, values: Values) -> None:
        """Training values since the last report; `step` counts finished steps.

        Raises:
            TrainerError: the loss is no number any more. In all processes, which are told the same values.
        """
        self._watch.lap(TRAINING)  # a GPU has worked until the values were there
        steps, watch = step - self._reported, self._watch
        seconds = (watch.stepping - self._stepping) / steps
        speed = {f"train/{name}{PER_SECOND}": count / seconds for name, count in self._per_step.items()}
        of_each = self._per_step["samples"] / seconds / self._device_count
        speed |= {"train/step_seconds": seconds, PER_DEVICE: of_each}
        if DATA in watch.seconds:  # else nobody knows how long the device has waited
            speed["train/data_seconds"] = (watch.seconds[DATA] - self._waiting) / steps
        speed |= {"train/mfu": self._flops / seconds} if self._flops else {}
        self._write(step, {f"train/{name}": value for name, value in values.items()} | speed)
        if math.isnan(values.get("loss", 0.0)):
            raise TrainerError(
                f"the loss is no number any more, since a step after {self._reported}; lower --learning-rate or --clip,"
                " or look for a sample or an operation that gives none"
            )
        self._reported, self._stepping, self._waiting = step, watch.stepping, watch.seconds.get(DATA, 0.0)
        watch.lap(REPORTS)
        watch.repeats = step < self._furthest

    def evaluation(self, step: int, values: Values) -> None:
        """What was held out, scored since the last lap."""
        self._watch.lap(EVALUATION)
        self._write(step, {f"{HELDOUT}{name}": value for name, value in values.items()})

    def _write(self, step: int, values: Values) -> None:
        for sink in self._sinks:
            sink.write(step, values)

    def __enter__(self) -> "Telemetry":
        self._watch.lap(START)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            sink.close()


def say_goodput(watch: Stopwatch) -> None:
    """Print where the time of the run went."""
    say(str(watch), goodput=watch.goodput, seconds=dict(watch.seconds))


def furthest(logs: Path) -> int:
    """The last step that the curves there tell of; 0 if there are none."""
    files = [*logs.glob("events.out.tfevents.*")]
    if not files:
        return 0
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # which takes half a second

    return max((event.step for file in files for event in EventFileLoader(str(file)).Load()), default=0)


def sinks(logs: Path, steps: int, start: int, trial: Trial | None = None) -> tuple[Sink, ...]:
    """The sinks of the chief's process; `start` is the step it resumes at, `trial` what it is in a tuning job."""
    show = Bar(steps, start) if sys.stdout.isatty() else JsonLines(steps)
    of_trial = (optional.load("tuning", "a trial of a search").MetricFile(trial),) if trial else ()
    return TensorBoard(logs), show, *of_trial


def _json_line(message: str, severity: str, **fields: Any) -> str:
    return json.dumps({"severity": severity, "message": message, **fields}) + "\n"
