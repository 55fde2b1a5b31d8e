"""Describes the files that are discarded when a replica exits."""

import re
from collections.abc import Iterable
from pathlib import Path

NAMED = 3  # the maximum number of files to list
SCHEME = "gs:"  # the name of a folder that a program creates if it uses a URI as a path
ROOTS = ("/tmp", "/var/tmp", "/dev/shm")
# Matches files that tools and libraries leave, and system folders.
OF_TOOLS = re.compile(
    r"(^|/)(\.|__|torch(inductor|elastic)_|pip-|ray/|hsperfdata_)|cache[^/]*/|\.pyc$|/site-packages/"
    r"|^/(etc|run|usr)/|^/var/(?!tmp/)"
    r"|^/dev/shm/(sem\.|psm_|torch_)"  # locks and shared memory, which remain if a process is killed
    r"|^/tmp/(tmp|pymp-)[a-z0-9_]{8}(/|$)"  # Python's temporary files
)


def in_scheme(paths: Iterable[Path]) -> str:
    """Return a sentence about the files in a folder named `gs:`, or "" if there are none."""
    found = sorted(path for path in paths if SCHEME in path.parts)
    if not found:
        return ""
    name = "/".join(found[0].parts[found[0].parts.index(SCHEME) + 1 :])
    what = f"{found[0].name} and {len(found) - 1} more files were" if len(found) > 1 else f"{found[0].name} was"
    where = f"written to a local folder named {SCHEME}, not to Cloud Storage, because"
    return f"{what} {where} {SCHEME}//{name} isn't a file path. Use /gcs/{name}"


def discarded(paths: Iterable[Path], cwd: Path, home: Path) -> str:
    """Return a line that lists the discarded files, or "" if there are none.

    Files in the working directory come first.
    """
    own = {cwd: ("", "the working directory"), home: ("~/", "the home folder")}
    found = []
    for path in paths:
        folder = max((folder for folder in own if folder in path.parents), key=lambda one: len(one.parts), default=None)
        root = next((root for root in ROOTS if path.is_relative_to(root)), f"/{path.parts[1]}")
        prefix, where = own[folder] if folder else ("/", root)
        name = prefix + str(path.relative_to(folder or "/"))
        if SCHEME not in path.parts and not OF_TOOLS.search(name):
            found.append((folder != cwd, name, where))
    if not found:
        return ""
    names = [name for _, name, _ in sorted(found)]
    *first, last = dict.fromkeys(where for _, _, where in sorted(found))
    places = f"{', '.join(first)} and {last}" if first else last
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    end = "were discarded when this replica exited, as in a container. To keep files, write them under /gcs"
    return f"{', '.join(names[:NAMED])}{more}: files in {places} {end}\n"
