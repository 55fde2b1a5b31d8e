"""Curves of a job: the scalars of its event files become runs of its TensorBoard while it writes them.

Source: Vertex AI documentation, "Use Vertex AI TensorBoard with custom training", mid 2026; google-cloud-aiplatform
2.7.0, jobs.py (what it asks for after a job) and tensorboard/uploader.py (names of runs).
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.tensorboard_data import Scalar

from vertex_launch.job_resource import Resource, id_of
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.projects import by_number
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry import tensorboards
from vertex_launch.local.registry.metadata import DEFAULT, EXPERIMENT, RUN, create_context
from vertex_launch.local.resource_file import moment
from vertex_launch.spec import as_json

EVERY = 10.0  # seconds between two looks at the files
ROOT_RUN = "default"  # of files that are in no folder of their own
NOT_IN_AN_ID = re.compile("[^a-zA-Z0-9-]")


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
        series = self._store.list(name, "timeSeries")
        known = next((one["name"] for one in series if one["displayName"] == tag), "")
        return known or tensorboards.create_scalars(self._store, name, tag)

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
