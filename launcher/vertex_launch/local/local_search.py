"""Runs a hyperparameter tuning job on this machine without starting a local Vertex server."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from rich.console import Console

from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import Resource, output_folder
from vertex_launch.job.spec import Job, as_json
from vertex_launch.job.state_dir import StateDir
from vertex_launch.job.state_dir import output_folder as local_folder
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.jobs.custom_jobs import ENDED
from vertex_launch.local.jobs.tuning import COLLECTION
from vertex_launch.local.run_job import empty_output, shown
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.signals import LOOK_SECONDS, signals_as_exceptions
from vertex_launch.local.server import Vertex
from vertex_launch.local.views.jobs import reports


class Searched(NamedTuple):
    """An ended tuning job, and all custom jobs in the state folder, including those of the trials."""

    search: Resource
    runs: Sequence[Resource]


def run(message: HyperparameterTuningJob, job: Job, context: Context, console: Console, fresh: bool) -> Searched:
    """Run a tuning job to completion, as Vertex AI does. Return the tuning job and all custom jobs.

    Each trial of the tuning job runs `job`. If `fresh` is true, empty the output folder first. Otherwise, continue a
    stopped tuning job that has the same name and output folder. Raises FaultError if a local Vertex uses the state
    folder, the tuning job isn't valid, or the earlier tuning job has a different study.
    """
    parent = context.settings.parent
    vertex = Vertex(context)
    try:
        if fresh:
            empty_output(job, context.state_dir)
        earlier = {} if fresh else _earlier(vertex.store.list(parent, COLLECTION), message, job, context.state_dir)
        if done := [trial for trial in earlier.get("trials", ()) if trial["state"] == "SUCCEEDED"]:
            console.print(f"trials completed by an earlier run: {len(done)}; to start over, use --fresh", style="dim")
        with signals_as_exceptions(), reports(vertex.store, vertex.jobs, console):
            ended = vertex.tunings.create(parent, message, earlier)
            while ended["state"] not in ENDED:
                ended = vertex.store.wait(ended["name"], lambda job: job["state"] in ENDED, LOOK_SECONDS)
    except ApiError as error:
        raise FaultError(error.message) from None
    finally:
        vertex.close()
    return Searched(ended, vertex.store.all("customJobs"))


def _earlier(searches: Iterable[Resource], message: HyperparameterTuningJob, job: Job, state_dir: StateDir) -> Resource:
    """Return the latest tuning job with the same name and output folder, or {} if there is none.

    Raises FaultError if the earlier tuning job has a different study or if the output folder contains files from a
    different run.
    """
    wanted = as_json(message)
    name, folder, study = wanted["displayName"], output_folder(wanted), wanted["studySpec"]
    same = (search for search in searches if (search.get("displayName"), output_folder(search)) == (name, folder))
    last = next(same, {})
    output = local_folder(job, state_dir)
    if not last and output and output.exists() and any(output.iterdir()):
        fault = f"{shown(output)} contains output that isn't from tuning job {name}"
        raise FaultError(f"{job.origin}: {fault}; to delete that output, add --fresh")
    before = last.get("studySpec", study)
    if changed := [key for key in sorted({*study, *before}) if study.get(key) != before.get(key)]:
        cure = "undo the change, or add --fresh to delete the earlier trials"
        raise FaultError(f"{job.origin}: these fields of the study have changed: {', '.join(changed)}; {cure}")
    return last
