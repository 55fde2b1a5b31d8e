"""The resource store, which keeps the local Vertex's resources in memory and on disk.

A resource's name determines the path of its file, such as .vertex/projects/P/locations/L/customJobs/ID.json. If a
resource has rows, the append-only file ID.jsonl in the same folder contains them.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.state_dir import StateDir, private_file
from vertex_launch.local import resource_file
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.resource_file import now
from vertex_launch.untrusted.regular_file import locked_elsewhere

LOCK = "service.lock"  # contains the process ID and the endpoint of the process that uses the folder
# Each part of a name becomes a folder or a file, so no part can contain a character that is special in a file system.
PART = r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}"
NAME = re.compile(f"projects/{PART}/locations/{PART}(/{PART}/{PART})+")


class Store:
    """A thread-safe store of all resources.

    Raises FaultError if another process uses the state folder or if it isn't writable. A method that takes a
    resource name raises ApiError NOT_FOUND if the resource doesn't exist.
    """

    def __init__(self, folder: Path, endpoint: str = "") -> None:
        self._folder, self.state_dir = folder, StateDir(folder)
        self._changed = threading.Condition()
        self._last_id = 0
        self._lock = _locked(folder, endpoint)
        self.unreadable: list[Path] = []  # files that don't contain a resource; they aren't deleted
        self._resources = dict(sorted(self._load().items(), key=lambda item: str(item[1].get("createTime", ""))))

    def close(self) -> None:
        self._lock.close()

    def new_id(self) -> str:
        """Return a new numeric ID in Vertex AI's format. Each new ID is larger than all earlier ones."""
        with self._changed:
            self._last_id = max(time.time_ns() // 1000, self._last_id + 1)
            return str(self._last_id)

    def create(self, name: str, resource: Mapping[str, Any]) -> Resource:
        """Store a new resource with its name and the current time.

        Raises ApiError if the name isn't valid or is already in use, or if the disk is full.
        """
        if not NAME.fullmatch(name):
            raise ApiError(
                "INVALID_ARGUMENT", f'"{name}" isn\'t a valid resource name; use letters, digits, -, and _ in IDs'
            )
        with self._changed:
            if name in self._resources:
                raise ApiError("ALREADY_EXISTS", f"{name} already exists")
            moment = now()
            created = {**resource, "name": name, "createTime": moment, "updateTime": moment}
            with _exhausting(name):
                resource_file.write(self._file(name), created)
            return self._keep(name, created)

    def __contains__(self, name: str) -> bool:
        with self._changed:
            return name in self._resources

    def get(self, name: str) -> Resource:
        with self._changed:
            try:
                return self._resources[name]
            except KeyError:
                raise ApiError("NOT_FOUND", f"{name} does not exist") from None

    def update(self, name: str, **fields: Any) -> Resource:
        """Replace the given fields of a resource. Remove each field whose new value is None.

        If the disk is full, change the resource only in memory, because clients wait for a job's final state.
        """
        with self._changed:
            merged = {**self.get(name), **fields, "updateTime": now()}
            changed = {key: value for key, value in merged.items() if value is not None}
            try:
                resource_file.write(self._file(name), changed)
            except OSError as error:
                logging.warning("%s can't be written to disk: %s; free some disk space", name, error.strerror)
            return self._keep(name, changed)

    def append(self, name: str, rows: Iterable[Any]) -> None:
        """Append JSON rows to a resource. Raises ApiError if the disk is full."""
        with self._changed, _exhausting(name):
            self.get(name)
            with open(self._rows(name), "a", encoding="utf-8", opener=private_file) as file:
                # The line break comes first, so that a row cut off by a crash doesn't damage the next row.
                file.writelines(f"\n{json.dumps(row)}" for row in rows)

    def rows(self, name: str) -> list[Any]:
        """Return all rows of a resource, oldest first."""
        self.get(name)
        rows = list[Any]()
        with contextlib.suppress(FileNotFoundError), self._rows(name).open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # a blank or incomplete line
                    rows.append(json.loads(line))
        return rows

    def size(self, name: str) -> int:
        """Return the total size, in bytes, of all rows of a resource and of the resources under it."""
        self.get(name)
        return sum(file.stat().st_size for file in (self._folder / name).rglob("*.jsonl"))

    def delete(self, name: str) -> None:
        """Delete a resource and all resources under it, including their rows."""
        with self._changed:
            self.get(name)
            for key in [key for key in self._resources if f"{key}/".startswith(f"{name}/")]:
                del self._resources[key]
                self._file(key).unlink(missing_ok=True)
                self._rows(key).unlink(missing_ok=True)
            self._changed.notify_all()

    def list(self, parent: str, collection: str) -> list[Resource]:
        """Return the resources of a collection under a parent, newest first."""
        above = f"{parent}/{collection}"
        with self._changed:
            return [entry for name, entry in reversed(self._resources.items()) if name.rpartition("/")[0] == above]

    def all(self, collection: str) -> Sequence[Resource]:
        """Return the resources of a collection in all projects and locations, newest first."""
        with self._changed:
            return [entry for name, entry in reversed(self._resources.items()) if name.split("/")[4:-1] == [collection]]

    def projects(self) -> set[str]:
        """Return the IDs of all projects that have a resource in the store."""
        with self._changed:
            return {name.split("/")[1] for name in self._resources}

    def wait(self, name: str, done: Callable[[Resource], bool], timeout: float | None = None) -> Resource:
        """Return a resource as soon as `done` returns true for it, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.get(name)), timeout)
            return self.get(name)

    def reread(self, name: str) -> None:
        """Reload a resource after another process has written its file."""
        with self._changed:
            resource = resource_file.read(self._file(name), name)
            if resource and resource != self._resources.get(name):
                self._keep(name, resource)

    def _keep(self, name: str, resource: Resource) -> Resource:
        self._resources[name] = resource
        self._changed.notify_all()
        return resource

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _rows(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def _load(self) -> dict[str, Resource]:
        resources: dict[str, Resource] = {}
        for file in sorted((self._folder / "projects").rglob("*.json")):
            name = file.relative_to(self._folder).as_posix().removesuffix(".json")
            if resource := resource_file.read(file, name):
                resources[name] = resource
            else:
                self.unreadable.append(file)
        return resources


@contextlib.contextmanager
def _exhausting(name: str) -> Iterator[None]:
    """Raise ApiError RESOURCE_EXHAUSTED if the code in the `with` block can't write a resource to disk."""
    try:
        yield
    except OSError as error:
        raise ApiError("RESOURCE_EXHAUSTED", f"{name} can't be written: {error.strerror}") from None


def endpoint_of(folder: Path) -> str:
    """Return the endpoint of the local Vertex that uses a state folder. Return "" if the folder isn't in use."""
    return _holder(folder)[1]


def _holder(folder: Path) -> tuple[str, str]:
    """Return the ID and endpoint of the process that uses a folder. For the `run` command, the endpoint is ""."""
    with contextlib.suppress(OSError), (folder / LOCK).open() as file:
        if locked_elsewhere(file):
            process, _, endpoint = file.read().strip().partition(" ")
            return process, endpoint
    return "", ""


def _locked(folder: Path, endpoint: str) -> IO[str]:
    """Lock a state folder for this process, and return the open lock file.

    Raises FaultError if another process uses the folder or if it isn't writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = private_file(folder / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        raise FaultError(
            f"{folder}: the folder isn't writable ({error.strerror}); use --state-dir to specify another folder"
        ) from None
    file = os.fdopen(opened, "a+", encoding="utf-8")
    if locked_elsewhere(file, fcntl.LOCK_EX):
        file.close()
        process, holder = _holder(folder)
        who, cure = (f"the local Vertex at {holder}", "stop it") if holder else ("another command", "wait for it")
        fault = f"{who} (process {process}) is using this folder; {cure}, or use --state-dir to specify another folder"
        raise FaultError(f"{folder}: {fault}")
    file.truncate(0)
    file.write(f"{os.getpid()} {endpoint}")
    file.flush()
    return file
