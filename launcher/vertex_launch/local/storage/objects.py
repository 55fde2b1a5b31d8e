"""The state of Cloud Storage objects (names, generations, and checksums), and the preconditions of calls."""

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

BLOCK = 2**20  # the number of bytes for each read and write

Checksums = dict[str, str]  # crc32c and md5Hash in the API's format: base64, big-endian


@dataclass(frozen=True)
class Object:
    """The state of an object at one point in time."""

    bucket: str
    name: str
    size: int  # bytes
    generation: int  # increases with every write, through the API or directly to the file
    modified: float  # seconds since 1970

    @property
    def content_type(self) -> str:
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"


def checksums(file: IO[bytes], size: int) -> Checksums:
    """Return the checksums of the next `size` bytes of a file. A process can append to the file at the same time."""
    crc32c, md5 = google_crc32c.Checksum(), hashlib.md5(usedforsecurity=False)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        crc32c.update(block)
        md5.update(block)
        size -= len(block)
    digests = {"crc32c": crc32c.digest(), "md5Hash": md5.digest()}
    return {name: base64.b64encode(digest).decode() for name, digest in digests.items()}


def check(conditions: Mapping[str, str], current: Object | None, prefix: str = "if") -> None:
    """Raise ApiError if a call's precondition isn't met. Generation 0 means that the object doesn't exist."""
    generation = conditions.get("generation" if prefix == "if" else "sourceGeneration", "")
    if generation and current and generation != str(current.generation):
        sentence = f"No such object: {current.bucket}/{current.name}#{generation}; earlier generations aren't kept."
        raise ApiError("NOT_FOUND", sentence)
    actual = {"Generation": current.generation if current else 0, "Metageneration": 1 if current else 0}
    for field, value in actual.items():
        match, differ = f"{prefix}{field}Match", f"{prefix}{field}NotMatch"
        if match in conditions and number(conditions, match) != value:
            raise ApiError(
                "CONDITION_NOT_MET", f"The precondition {match}={conditions[match]} isn't met: the value is {value}."
            )
        if differ in conditions and number(conditions, differ) == value:
            raise ApiError("CONDITION_NOT_MET", f"The precondition {differ}={value} isn't met: the values are equal.")


def object_of(bucket: str, name: str, stats: os.stat_result) -> Object:
    """Return the object that a file represents.

    An object's generation consists of its last modification time in ms and six digits that distinguish changes within
    the same ms.
    """
    size = 0 if stat.S_ISDIR(stats.st_mode) else stats.st_size
    generation = stats.st_ctime_ns // 10**6 * 10**6 + (stats.st_ino * 31 + stats.st_size) % 10**6
    return Object(bucket, name, size, generation, stats.st_mtime)


def number(query: Mapping[str, str], name: str) -> int:
    """Return a parameter as an integer. Return 0 if the parameter is missing.

    Raises ApiError if the parameter isn't a number.
    """
    text = query.get(name, "0")
    if not re.fullmatch("[0-9]{1,19}", text):
        raise bad_request(f'{name}="{text}" isn\'t a number; use digits.')
    return int(text)


def bad_request(sentence: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", sentence)
