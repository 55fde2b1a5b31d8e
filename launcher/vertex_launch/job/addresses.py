"""Validation of Cloud Storage URIs of the form gs://BUCKET/NAME.

Source: Cloud Storage documentation, "About Cloud Storage buckets" and "About Cloud Storage objects", 2026, and the
limits of buckets that are mounted at /gcs.
"""

import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

from vertex_launch.errors import Finding

# Jobs can use buckets whose names are shorter than the 3 characters that Cloud Storage requires for new buckets.
BUCKET = re.compile("[a-z0-9]([a-z0-9._-]{0,220}[a-z0-9])?")
LONGEST_NAME = 1024  # bytes in the name of an object
LONGEST_PART = 255  # bytes between two slashes; the limit of file systems


def object_path(address: str, buckets: Path) -> Path | None:
    """Return the path of the local file that represents gs://BUCKET/NAME.

    Return None if the URI has a different form or refers to a file outside the bucket.
    """
    bucket, _, name = address.removeprefix("gs://").partition("/")
    parts = PurePosixPath(name).parts
    if not address.startswith("gs://") or not BUCKET.fullmatch(bucket) or not parts:
        return None
    if {".", ".."} & {*parts} or "\0" in name:
        return None
    return buckets.joinpath(bucket, *parts)


def folder_fault(address: str, place: str) -> Finding | None:
    """Return a finding if a URI in a job doesn't refer to a folder in a bucket. Otherwise, return None."""
    bucket, _, name = address.removeprefix("gs://").rstrip("/").partition("/")
    finding = name_fault(name) if name else None
    if not address.startswith("gs://") or not bucket:
        finding = Finding("", "isn't a folder in a bucket", "write gs://BUCKET/FOLDER")
    elif not BUCKET.fullmatch(bucket):
        cure = "use only a-z, 0-9, hyphens, underscores, and periods; begin and end with a letter or a digit"
        finding = Finding("", "doesn't begin with a valid bucket name", cure)
    return finding and replace(finding, place=place, fault=f"{json.dumps(address)} {finding.fault}")


def name_fault(name: str) -> Finding | None:
    """Return a finding if an object name can't be used as a file path. Otherwise, return None."""
    parts = name.removesuffix("/").split("/")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return Finding("", "isn't valid Unicode", "use characters that UTF-8 can encode")
    if re.search(r"[\0\r\n]", name):
        return Finding("", "contains a NUL character or a line break", "remove it")
    if {"", ".", ".."} & {*parts}:
        fault = 'contains a path segment that isn\'t a filename (an empty one, ".", or "..")'
        return Finding("", fault, "write a name between all slashes")
    if max(lengths) > LONGEST_PART or sum(lengths) + len(lengths) > LONGEST_NAME:
        cure = f"use at most {LONGEST_PART} bytes between slashes and {LONGEST_NAME} bytes in total"
        return Finding("", "is too long for a filename", cure)
    return None
