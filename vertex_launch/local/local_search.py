"""Runs a search on this machine without the service: its trials, then a table of their results."""

from collections.abc import Callable

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from rich.console import Console

from vertex_launch.errors import FaultError
from vertex_launch.job_resource import same_result, state
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.context import Context
from vertex_launch.local.jobs.custom_jobs import ENDED, SUCCEEDED
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.vertex_api import Vertex
from vertex_launch.local.views.terminal import reports
from vertex_launch.trials_table import table


def run(
    message: HyperparameterTuningJob, context: Context, console: Console, begin: Callable[[], None] = lambda: None
) -> bool:
    """Run a search to its end, as the service would; returns whether it succeeded.

    Calls `begin` before the first trial, once nothing stands in the search's way any more. Raises FaultError where a
    service holds this folder, to which the search can be sent, or would refuse the search.
    """
    parent = f"projects/{context.settings.project}/locations/{context.settings.region}"
    vertex = Vertex(context)
    try:
        begin()
        with signals_as_exceptions(), reports(vertex.store, vertex.jobs, console):
            created = vertex.tunings.create(parent, message)
            ended = vertex.store.wait(created["name"], lambda job: job["state"] in ENDED)
            jobs = {trial["id"]: state(vertex.store.get(trial["customJob"])) for trial in ended.get("trials", ())}
    except ApiError as error:
        raise FaultError(error.message) from None
    finally:
        vertex.close()
    console.print(table(ended, jobs))
    if same := same_result(ended):
        console.print(same, style="yellow", markup=False)
    if ended["state"] != SUCCEEDED:
        reason = ended.get("error", {}).get("message", ended["state"])
        console.print(f"Search failed: {reason}", style="bold red", markup=False)
    return bool(ended["state"] == SUCCEEDED)
