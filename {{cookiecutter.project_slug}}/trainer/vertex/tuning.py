"""The metric file of a trial: its held-out metrics, from which the service takes the search's metric."""

import json
import time
from collections import deque
from collections.abc import Mapping

from trainer.vertex.storage import Trial
from trainer.vertex.writable import Dispensable, writing

HELDOUT = "heldout/"  # with which the names of these metrics begin in the reports


class MetricFile:
    """The held-out metrics of a tuning trial, under their plain names: `accuracy`, `loss`.

    The format is that of cloudml-hypertune 0.1.0.dev6: one JSON object a metric and step, numbers as text, in a file
    that is written anew each time, and in place: nobody documents how the service follows it. The library keeps the
    last hundred lines, and we those of the last hundred evaluations.

    Args:
        steps: of the run. The search takes the metrics of the last one, so only their loss ends the trial.
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
