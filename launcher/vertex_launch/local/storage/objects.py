"""Cloud Storage's objects as values: their names, checksums and preconditions."""

import base64
import hashlib
import mimetypes
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import google_crc32c

from vertex_launch.local.api.errors import ApiError

BLOCK = 2**20  # bytes read and written at once

Checksums = dict[str, str]  # crc32c and md5Hash, as the API writes them: base64, big-endian


@dataclass(frozen=True)
class Object:
    """An object as it was at one moment."""

    bucket: str
    name: str
    size: int  # bytes
    generation: int  # grows with every write, through the service or straight to the file
    modified: float  # seconds since 1970

    @property
    def content_type(self) -> str:
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"


def checksums(file: IO[bytes], size: int) -> Checksums:
    """The checksums of the next `size` bytes; the file may grow meanwhile."""
    crc32c, md5 = google_crc32c.Checksum(), hashlib.md5(usedforsecurity=False)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        crc32c.update(block)
        md5.update(block)
        size -= len(block)
    digests = {"crc32c": crc32c.digest(), "md5Hash": md5.digest()}
    return {name: base64.b64encode(digest).decode() for name, digest in digests.items()}


def check(conditions: Mapping[str, str], current: Object | None, prefix: str = "if") -> None:
    """Raises ApiError if a precondition of a call does not hold. Generation 0 stands for a missing object."""
    generation = conditions.get("generation" if prefix == "if" else "sourceGeneration", "")
    if generation and current and generation != str(current.generation):
        sentence = f"No such object: {current.bucket}/{current.name}#{generation}; earlier generations are not kept."
        raise ApiError("NOT_FOUND", sentence)
    actual = {"Generation": current.generation if current else 0, "Metageneration": 1 if current else 0}
    for field, value in actual.items():
        match, differ = f"{prefix}{field}Match", f"{prefix}{field}NotMatch"
        if match in conditions and number(conditions, match) != value:
            raise ApiError("CONDITION_NOT_MET", f"{match}={conditions[match]} does not hold: it is {value}.")
        if differ in conditions and number(conditions, differ) == value:
            raise ApiError("CONDITION_NOT_MET", f"{differ}={value} does not hold.")


def object_of(bucket: str, name: str, stats: os.stat_result) -> Object:
    """Return a file's object; its generation is the last change in ms, then six digits that differ within a ms."""
    size = 0 if stat.S_ISDIR(stats.st_mode) else stats.st_size
    generation = stats.st_ctime_ns // 10**6 * 10**6 + (stats.st_ino * 31 + stats.st_size) % 10**6
    return Object(bucket, name, size, generation, stats.st_mtime)


def number(query: Mapping[str, str], name: str) -> int:
    """Return a parameter that is a count, 0 if it is missing; raises ApiError if it is no number."""
    text = query.get(name, "0")
    if not re.fullmatch("[0-9]{1,19}", text):
        raise bad_request(f'{name}="{text}" is not a number; write digits.')
    return int(text)


def bad_request(sentence: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", sentence)
