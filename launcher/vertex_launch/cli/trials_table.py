"""Formats the trials of a tuning job as a table."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from vertex_launch.job.job_resource import Resource, trials
from vertex_launch.untrusted.printable import printable

UNFINISHED = {"REQUESTED": "waits", "ACTIVE": "runs", "STOPPING": "is being stopped"}


def table(search: Resource, runs: Iterable[Resource]) -> Table:
    """Return a table with a row for each trial. The best trial's row contains `the best`.

    `runs` must include the custom jobs of the trials.
    """
    parameters = [parameter["parameterId"] for parameter in search["studySpec"]["parameters"]]
    metrics = [metric["metricId"] for metric in search["studySpec"]["metrics"]]
    shown = Table("trial", *parameters, *metrics, "", box=None, header_style="bold")
    for trial in trials(search, runs):
        values = [*map(trial["parameters"].get, parameters), *map(trial["metrics"].get, metrics)]
        cells = (trial["id"], *map(_cell, values), _end(trial))
        shown.add_row(*(Text(printable(cell)) for cell in cells))  # the user's text isn't markup
    return shown


def _end(trial: Mapping[str, Any]) -> str:
    """Return the outcome of a trial, such as `succeeded, the best`, or the rule that stopped the trial early."""
    if trial["state"] != "SUCCEEDED":
        return UNFINISHED.get(trial["state"], f"failed: {trial['reason']}")
    ended = trial["stopped"] or "succeeded"
    return f"{ended}, the best" if trial["best"] else ended


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
