"""Runs a search on this machine without the service."""

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
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.server import Vertex
from vertex_launch.local.views.jobs import reports


class Searched(NamedTuple):
    """A search that has ended, and the custom jobs of its trials, perhaps among others."""

    search: Resource
    runs: Sequence[Resource]


def run(message: HyperparameterTuningJob, job: Job, context: Context, console: Console, fresh: bool) -> Searched:
    """Run a search to its end, as the service would; returns the search and its trials' jobs.

    Each trial runs `job`. A search of the same name and output folder that was stopped goes on, unless `fresh` empties
    that folder. Raises FaultError where a service holds the state folder, to which the search can be sent, where it
    would refuse the search, and where the earlier search had another study.
    """
    parent = context.settings.parent
    vertex = Vertex(context)
    try:
        if fresh:
            empty_output(job, context.state_dir)
        earlier = {} if fresh else _earlier(vertex.store.list(parent, COLLECTION), message, job, context.state_dir)
        if done := [trial for trial in earlier.get("trials", ()) if trial["state"] == "SUCCEEDED"]:
            console.print(f"trials that an earlier run has ended: {len(done)}; --fresh starts over", style="dim")
        with signals_as_exceptions(), reports(vertex.store, vertex.jobs, console):
            created = vertex.tunings.create(parent, message, earlier)
            ended = vertex.store.wait(created["name"], lambda job: job["state"] in ENDED)
    except ApiError as error:
        raise FaultError(error.message) from None
    finally:
        vertex.close()
    return Searched(ended, vertex.store.all("customJobs"))


def _earlier(searches: Iterable[Resource], message: HyperparameterTuningJob, job: Job, state_dir: StateDir) -> Resource:
    """Return the last search of this name and output folder, {} if there is none.

    Raises FaultError if it had another study, or if there is none and something else is in the output folder.
    """
    wanted = as_json(message)
    name, folder, study = wanted["displayName"], output_folder(wanted), wanted["studySpec"]
    same = (search for search in searches if (search.get("displayName"), output_folder(search)) == (name, folder))
    last = next(same, {})
    output = local_folder(job, state_dir)
    if not last and output and output.exists() and any(output.iterdir()):
        fault = f"an earlier run, but not of a search named {name}, is in {shown(output)}"
        raise FaultError(f"{job.origin}: {fault}; add --fresh to forget it")
    before = last.get("studySpec", study)
    if changed := [key for key in sorted({*study, *before}) if study.get(key) != before.get(key)]:
        cure = "add --fresh to forget its trials, or undo that"
        raise FaultError(f"{job.origin}: the search was changed: {', '.join(changed)}; {cure}")
    return last
