"""Experiments of jobs: names that are not here, the run that a job belongs to, and what logs to it by itself.

Source: google-cloud-aiplatform 2.7.0, jobs.py (CustomJob.submit, CustomJob.from_local_script), the extra "autologging",
and metadata/experiment_run_resource.py.
"""

import contextlib
import re
import tarfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec

from vertex_launch.addresses import object_path
from vertex_launch.errors import Finding, Findings
from vertex_launch.job_resource import id_of
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry.metadata import RUN, create_context
from vertex_launch.regular_file import open_regular
from vertex_launch.spec import Job

JOBS = "_custom_jobs"  # key of a run's metadata
PACKAGE = re.compile(r"(?:gs://|/gcs/)(\S+\.tar\.gz)")
# A package for autologging must name this mlflow. The SDK asks for mlflow 1.27 to 2.16, which need an older protobuf
# than the launcher has. pip keeps what is there and goes back through all releases of either: pip 26.3 gave up after 13
# minutes, or took an mlflow of 2022 that does not run. With this one it takes an older protobuf at once, for this job.
MLFLOW = "mlflow==2.16.0"
LARGEST = 10**6  # bytes of requirements


def findings(store: Store, job: Job) -> Findings:
    """Yield what a job names and is not here: its experiment, run or TensorBoard, and the mlflow of its packages."""
    spec = job.spec
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
    if not util.find_spec("mlflow"):
        yield from _without_mlflow(job, store.state_dir.buckets)


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


def _without_mlflow(job: Job, buckets: Path) -> Findings:
    """Yield which packages that a job installs ask for autologging without an mlflow."""
    for pool in job.pools:
        container, uris = pool.spec.container_spec, pool.spec.python_package_spec.package_uris
        for name in PACKAGE.findall(" ".join((*container.command, *container.args, *uris))):
            package = object_path(f"gs://{name}", buckets)
            wanted = [*_requirements(package)] if package else []
            autologs = any("[autologging]" in line for line in wanted)
            if autologs and not any(line.startswith("mlflow") for line in wanted):
                place = pool.at("pythonPackageSpec.packageUris" if uris else "containerSpec.command")
                fault = "installs a package for autologging that names no mlflow, so that pip looks for one in vain"
                yield Finding(place, fault, f'add "{MLFLOW}" to requirements')


def _requirements(package: Path) -> Iterator[str]:
    """Yield the lines of a source distribution's requirements; none where it is no such file."""
    unreadable = contextlib.suppress(tarfile.TarError, EOFError, OSError)
    with unreadable, open_regular(package) as file, tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.name.endswith(".egg-info/requires.txt") and (text := archive.extractfile(member)):
                yield from text.read(LARGEST).decode("utf-8", "replace").splitlines()
