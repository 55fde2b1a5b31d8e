"""The names of a bucket's objects in Cloud Storage's order, page by page.

The order is that of the whole names, so a walk of the folders yields it: "a.txt" comes before "a/b".
"""

import base64
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.emulator.objects import StorageError, name_fault, number

LARGEST_PAGE = 1000


@dataclass(frozen=True)
class Page:
    """A part of a list; the token begins the next, "" after the last."""

    names: Sequence[str]
    prefixes: Sequence[str]
    token: str


def page(folder: Path, asked: Mapping[str, str]) -> Page:
    """What a list call names; `asked` are its parameters, those that are not known do not matter.

    Raises:
        StorageError: a parameter cannot be read.
    """
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    after = _last_of(asked.get("pageToken", ""))
    keys = _keys(folder, prefix, delimiter, max(after, asked.get("startOffset", "")))
    if "endOffset" in asked:
        keys = itertools.takewhile(lambda key: key < asked["endOffset"], keys)
    if "matchGlob" in asked:
        keys = filter(_glob(asked["matchGlob"]).fullmatch, keys)
    size = min(number(asked, "maxResults") or LARGEST_PAGE, LARGEST_PAGE)
    found = [*itertools.islice((key for key in keys if key > after), size + 1)]
    prefixes = [key for key in found[:size] if _rolled(key, prefix, delimiter)]
    names = [key for key in found[:size] if not _rolled(key, prefix, delimiter)]
    return Page(names, prefixes, _token(found[size - 1]) if found[size:] else "")


def _keys(folder: Path, prefix: str, delimiter: str, start: str) -> Iterator[str]:
    """Names; those that share a delimiter after the prefix as the part up to it, once."""
    names = (name for name in _names(folder, prefix, start) if name.startswith(prefix) and name >= start)
    return (key for key, _ in itertools.groupby(names, lambda name: _rolled(name, prefix, delimiter) or name))


def _names(folder: Path | str, prefix: str, start: str, inside: str = "") -> Iterator[str]:
    """All names but those in folders without any that has the prefix or comes after the start; links are none."""
    try:
        with os.scandir(folder) as scanned:
            entries = [entry for entry in scanned if not name_fault(inside + entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted since its parent was read
    if inside and not entries:
        yield inside  # an empty folder is an object of no bytes, as the mount on Vertex makes one
    for name, entry in sorted((f"{inside}{e.name}{'/' * e.is_dir(follow_symlinks=False)}", e) for e in entries):
        if not name.endswith("/"):
            if entry.is_file(follow_symlinks=False):
                yield name
        elif (name.startswith(prefix) or prefix.startswith(name)) and name >= start[: len(name)]:
            yield from _names(entry.path, prefix, start, name)


def _rolled(name: str, prefix: str, delimiter: str) -> str:
    """The name up to the first delimiter after the prefix, or "" if there is none."""
    end = name.find(delimiter, len(prefix)) if delimiter else -1
    return name[: end + len(delimiter)] if end >= 0 else ""


@functools.lru_cache(maxsize=100)
def _glob(pattern: str) -> re.Pattern[str]:
    """As matchGlob reads it: * stays between two slashes, ** does not."""
    tokens = re.findall(r"\*\*|\[[^]]+]|{[^}]*}|.", pattern, re.DOTALL)
    try:
        return re.compile("".join(map(_glob_part, tokens)), re.DOTALL)
    except re.error as error:
        raise StorageError(400, f'matchGlob "{pattern}" cannot be read: {error}.') from None


def _glob_part(token: str) -> str:
    known = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    if len(token) > 1 and token[0] == "{":
        return f"(?:{'|'.join(map(re.escape, token[1:-1].split(',')))})"
    if len(token) > 1 and token[0] == "[":
        return re.sub(r"^\[!", "[^", token)
    return known.get(token, re.escape(token))


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _last_of(token: str) -> str:
    """The name that a page ended with, "" before the first page."""
    try:
        return base64.b64decode(token, altchars="-_", validate=True).decode()
    except ValueError:
        raise StorageError(400, "pageToken belongs to no list; begin again without it.") from None
