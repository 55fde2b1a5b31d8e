"""Addresses in Cloud Storage, gs://BUCKET/NAME: which names a bucket and an object may have.

Source: Cloud Storage documentation, "About Cloud Storage buckets" and "About Cloud Storage objects", 2026, and what
a bucket that is mounted at /gcs can hold.
"""

import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from vertex_launch.errors import Finding

# A bucket that jobs use may have a shorter name than the 3 characters that Cloud Storage asks of a new one.
BUCKET = re.compile("[a-z0-9]([a-z0-9._-]{0,220}[a-z0-9])?")
LONGEST_NAME = 1024  # bytes, of an object
LONGEST_PART = 255  # bytes between two slashes; what file systems take


def object_path(address: str, buckets: Path) -> Path | None:
    """Return the file that stands for gs://BUCKET/NAME; None if the address has another form or leaves its bucket."""
    bucket, _, name = address.removeprefix("gs://").partition("/")
    parts = PurePosixPath(name).parts
    if not address.startswith("gs://") or not BUCKET.fullmatch(bucket) or not parts:
        return None
    if {".", ".."} & {*parts} or "\0" in name:
        return None
    return buckets.joinpath(bucket, *parts)


def folder_fault(address: str, place: str) -> Finding | None:
    """Return why the address at this place is no folder in a bucket, None if it is one."""
    bucket, _, name = address.removeprefix("gs://").rstrip("/").partition("/")
    finding = name_fault(name) if name else None
    if not address.startswith("gs://") or not bucket:
        finding = Finding("", "is no folder in a bucket", "write gs://BUCKET/FOLDER")
    elif not BUCKET.fullmatch(bucket):
        cure = "write a-z, 0-9, -, _ and ., with a letter or a digit at both ends"
        finding = Finding("", "begins with no bucket's name", cure)
    return finding and replace(finding, place=place, fault=f"{json.dumps(address)} {finding.fault}")


def name_fault(name: str) -> Finding | None:
    """Return why no file can have this object name, None if one can."""
    parts = name.removesuffix("/").split("/")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return Finding("", "is not Unicode", "use characters that UTF-8 has")
    if re.search(r"[\0\r\n]", name):
        return Finding("", "has a NUL or a line break", "leave it out")
    if {"", ".", ".."} & {*parts}:
        fault = 'has a part that is empty, "." or ".." and would be no file'
        return Finding("", fault, "name each part between slashes")
    if max(lengths) > LONGEST_PART or sum(lengths) + len(lengths) > LONGEST_NAME:
        cure = f"keep to {LONGEST_PART} bytes between slashes and {LONGEST_NAME} in all"
        return Finding("", "is too long for a file", cure)
    return None
