"""The service's resources by name: in memory for speed, on disk so that they outlive the service.

The file of a resource is its name: .vertex/projects/P/locations/L/customJobs/ID.json.
"""

import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vertex_launch.errors import FaultError
from vertex_launch.local import resource_file
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.resource_file import now as now
from vertex_launch.state_dir import private_file

Resource = dict[str, Any]  # JSON as it goes over the wire; never changed in place

# Each part of a name becomes a folder or a file: nothing that means something to a file system.
PART = r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}"
NAME = re.compile(f"projects/{PART}/locations/{PART}(/{PART}/{PART})+")


class StoreError(FaultError):
    """The state folder cannot be used."""


class Store:
    """All resources; thread-safe. One service at a time may hold a folder.

    Raises:
        StoreError: another service holds the folder, or it cannot be written.
    """

    def __init__(self, folder: Path, endpoint: str = "") -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._last_id = 0
        self._lock = _locked(folder, endpoint)
        self.unreadable: list[Path] = []  # files that are no resources; they stay where they are
        self._resources = dict(sorted(self._load().items(), key=lambda item: str(item[1].get("createTime", ""))))

    def close(self) -> None:
        """Give the folder free."""
        self._lock.close()

    def new_id(self) -> str:
        """Digits, as the service's ids; later ones are larger."""
        with self._changed:
            self._last_id = max(time.time_ns() // 1000, self._last_id + 1)
            return str(self._last_id)

    def create(self, name: str, resource: Mapping[str, Any]) -> Resource:
        """Keep a new resource; adds its name and times.

        Raises:
            ApiError: ALREADY_EXISTS, INVALID_ARGUMENT for a name that is none, or RESOURCE_EXHAUSTED: the disk is full.
        """
        if not NAME.fullmatch(name):
            raise ApiError("INVALID_ARGUMENT", f'"{name}" is no resource name; use letters, digits, - and _ in ids')
        with self._changed:
            if name in self._resources:
                raise ApiError("ALREADY_EXISTS", f"{name} exists already")
            moment = now()
            created = {**resource, "name": name, "createTime": moment, "updateTime": moment}
            try:
                self._write(name, created)
            except OSError as error:
                raise ApiError("RESOURCE_EXHAUSTED", f"{name} cannot be written: {error.strerror}") from None
            return self._keep(name, created)

    def get(self, name: str) -> Resource:
        """Raises ApiError NOT_FOUND."""
        with self._changed:
            try:
                return self._resources[name]
            except KeyError:
                raise ApiError("NOT_FOUND", f"{name} does not exist") from None

    def update(self, name: str, **fields: Any) -> Resource:
        """Replace some fields, None removes one; raises ApiError NOT_FOUND.

        What cannot be written, as on a full disk, is true all the same: who waits for a job must see its end.
        """
        with self._changed:
            merged = {**self.get(name), **fields, "updateTime": now()}
            changed = {key: value for key, value in merged.items() if value is not None}
            try:
                self._write(name, changed)
            except OSError as error:
                logging.warning("%s cannot be written: %s; make room", name, error.strerror)
            return self._keep(name, changed)

    def enter(self, name: str, state: str, running: bool) -> Resource:
        """Another state; what runs for the first time has started now. Raises ApiError NOT_FOUND."""
        with self._changed:
            first = running and "startTime" not in self.get(name)
            return self.update(name, state=state, **({"startTime": now()} if first else {}))

    def end(self, name: str, state: str, error: Mapping[str, Any] | None = None) -> Resource:
        """What has a state has come to its last one; raises ApiError NOT_FOUND."""
        return self.update(name, state=state, endTime=now(), error=error)

    def delete(self, name: str) -> None:
        """Raises ApiError NOT_FOUND."""
        with self._changed:
            self.get(name)
            del self._resources[name]
            self._file(name).unlink(missing_ok=True)
            self._changed.notify_all()

    def delete_ended(self, name: str, ended: Collection[str]) -> None:
        """Forget what is in one of these states; raises ApiError NOT_FOUND or FAILED_PRECONDITION."""
        with self._changed:
            state = self.get(name)["state"]
            if state not in ended:
                raise ApiError("FAILED_PRECONDITION", f"{name} is in state {state}; cancel it and wait for its end")
            self.delete(name)

    def list(self, parent: str, collection: str) -> list[Resource]:
        """The resources of one collection, newest first."""
        prefix = f"{parent}/{collection}/"
        with self._changed:
            found = [resource for name, resource in self._resources.items() if name.startswith(prefix)]
        return [resource for resource in reversed(found) if "/" not in resource["name"].removeprefix(prefix)]

    def all(self, collection: str) -> Sequence[Resource]:
        """The resources of one collection in every project and location, newest first."""
        with self._changed:
            found = [one for name, one in self._resources.items() if name.split("/")[4:5] == [collection]]
        return [one for one in reversed(found) if one["name"].count("/") == 5]

    def wait(self, name: str, done: Callable[[Resource], bool], timeout: float | None = None) -> Resource:
        """The resource once `done` says so, or as it is after `timeout` seconds; raises ApiError NOT_FOUND."""
        with self._changed:
            self._changed.wait_for(lambda: done(self.get(name)), timeout)
            return self.get(name)

    def reread(self, name: str) -> None:
        """Take in what another process has written of a resource."""
        with self._changed:
            resource = resource_file.read(self._file(name), name)
            if resource and resource != self._resources.get(name):
                self._keep(name, resource)

    def _keep(self, name: str, resource: Resource) -> Resource:
        self._resources[name] = resource
        self._changed.notify_all()
        return resource

    def _write(self, name: str, resource: Resource) -> None:
        resource_file.write(self._file(name), resource)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _load(self) -> dict[str, Resource]:
        resources = {}
        for file in sorted((self._folder / "projects").rglob("*.json")):
            name = file.relative_to(self._folder).as_posix().removesuffix(".json")
            if resource := resource_file.read(file, name):
                resources[name] = resource
            else:
                self.unreadable.append(file)
        return resources


def endpoint_of(folder: Path) -> str:
    """Where the service that holds this folder listens, or "" if none does."""
    try:
        with (folder / "service.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except OSError:
        pass
    return ""


def _locked(folder: Path, endpoint: str) -> IO[str]:
    """An open file that keeps others out of the folder for as long as this process lives."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(
            private_file(folder / "service.lock", os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+", encoding="utf-8"
        )
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error.strerror}); choose another with --state-dir") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = endpoint_of(folder)
        file.close()
        raise StoreError(
            f"{folder}: another local Vertex works here ({other}); stop it, or choose another folder with --state-dir"
        ) from None
    file.seek(0)
    file.truncate()
    file.write(endpoint)
    file.flush()
    return file
