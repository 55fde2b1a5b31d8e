"""Runs a search on this machine without the service: its trials, then a table of their results."""

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertex_launch.errors import FaultError
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Resource
from vertex_launch.local.context import Context
from vertex_launch.local.jobs.custom_jobs import ENDED, SUCCEEDED
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.vertex_api import Vertex
from vertex_launch.local.views.job_summary import trials
from vertex_launch.local.views.terminal import reporting

# What a trial is that one of the study's rules has ended.
RULES = {
    "medianAutomatedStoppingSpec": "worse than the median of the others",
    "decayCurveStoppingSpec": "unlikely to reach the best",
}


class SearchError(FaultError):
    """The search cannot run."""


def run(
    message: HyperparameterTuningJob, context: Context, console: Console, begin: Callable[[], None] = lambda: None
) -> bool:
    """Run a search to its end, as the service would; returns whether it succeeded.

    Args:
        begin: called once nothing stands in the search's way any more, before its first trial.

    Raises:
        StoreError: a service holds this folder; send the search to it.
        SearchError: the service would refuse it.
    """
    parent = f"projects/{context.settings.project}/locations/{context.settings.region}"
    vertex = Vertex(context)
    try:
        begin()
        with signals_as_exceptions(), reporting(vertex.store, vertex.jobs, console):
            created = vertex.tunings.create(parent, message)
            ended = vertex.store.wait(created["name"], lambda one: one["state"] in ENDED)
            jobs = {one["id"]: vertex.store.get(one["customJob"])["state"] for one in ended.get("trials", ())}
    except ApiError as error:
        raise SearchError(error.message) from None
    finally:
        vertex.close()
    console.print(table(ended, jobs))
    if ended["state"] != SUCCEEDED:
        said = ended.get("error", {}).get("message", ended["state"])
        console.print(f"Search failed: {said}", style="bold red", markup=False)
    return bool(ended["state"] == SUCCEEDED)


def table(search: Resource, jobs: Mapping[str, str]) -> Table:
    """One row for each trial: its parameters, its metrics, how it ended and why, and which is the best.

    Args:
        jobs: the state of each trial's job.
    """
    parameters = [one["parameterId"] for one in search["studySpec"]["parameters"]]
    metrics = [one["metricId"] for one in search["studySpec"]["metrics"]]
    shown = Table("trial", *parameters, *metrics, "", box=None, header_style="bold")
    for trial in trials(search):
        values = [*map(trial["parameters"].get, parameters), *map(trial["metrics"].get, metrics)]
        cells = (trial["id"], *map(_cell, values), _end(trial, jobs[trial["id"]], search["studySpec"]))
        shown.add_row(*map(Text, cells))  # what the user wrote is no markup
    return shown


def _end(trial: Mapping[str, Any], job: str, study: Resource) -> str:
    """`succeeded, the best`: of a trial that its search has cancelled, by which rule."""
    if trial["state"] != "SUCCEEDED":
        return f"failed: {trial['reason']}"
    rule = next((words for name, words in RULES.items() if name in study), "")
    ended = "succeeded" if job == SUCCEEDED else f"stopped early, {rule}"
    return f"{ended}, the best" if trial["best"] else ended


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
