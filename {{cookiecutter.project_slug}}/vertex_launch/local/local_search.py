"""Runs a search on this machine without the service: its trials, then a table of their results."""

import time
from typing import Any

from google.cloud.aiplatform_v1.types import HyperparameterTuningJob
from rich.console import Console
from rich.table import Table

from vertex_launch.local import server
from vertex_launch.local.api.store import Resource
from vertex_launch.local.context import Context
from vertex_launch.local.jobs.custom_jobs import ENDED, SUCCEEDED
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.views.terminal import reporting

POLL_SECONDS = 0.2


def run(message: HyperparameterTuningJob, context: Context, console: Console) -> bool:
    """Run a search to its end, as the service would; returns whether it succeeded.

    Raises:
        StoreError: a service holds this folder; send the search to it.
        ApiError: the service would refuse it.
    """
    settings = context.settings
    vertex = server.build(context)
    try:
        with signals_as_exceptions(), reporting(vertex.store, vertex.jobs, console):
            name = vertex.tunings.create(f"projects/{settings.project}/locations/{settings.region}", message)["name"]
            while vertex.store.get(name)["state"] not in ENDED:
                time.sleep(POLL_SECONDS)
        ended = vertex.store.get(name)
    finally:
        vertex.close()
    console.print(table(ended))
    if ended["state"] != SUCCEEDED:
        console.print(f"Search failed: {ended.get('error', {}).get('message', ended['state'])}", style="bold red")
    return bool(ended["state"] == SUCCEEDED)


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
        shown.add_row(trial["id"], *cells, trial.get("infeasibleReason", "").partition("\n")[0])
    return shown


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
