"""Experiments of jobs: names that are not here, and the run that a job belongs to.

Source: google-cloud-aiplatform 2.7.0, jobs.py (CustomJob.submit) and metadata/experiment_run_resource.py.
"""

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.errors import Finding, Findings
from vertex_launch.job_resource import id_of
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry.metadata import RUN, create_context

JOBS = "_custom_jobs"  # key of a run's metadata


def missing(store: Store, spec: CustomJobSpec) -> Findings:
    """Yield what a job names and is not here: its experiment, run or TensorBoard."""
    named = {
        "experiment": (spec.experiment, "create it with aiplatform.init(experiment=...)"),
        "experimentRun": (spec.experiment_run, "create it with aiplatform.start_run, or leave it out"),
        "tensorboard": (spec.tensorboard, "create one with aiplatform.Tensorboard.create, or leave it out"),
    }
    for place, (name, cure) in named.items():
        if name and name not in store:
            yield Finding(place, f"{name} does not exist here", cure)
    if spec.enable_dashboard_access:
        cure = "leave it out; a port at which the chief serves one is a port of this machine"
        yield Finding("enableDashboardAccess", "the local Vertex gives dashboards no address", cure)


def join(store: Store, spec: CustomJobSpec, job: str) -> None:
    """Note a job, by its name, in the run that it names; give it a run if it names an experiment alone."""
    if not spec.experiment:
        return
    if not spec.experiment_run:
        run = {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
        spec.experiment_run = create_context(store, f"{spec.experiment}-{id_of(job)}", RUN, run, spec.experiment)
    noted = store.get(spec.experiment_run).get("metadata", {})
    jobs = [*noted.get(JOBS, ()), {"custom_job_resource_name": job}]
    store.update(spec.experiment_run, metadata={**noted, JOBS: jobs})
