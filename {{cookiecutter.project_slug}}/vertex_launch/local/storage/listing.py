"""The names of a bucket's objects in Cloud Storage's order, page by page.

The order is that of the whole names, so a walk of the folders yields it: "a.txt" comes before "a/b".
"""

import base64
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vertex_launch.addresses import LONGEST_NAME, name_fault
from vertex_launch.local.storage.objects import StorageError, number

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
        keys = filter(_glob(asked["matchGlob"]), keys)
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


def _glob(pattern: str) -> Callable[[str], bool]:
    """As matchGlob reads it: * stays between two slashes, ** does not.

    A name is read once, with all the places up to which the pattern may have come; a regular expression would try
    them one after the other, for ever if there are many.
    """
    if len(pattern) > LONGEST_NAME:
        raise StorageError(400, f"matchGlob has more than {LONGEST_NAME} characters, and no name has; shorten it.")
    tokens = re.findall(r"\*\*|\[[^]]+]|{[^}]*}|.", pattern, re.DOTALL)
    try:
        steps = [_glob_step(token) for token in tokens]
    except re.error as error:
        raise StorageError(400, f'matchGlob "{pattern}" cannot be read: {error}.') from None

    def takes(name: str) -> bool:
        places = {0}
        for step in steps:
            places = step(name, places)
        return len(name) in places

    return takes


def _glob_step(token: str) -> Callable[[str, set[int]], set[int]]:
    """From the places in a name where one part of a pattern may begin to those where it may end."""
    if token == "**":
        return lambda name, places: {*range(min(places), len(name) + 1)} if places else places
    if token == "*":
        return _to_slash
    if len(token) > 1 and token[0] == "{":
        texts = token[1:-1].split(",")
        return lambda name, places: {i + len(text) for i in places for text in texts if name.startswith(text, i)}
    one = re.compile("[^/]" if token == "?" else re.sub(r"^\[!", "[^", token) if len(token) > 1 else re.escape(token))
    return lambda name, places: {i + 1 for i in places if one.match(name, i)}


def _to_slash(name: str, places: set[int]) -> set[int]:
    """These places and all behind them before the next slash."""
    reached: set[int] = set()
    for place in sorted(places):
        if place not in reached:
            end = name.find("/", place)
            reached |= {*range(place, (end if end >= 0 else len(name)) + 1)}
    return reached


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _last_of(token: str) -> str:
    """The name that a page ended with, "" before the first page."""
    try:
        return base64.b64decode(token, altchars="-_", validate=True).decode()
    except ValueError:
        raise StorageError(400, "pageToken belongs to no list; begin again without it.") from None
