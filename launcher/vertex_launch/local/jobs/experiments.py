"""Experiments and TensorBoards of jobs: names that are not here, the run that a job belongs to, and its curves.

The scalars of a job's event files become runs of its TensorBoard while it writes them. Source: Vertex AI documentation,
"Use Vertex AI TensorBoard with custom training", mid 2026; google-cloud-aiplatform 2.7.0, jobs.py, the extra
"autologging", metadata/experiment_run_resource.py and tensorboard/uploader.py (names of runs).
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

JOBS = "_custom_jobs"  # key of a run's metadata
PACKAGE = re.compile(r"(?:gs://|/gcs/)(\S+\.tar\.gz)")
# A package for autologging must name this mlflow. The SDK asks for mlflow 1.27 to 2.16, which need an older protobuf
# than the launcher has. pip keeps what is there and goes back through all releases of either: pip 26.3 gave up after 13
# minutes, or took an mlflow of 2022 that does not run. With this one it takes an older protobuf at once, for this job.
MLFLOW = "mlflow==2.16.0"
LARGEST = 10**6  # bytes of requirements

EVERY = 10.0  # seconds between two looks at the files
ROOT_RUN = "default"  # of files that are in no folder of their own
NOT_IN_AN_ID = re.compile("[^a-zA-Z0-9-]")


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
    if spec.tensorboard:
        yield from not_installed("tensorboard", "tensorboard")
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


class Curves:
    """The curves of one job, in the experiment of its TensorBoard that has the job's id."""

    def __init__(self, store: Store, job: str, board: str, folder: Path) -> None:
        self._store, self._job, self._folder = store, job, folder
        self._experiment = _experiment(board, job)
        self._context = f"{job.rpartition('/customJobs/')[0]}/{DEFAULT}/contexts/{id_of(job)}"
        self._files: dict[Path, _EventFile] = {}

    def follow(self) -> None:
        """Add what is new in the files, as far as they can be read and the TensorBoard is still there."""
        with contextlib.suppress(ApiError, OSError):
            for path in sorted(filter(Path.is_file, self._folder.rglob("*tfevents*"))):
                run = NOT_IN_AN_ID.sub("-", path.parent.relative_to(self._folder).as_posix().removeprefix("."))
                file = self._files.setdefault(path, _EventFile(path))
                for tag, points in file.new_points().items():
                    tensorboards.write(self._store, self._series(run or ROOT_RUN, tag), points)

    def _series(self, run: str, tag: str) -> str:
        """Return the time series of a tag, which may be new."""
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
        # The SDK looks for these contexts at the end of a job, to end its runs.
        create_context(self._store, self._context, EXPERIMENT, {"tensorboard_link": by_number(self._experiment)})
        create_context(self._store, f"{self._context}-{id_of(name)}", RUN, {"_state": "RUNNING"}, self._context)


def points(store: Store, job: Resource) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of a job's event files, as (step, value) by tag, below a run's name where a folder had one."""
    board = job.get("jobSpec", {}).get("tensorboard")
    return tensorboards.scalars(store, _experiment(board, job["name"]), ROOT_RUN) if board else {}


def _experiment(board: str, job: str) -> str:
    return f"{board}/experiments/{id_of(job)}"


class _EventFile:
    """An event file that grows."""

    def __init__(self, path: Path) -> None:
        # Imported lazily, as it imports most of TensorBoard.
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        self._loader = EventFileLoader(str(path))
        self._scalars = set[str]()  # tags; only the first value of a tag says of which plugin it is

    def new_points(self) -> Mapping[str, list[Resource]]:
        """Return the scalars that were added since the last call, by tag."""
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
