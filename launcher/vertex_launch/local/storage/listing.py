"""Lists a bucket's object names in Cloud Storage's order, page by page.

Cloud Storage orders objects by their complete names, so "a.txt" comes before "a/b". A recursive scan of the folders
yields the same order as Cloud Storage.
"""

import base64
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from vertex_launch.job.addresses import LONGEST_NAME, name_fault
from vertex_launch.local.storage.objects import bad_request, number

LARGEST_PAGE = 1000


def page(folder: Path, query: Mapping[str, str]) -> tuple[list[str], list[str], str]:
    """Return one page of a list: the names, the prefixes, and the token for the next page.

    For the last page, the token is "". `query` contains the call's parameters. Unknown parameters are ignored. Raises
    ApiError if a parameter isn't valid.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = _last_of(query.get("pageToken", ""))
    keys = _keys(folder, prefix, delimiter, max(after, query.get("startOffset", "")))
    if "endOffset" in query:
        keys = itertools.takewhile(lambda key: key < query["endOffset"], keys)
    if "matchGlob" in query:
        keys = filter(_glob(query["matchGlob"]), keys)
    size = min(number(query, "maxResults") or LARGEST_PAGE, LARGEST_PAGE)
    listed = [*itertools.islice((key for key in keys if key > after), size + 1)]
    prefixes = [key for key in listed[:size] if _rolled(key, prefix, delimiter)]
    names = [key for key in listed[:size] if not _rolled(key, prefix, delimiter)]
    token = base64.urlsafe_b64encode(listed[size - 1].encode()).decode() if listed[size:] else ""
    return names, prefixes, token


def _keys(folder: Path, prefix: str, delimiter: str, start: str) -> Iterator[str]:
    """Yield names and prefixes.

    Names that are equal up to the first delimiter after the prefix are combined into one entry.
    """
    names = (name for name in _names(folder, prefix, start) if name.startswith(prefix) and name >= start)
    return (key for key, _ in itertools.groupby(names, lambda name: _rolled(name, prefix, delimiter) or name))


def _names(folder: Path | str, prefix: str, start: str, inside: str = "") -> Iterator[str]:
    """Yield object names in order. Skip folders that can't contain a matching name, and all symbolic links."""
    try:
        with os.scandir(folder) as scanned:
            entries = [entry for entry in scanned if not name_fault(inside + entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted after its parent was read
    if inside and not entries:
        yield inside  # an empty folder is an empty object, as in a bucket that Vertex AI mounts
    for name, entry in sorted((f"{inside}{e.name}{'/' * e.is_dir(follow_symlinks=False)}", e) for e in entries):
        if not name.endswith("/"):
            if entry.is_file(follow_symlinks=False):
                yield name
        elif (name.startswith(prefix) or prefix.startswith(name)) and name >= start[: len(name)]:
            yield from _names(entry.path, prefix, start, name)


def _rolled(name: str, prefix: str, delimiter: str) -> str:
    """Return the name up to the first delimiter after the prefix. Return "" if there is no such delimiter."""
    end = name.find(delimiter, len(prefix)) if delimiter else -1
    return name[: end + len(delimiter)] if end >= 0 else ""


def _glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a name matches a matchGlob pattern. A * doesn't match a slash, but ** does.

    To limit the run time, the function tracks all positions in a name that the pattern can reach. A regular expression
    would backtrack through these positions.
    """
    if len(pattern) > LONGEST_NAME:
        raise bad_request(f"matchGlob has more than {LONGEST_NAME} characters; shorten it.")
    try:
        steps = [(token, _texts(token)) for token in re.findall(r"\*\*|\[[^]]+]|{[^}]*}|.", pattern, re.DOTALL)]
    except re.error as error:
        raise bad_request(f'matchGlob "{pattern}" isn\'t valid: {error}.') from None
    return lambda name: len(name) in functools.reduce(lambda reached, step: _reach(name, reached, *step), steps, {0})


def _texts(token: str) -> list[re.Pattern[str]]:
    """Return regular expressions for a glob token. For a star, each prefix of a match is also a match."""
    if token in ("*", "**", "?"):
        return [re.compile({"*": "[^/]*", "**": ".*", "?": "[^/]"}[token], re.DOTALL)]
    if token[0] == "{" and len(token) > 1:
        return [re.compile(re.escape(text)) for text in token[1:-1].split(",")]
    return [re.compile(re.sub(r"^\[!", "[^", token) if len(token) > 1 else re.escape(token))]


def _reach(name: str, starts: set[int], token: str, texts: Sequence[re.Pattern[str]]) -> set[int]:
    """Return the positions in a name at which a token can end if it begins at a position in `starts`."""
    ends: set[int] = set()
    for start in sorted(starts):
        for match in filter(None, (text.match(name, start) for text in texts if token[0] != "*" or start not in ends)):
            ends.update(range(start, match.end() + 1) if token[0] == "*" else [match.end()])
    return ends


def _last_of(token: str) -> str:
    """Return the last object name on the previous page. If the token is empty, return ""."""
    try:
        return base64.b64decode(token, altchars="-_", validate=True).decode()
    except ValueError:
        raise bad_request("The pageToken isn't valid; request the first page, without a token.") from None
