"""The schema file that editors use for a job file. The job file's first line contains the schema file's path."""

import contextlib
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from google.cloud.aiplatform_v1 import gapic_version

from vertex_launch import __version__
from vertex_launch.untrusted.regular_file import open_regular

# Only this filename is accepted, so that a job file can't make `check` write any other file.
FIRST_LINE = re.compile(rb"# yaml-language-server: \$schema=((?:\.\.?/)*schema\.json)\s")
BEGINNING = 400  # bytes; enough for a job file's first line and a schema's mark
MARK = b"written by vertex-launch"
SOURCES = ("json_schema.py", "proto_validation.py", "spec.py")  # the files that generate the schema


def mark() -> str:
    """Return the text that identifies schema files from this launcher.

    To save 0.3 s, this function computes the mark without generating the schema.
    """
    code = zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES))
    return f"{MARK.decode()} {__version__} ({code:08x}), google-cloud-aiplatform {gapic_version.__version__}"


def write_for(jobs: Iterable[Path]) -> None:
    """Write the schema files that job files refer to. Skip schema files that are up to date."""
    for file in dict.fromkeys(file for job in jobs for file in _named(job)):
        with contextlib.suppress(OSError):  # editors also work without a schema
            if _is_missing_or_old(file):
                _write(file)


def _named(job: Path) -> list[Path]:
    """Return a list with the schema file that a job file refers to, or an empty list if there is none.

    If the job file is a pipe, it has already been read, so this function doesn't read it again.
    """
    with contextlib.suppress(OSError), open_regular(job) as file:
        if named := FIRST_LINE.match(file.read(BEGINNING)):
            return [job.parent / os.fsdecode(named[1])]
    return []


def _is_missing_or_old(file: Path) -> bool:
    """Return whether the launcher should write the file.

    The launcher never replaces a file that doesn't contain its mark.
    """
    try:
        with open_regular(file) as found:
            beginning = found.read(BEGINNING)
    except FileNotFoundError:
        return True
    return MARK in beginning and mark().encode() not in beginning


def _write(file: Path) -> None:
    """Write a schema file atomically, so that a reader sees either the old schema or the new one."""
    from vertex_launch.job import json_schema  # `check` rarely needs it

    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(json_schema.text(mark()), encoding="utf-8")
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
