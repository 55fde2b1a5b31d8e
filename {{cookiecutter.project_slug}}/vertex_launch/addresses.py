"""Addresses in Cloud Storage, gs://BUCKET/NAME: which names a bucket and an object may have.

Source: Cloud Storage documentation, "About Cloud Storage buckets" and "About Cloud Storage objects", 2026, and what
a bucket that is mounted at /gcs can hold.
"""

import re
from pathlib import Path, PurePosixPath

# A bucket that jobs use may have a shorter name than the 3 characters that Cloud Storage asks of a new one.
BUCKET = re.compile("[a-z0-9]([a-z0-9._-]{0,220}[a-z0-9])?")
LONGEST_NAME = 1024  # bytes, of an object
LONGEST_PART = 255  # bytes between two slashes; what file systems take

Fault = tuple[str, str]  # and its cure


def object_path(address: str, buckets: Path) -> Path | None:
    """The file that stands for gs://BUCKET/NAME; None if the address has another form or leaves its bucket."""
    bucket, _, name = address.removeprefix("gs://").partition("/")
    parts = PurePosixPath(name).parts
    if not address.startswith("gs://") or not BUCKET.fullmatch(bucket) or not parts:
        return None
    if {".", ".."} & {*parts} or "\0" in name:
        return None
    return buckets.joinpath(bucket, *parts)


def folder_fault(address: str) -> Fault | None:
    """Why an address is no folder in a bucket."""
    bucket, _, name = address.removeprefix("gs://").rstrip("/").partition("/")
    if not address.startswith("gs://") or not bucket:
        return "is no folder in a bucket", "write gs://BUCKET/FOLDER"
    if not BUCKET.fullmatch(bucket):
        return "begins with no bucket's name", "write a-z, 0-9, -, _ and ., with a letter or a digit at both ends"
    return name_fault(name) if name else None


def name_fault(name: str) -> Fault | None:
    """Why no file can have an object's name."""
    parts = name.removesuffix("/").split("/")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "is not Unicode", "use characters that UTF-8 has"
    if re.search(r"[\0\r\n]", name):
        return "has a NUL or a line break", "leave it out"
    if {"", ".", ".."} & {*parts}:
        return 'has a part that is empty, "." or ".." and would be no file', "name each part between slashes"
    if max(lengths) > LONGEST_PART or sum(lengths) + len(lengths) > LONGEST_NAME:
        return "is too long for a file", f"keep to {LONGEST_PART} bytes between slashes and {LONGEST_NAME} in all"
    return None
