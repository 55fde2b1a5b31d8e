"""Stores Cloud Storage buckets and objects as plain folders and files.

Objects exist only as files. A file that a replica writes is immediately visible as an object, and an uploaded object is
stored as a file. Therefore, an object has only the properties of a file. Its content type depends on its name, and
custom metadata is discarded.
"""

import contextlib
import io
import itertools
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from vertex_launch.errors import Finding
from vertex_launch.job.addresses import BUCKET, name_fault
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.storage.objects import BLOCK, Checksums, Object, bad_request, check, checksums, object_of
from vertex_launch.untrusted.regular_file import open_regular

# Computing checksums for large checkpoints would slow down every listing. Therefore, a larger object has checksums only
# if it was uploaded through the API. All clients work without checksums.
LARGEST_HASHED = 64 * 2**20  # bytes
SETTLED = 100  # ms; a newer file can change again within the same timestamp, so its checksums aren't cached
LONGEST_SESSION = 7 * 86400  # the time in seconds during which a client can resume an upload
MANY = 100_000  # the maximum number of cached checksums


class Buckets:
    """All buckets in a folder. Object names can't refer to files outside the folder."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self._parts = self.root / ".uploads"  # because of the dot, this folder isn't a bucket
        self._changing = threading.Lock()  # held during both a precondition check and the change
        self._checksums: dict[Object, Checksums] = {}
        for part in self._parts.glob("*"):
            if part.stat().st_mtime < time.time() - LONGEST_SESSION:
                part.unlink()

    def names(self) -> list[str]:
        with os.scandir(self.root) as entries:
            return sorted(e.name for e in entries if BUCKET.fullmatch(e.name) and e.is_dir(follow_symlinks=False))

    def create(self, bucket: str) -> None:
        """Create an empty bucket. Raises ApiError if the bucket name isn't valid or is already in use."""
        if not BUCKET.fullmatch(bucket) or len(bucket) < 3:
            raise bad_request(f"Invalid bucket name: {bucket}; use at least 3 characters from a-z, 0-9, -, _, and .")
        try:
            (self.root / bucket).mkdir()
        except FileExistsError:
            raise ApiError("ALREADY_EXISTS", f"The bucket {bucket} already exists, and you own it.") from None

    def remove(self, bucket: str) -> None:
        """Remove an empty bucket. Raises ApiError if the bucket doesn't exist or isn't empty."""
        try:
            self.folder(bucket).rmdir()
        except OSError:
            raise ApiError("ABORTED", f"The bucket {bucket} isn't empty; delete its objects first.") from None

    def folder(self, bucket: str) -> Path:
        """Return the folder that contains a bucket's objects. Raises ApiError if the bucket doesn't exist."""
        folder = self.root / bucket
        if not BUCKET.fullmatch(bucket) or folder.is_symlink() or not folder.is_dir():
            raise ApiError("NOT_FOUND", f"The bucket {bucket} does not exist; create it first.")
        return folder

    def find(self, bucket: str, name: str) -> Object | None:
        """Return an object.

        Return None if the object doesn't exist. Raises ApiError if the name can't be used as a file path.
        """
        path, is_folder = self._path(bucket, name), name.endswith("/")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            stats = path.lstat()
            if (stat.S_ISDIR if is_folder else stat.S_ISREG)(stats.st_mode) and not (is_folder and any(path.iterdir())):
                return object_of(bucket, name, stats)
        return None

    def get(self, bucket: str, name: str) -> Object:
        """Return the current object. Raises ApiError if the object doesn't exist."""
        item = self.find(bucket, name)
        if item is None:
            raise ApiError("NOT_FOUND", f"No such object: {bucket}/{name}")
        return item

    def open(self, bucket: str, name: str) -> tuple[Object, BinaryIO]:
        """Open an object, and return its state and the open file.

        If the object is replaced, the open file still has the old contents.
        """
        item = self.get(bucket, name)
        if name.endswith("/"):
            return item, io.BytesIO()
        with _refusals(name):
            file = open_regular(self._path(bucket, name))  # the caller closes it
        return object_of(bucket, name, os.fstat(file.fileno())), file

    def checksums(self, item: Object) -> Checksums | None:
        """Return the object's checksums.

        Return None if the object has changed or was deleted, or if it's larger than LARGEST_HASHED and wasn't
        uploaded through the API.
        """
        if item in self._checksums or item.size > LARGEST_HASHED:
            return self._checksums.get(item)
        try:
            now, file = self.open(item.bucket, item.name)
        except ApiError:  # deleted in the meantime, or not readable
            return None
        with file:
            sums = checksums(file, item.size)
        if now != item:
            return None
        if time.time() * 1000 - item.generation // 10**6 > SETTLED:
            self._remember(item, sums)
        return sums

    def new_part(self) -> Path:
        """Create a hidden file for the bytes of an upload."""
        self._parts.mkdir(exist_ok=True)
        part = self._parts / secrets.token_hex(16)
        part.touch(exist_ok=False)
        return part

    def part(self, upload: str) -> Path:
        """Return the hidden file of an unfinished upload. Raises ApiError if the file doesn't exist."""
        part = self._parts / upload
        if not re.fullmatch("[0-9a-f]{32}", upload) or not part.is_file():
            raise ApiError("NOT_FOUND", "This upload doesn't exist or has ended; start a new upload.")
        return part

    def keep(
        self, part: Path, bucket: str, name: str, conditions: Mapping[str, str], sums: Checksums | None = None
    ) -> Object:
        """Atomically convert a complete hidden file to an object.

        Raises ApiError if a precondition isn't met or the name isn't valid.
        """
        with self._changing, _refusals(name):
            check(conditions, self.find(bucket, name))
            self._place(part, self._path(bucket, name), name)
            kept = self.get(bucket, name)
        if sums:
            self._remember(kept, sums)
        return kept

    def combine(self, files: Iterable[BinaryIO], bucket: str, name: str, conditions: Mapping[str, str]) -> Object:
        """Create an object that contains the concatenated bytes of the files."""
        part = self.new_part()
        try:
            with part.open("wb") as target:
                for file in files:
                    shutil.copyfileobj(file, target, BLOCK)
            return self.keep(part, bucket, name, conditions)
        finally:
            part.unlink(missing_ok=True)

    def move(self, bucket: str, source: str, name: str, conditions: Mapping[str, str]) -> Object:
        with self._changing, _refusals(name):
            check(conditions, self.get(bucket, source), "ifSource")
            check(conditions, self.find(bucket, name))
            path = self._path(bucket, source)
            self._place(path, self._path(bucket, name), name)
            self._prune(path)
            return self.get(bucket, name)

    def delete(self, bucket: str, name: str, conditions: Mapping[str, str]) -> None:
        """Delete an object. Also delete folders that become empty, because Cloud Storage doesn't have folders."""
        with self._changing, _refusals(name):
            check(conditions, self.get(bucket, name))
            path = self._path(bucket, name)
            if name.endswith("/"):
                path.rmdir()
            else:
                path.unlink()
            self._prune(path)

    def _path(self, bucket: str, name: str) -> Path:
        """Return the path of an object that might not exist.

        Raises ApiError if the name can't be used as a file path.
        """
        path = self.folder(bucket) / name
        finding = name_fault(name)
        if not finding and os.path.realpath(path) != str(path):
            finding = Finding("", "contains a symbolic link", "store the target file in the bucket instead of a link")
        if finding:
            raise bad_request(f'The object name "{name}" {finding.sentence}.')
        return path

    def _place(self, part: Path, path: Path, name: str) -> None:
        if name.endswith("/"):
            if part.stat().st_size:
                raise bad_request(f'The object "{name}" is a folder and can\'t contain data; remove the slash.')
            path.mkdir(parents=True, exist_ok=True)
            part.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, path)

    def _prune(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # stops at the first folder that isn't empty or doesn't exist
            for parent in itertools.takewhile(lambda parent: parent.parent != self.root, path.parents):
                parent.rmdir()

    def _remember(self, item: Object, sums: Checksums) -> None:
        if len(self._checksums) >= MANY:
            self._checksums.clear()
        self._checksums[item] = sums


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Convert file system errors to Cloud Storage errors."""
    try:
        yield
    except FileNotFoundError:
        raise ApiError("NOT_FOUND", f"No such object: {name}") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        sentence = f'"{name}" would be both a file and a folder; rename the object, or delete the existing object.'
        raise bad_request(sentence) from None
    except OSError as error:
        raise ApiError("PERMISSION_DENIED", f'"{name}" can\'t be used: {error.strerror}.') from None
