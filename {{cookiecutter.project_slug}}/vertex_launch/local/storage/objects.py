"""Cloud Storage's objects as values: their names, checksums and preconditions."""

import base64
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import google_crc32c

BLOCK = 2**20  # bytes read and written at once


class StorageError(Exception):
    """A request that is refused, with the HTTP status that says how."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message.encode(errors="replace").decode()  # a name in it may be no Unicode


@dataclass(frozen=True)
class Object:
    """An object as it was at one moment."""

    bucket: str
    name: str
    size: int  # bytes
    generation: int  # grows with every write, from whichever side
    modified: float  # seconds since 1970


@dataclass(frozen=True)
class Checksums:
    """As the API writes them: base64, big-endian."""

    crc32c: str
    md5: str


def checksums(file: IO[bytes], size: int) -> Checksums:
    """Of the next `size` bytes; a file that grows meanwhile does not matter."""
    crc32c, md5 = google_crc32c.Checksum(), hashlib.md5(usedforsecurity=False)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        crc32c.update(block)
        md5.update(block)
        size -= len(block)
    return Checksums(*(base64.b64encode(one).decode() for one in (crc32c.digest(), md5.digest())))


def check(conditions: Mapping[str, str], current: Object | None, prefix: str = "if") -> None:
    """Raises StorageError if a precondition of a call does not hold; generation 0 is no object."""
    asked = conditions.get("generation" if prefix == "if" else "sourceGeneration", "")
    if asked and current and asked != str(current.generation):
        raise StorageError(404, f"No such object: {current.bucket}/{current.name}#{asked}; others are not kept.")
    actual = {"Generation": current.generation if current else 0, "Metageneration": 1 if current else 0}
    for what, value in actual.items():
        match, differ = f"{prefix}{what}Match", f"{prefix}{what}NotMatch"
        if match in conditions and number(conditions, match) != value:
            raise StorageError(412, f"{match}={conditions[match]} does not hold: it is {value}.")
        if differ in conditions and number(conditions, differ) == value:
            raise StorageError(412, f"{differ}={value} does not hold.")


def object_of(bucket: str, name: str, found: os.stat_result) -> Object:
    """The generation is the millisecond of the last change, then six digits that differ within a millisecond."""
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    generation = found.st_ctime_ns // 10**6 * 10**6 + (found.st_ino * 31 + found.st_size) % 10**6
    return Object(bucket, name, size, generation, found.st_mtime)


def number(asked: Mapping[str, str], name: str, default: int = 0) -> int:
    """A parameter that is a count; raises StorageError if it is none."""
    text = asked.get(name, str(default))
    if not re.fullmatch("[0-9]{1,19}", text):
        raise StorageError(400, f'{name}="{text}" is no number; write digits.')
    return int(text)
