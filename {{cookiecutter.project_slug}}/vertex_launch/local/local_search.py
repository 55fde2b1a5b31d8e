"""Runs a search on this machine without the service: its trials, then a table of their results."""

import time
from collections.abc import Callable
from typing import Any

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertex_launch.errors import FaultError
from vertex_launch.local import server
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Resource
from vertex_launch.local.context import Context
from vertex_launch.local.jobs.custom_jobs import ENDED, SUCCEEDED
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.vertex_api import Vertex
from vertex_launch.local.views.terminal import reporting

POLL_SECONDS = 0.2


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
    settings = context.settings
    vertex = server.build(context)
    try:
        begin()
        with signals_as_exceptions(), reporting(vertex.store, vertex.jobs, console):
            name = _create(vertex, f"projects/{settings.project}/locations/{settings.region}", message)
            while vertex.store.get(name)["state"] not in ENDED:
                time.sleep(POLL_SECONDS)
        ended = vertex.store.get(name)
    finally:
        vertex.close()
    console.print(table(ended))
    if ended["state"] != SUCCEEDED:
        said = ended.get("error", {}).get("message", ended["state"])
        console.print(f"Search failed: {said}", style="bold red", markup=False)
    return bool(ended["state"] == SUCCEEDED)


def _create(vertex: Vertex, parent: str, message: HyperparameterTuningJob) -> str:
    try:
        return str(vertex.tunings.create(parent, message)["name"])
    except ApiError as error:
        raise SearchError(error.message) from None


def table(search: Resource) -> Table:
    """One row for each trial: its parameters, its metrics, and why it failed."""
    spec, trials = search["studySpec"], search.get("trials", [])
    parameters = [one["parameterId"] for one in spec["parameters"]]
    metrics = [one["metricId"] for one in spec["metrics"]]
    shown = Table("trial", *parameters, *metrics, "", box=None, header_style="bold")
    for trial in trials:
        values = {one["parameterId"]: one["value"] for one in trial["parameters"]}
        found = {one["metricId"]: one["value"] for one in trial.get("finalMeasurement", {}).get("metrics", ())}
        cells = [*(_number(values.get(id)) for id in parameters), *(_number(found.get(id)) for id in metrics)]
        reason = trial.get("infeasibleReason", "").partition("\n")[0]
        shown.add_row(*map(Text, (trial["id"], *cells, reason)))  # what the user wrote is no markup
    return shown


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
