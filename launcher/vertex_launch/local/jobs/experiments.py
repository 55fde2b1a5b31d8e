"""Connects jobs to experiments and TensorBoard instances: finds missing resources, creates runs, and copies curves.

While a job writes event files, the local Vertex copies their scalars to runs in the job's TensorBoard instance.
Source: Vertex AI documentation, "Use Vertex AI TensorBoard with custom training", mid-2026; google-cloud-aiplatform
2.7.0, jobs.py, the "autologging" extra, metadata/experiment_run_resource.py, and tensorboard/uploader.py (run names).
"""

import contextlib
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec
from google.cloud.aiplatform_v1.types.tensorboard_data import Scalar

from vertex_launch.errors import Finding, Findings, not_installed
from vertex_launch.job.addresses import object_path
from vertex_launch.job.job_resource import Resource, id_of
from vertex_launch.job.spec import Job, as_json
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.projects import by_number
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry import tensorboards
from vertex_launch.local.registry.metadata import DEFAULT, EXPERIMENT, RUN, create_context
from vertex_launch.local.resource_file import moment
from vertex_launch.untrusted.regular_file import open_regular

JOBS = "_custom_jobs"  # a key of a run's metadata
PACKAGE = re.compile(r"(?:gs://|/gcs/)(\S+\.tar\.gz)")
# A package for autologging must require this version of mlflow. The SDK requires mlflow 1.27 to 2.16, which requires an
# older protobuf than the launcher does. pip keeps the installed protobuf and tries all mlflow releases. pip 26.3 gave
# up after 13 minutes or selected an mlflow release from 2022 that doesn't run. With this requirement, pip immediately
# installs an older protobuf for the job.
MLFLOW = "mlflow==2.16.0"
LARGEST = 10**6  # the maximum number of bytes of requirements

EVERY = 10.0  # seconds between two reads of the files
ROOT_RUN = "default"  # the run for event files that aren't in a subfolder
NOT_IN_AN_ID = re.compile("[^a-zA-Z0-9-]")


def findings(store: Store, job: Job) -> Findings:
    """Yield a finding for each missing experiment, run, TensorBoard instance, or package that a job requires."""
    spec = job.spec
    named = {
        "experiment": (spec.experiment, "create the experiment with aiplatform.init(experiment=...)"),
        "experimentRun": (spec.experiment_run, "create the run with aiplatform.start_run, or remove the field"),
        "tensorboard": (
            spec.tensorboard,
            "create a TensorBoard instance with aiplatform.Tensorboard.create, or remove the field",
        ),
    }
    for place, (name, cure) in named.items():
        if name and name not in store:
            yield Finding(place, f"{name} doesn't exist locally", cure)
    if spec.tensorboard:
        yield from not_installed("tensorboard", "tensorboard")
    if spec.enable_dashboard_access:
        cure = "remove the field. If the chief serves a dashboard, open the dashboard's port on this machine"
        yield Finding("enableDashboardAccess", "isn't supported by the local Vertex", cure)
    if not util.find_spec("mlflow"):
        yield from _without_mlflow(job, store.state_dir.buckets)


def join(store: Store, spec: CustomJobSpec, job: str) -> None:
    """Add the job's name to its experiment run. If the job specifies only an experiment, create a run."""
    if not spec.experiment:
        return
    if not spec.experiment_run:
        run = {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
        spec.experiment_run = create_context(store, f"{spec.experiment}-{id_of(job)}", RUN, run, spec.experiment)
    noted = store.get(spec.experiment_run).get("metadata", {})
    jobs = [*noted.get(JOBS, ()), {"custom_job_resource_name": job}]
    store.update(spec.experiment_run, metadata={**noted, JOBS: jobs})


def _without_mlflow(job: Job, buckets: Path) -> Findings:
    """Yield a finding for each package that requires the autologging extra but doesn't require mlflow."""
    for pool in job.pools:
        container, uris = pool.spec.container_spec, pool.spec.python_package_spec.package_uris
        for name in PACKAGE.findall(" ".join((*container.command, *container.args, *uris))):
            package = object_path(f"gs://{name}", buckets)
            wanted = [*_requirements(package)] if package else []
            autologs = any("[autologging]" in line for line in wanted)
            if autologs and not any(line.startswith("mlflow") for line in wanted):
                place = pool.at("pythonPackageSpec.packageUris" if uris else "containerSpec.command")
                fault = "a package requires autologging but not mlflow, so pip can't find a matching version"
                yield Finding(place, fault, f'add "{MLFLOW}" to the package\'s requirements')


def _requirements(package: Path) -> Iterator[str]:
    """Yield the requirements of a source distribution. If the file isn't a source distribution, yield nothing."""
    unreadable = contextlib.suppress(tarfile.TarError, EOFError, OSError)
    with unreadable, open_regular(package) as file, tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.name.endswith(".egg-info/requires.txt") and (text := archive.extractfile(member)):
                yield from text.read(LARGEST).decode("utf-8", "replace").splitlines()


class Curves:
    """The curves of one job, stored in the TensorBoard experiment whose ID is the job ID."""

    def __init__(self, store: Store, job: str, board: str, folder: Path) -> None:
        self._store, self._job, self._folder = store, job, folder
        self._experiment = _experiment(board, job)
        self._context = f"{job.rpartition('/customJobs/')[0]}/{DEFAULT}/contexts/{id_of(job)}"
        self._files: dict[Path, _EventFile] = {}

    def follow(self) -> None:
        """Add new points from the event files to the TensorBoard instance.

        Skip unreadable files. If the TensorBoard instance was deleted, don't add points.
        """
        with contextlib.suppress(ApiError, OSError):
            for path in sorted(filter(Path.is_file, self._folder.rglob("*tfevents*"))):
                run = NOT_IN_AN_ID.sub("-", path.parent.relative_to(self._folder).as_posix().removeprefix("."))
                file = self._files.setdefault(path, _EventFile(path))
                for tag, points in file.new_points().items():
                    tensorboards.write(self._store, self._series(run or ROOT_RUN, tag), points)

    def _series(self, run: str, tag: str) -> str:
        """Return a tag's time series. If the time series doesn't exist, create it."""
        name = f"{self._experiment}/runs/{run}"
        if name not in self._store:
            self._add_run(name)
        if known := [one for one in self._store.list(name, "timeSeries") if one["displayName"] == tag]:
            return str(known[0]["name"])
        id = self._store.new_id()
        series = {"displayName": tag, "valueType": "SCALAR", "pluginName": "scalars", "etag": id}
        return str(self._store.create(f"{name}/timeSeries/{id}", series)["name"])

    def _add_run(self, name: str) -> None:
        if self._experiment not in self._store:
            shown = self._store.get(self._job).get("displayName", "")
            self._store.create(self._experiment, {"displayName": shown, "source": self._job})
        self._store.create(name, {"displayName": id_of(name)})
        # At the end of a job, the SDK looks up these contexts to end the job's runs.
        create_context(self._store, self._context, EXPERIMENT, {"tensorboard_link": by_number(self._experiment)})
        create_context(self._store, f"{self._context}-{id_of(name)}", RUN, {"_state": "RUNNING"}, self._context)


def points(store: Store, job: Resource) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of a job's event files as lists of (step, value) pairs, keyed by tag.

    For an event file in a subfolder, the keys also contain the run name.
    """
    board = job.get("jobSpec", {}).get("tensorboard")
    return tensorboards.scalars(store, _experiment(board, job["name"]), ROOT_RUN) if board else {}


def _experiment(board: str, job: str) -> str:
    return f"{board}/experiments/{id_of(job)}"


class _EventFile:
    """An event file that a program might still be writing to."""

    def __init__(self, path: Path) -> None:
        # This import is lazy because it imports most of TensorBoard.
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        self._loader = EventFileLoader(str(path))
        self._scalars = set[str]()  # tags; only the first value of a tag contains the plugin's name

    def new_points(self) -> Mapping[str, list[Resource]]:
        """Return the scalars added to the file since the last call, grouped by tag."""
        points = defaultdict[str, list[Resource]](list)
        for event in self._loader.Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    self._scalars.add(value.tag)
                if value.tag in self._scalars:
                    points[value.tag].append(_point(event, value))
        return points


def _point(event: Any, value: Any) -> Resource:
    from tensorboard.util.tensor_util import make_ndarray

    number = make_ndarray(value.tensor).item()
    return {"step": str(event.step), "wallTime": moment(event.wall_time), "scalar": as_json(Scalar(value=number))}
