"""Errors for the person at the keyboard: sentences that name the place, the fault and the cure."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

FILE_LIMIT = 2**20  # bytes; the largest sensible job file has a few thousand
SHOWN = 50  # faults of one kind; nobody reads more
COUNTED = 1000  # of them; a guess at what a misspelt name was takes a millisecond

T = TypeVar("T")


class FaultError(ValueError):
    """Something the user wrote cannot be used; its text has one line for each fault."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that `word` was probably meant to be, or ""; case, - and _ do not count."""
    names = {_letters(name): name for name in known}
    close = difflib.get_close_matches(_letters(word), names, n=1)
    return names[close[0]] if close else ""


def first(faults: Iterable[T], summed_up: Callable[[T, str], T]) -> Iterator[T]:
    """The first faults and, in place of the next, how many more there are; what is counted, too, has a limit.

    Args:
        summed_up: makes a fault with this text, in place of that one.
    """
    rest = iter(faults)
    yield from islice(rest, SHOWN)
    for fault in islice(rest, 1):
        more = 1 + sum(1 for _ in islice(rest, COUNTED - SHOWN - 1))
        least = "at least " if SHOWN + more == COUNTED else ""
        yield summed_up(fault, f"... and {least}{more:,} more; mend those above first")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A cure for a misspelt name: the nearest one, else all that are known."""
    names = tuple(known)
    guess = nearest(word, names)
    return f"did you mean {guess}?" if guess else f"use one of {', '.join(names)}"


def read_text(path: Path, error: type[FaultError]) -> str:
    """The text of a small UTF-8 file; whatever prevents that is raised as `error`."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
    except FileNotFoundError:
        raise error(f"{path}: there is no such file; {_other_name(path)}") from None
    except IsADirectoryError:
        raise error(f"{path}: is a folder; name a file in it") from None
    except OSError as fault:
        raise error(f"{path}: cannot be read ({fault.strerror}); check its permissions") from None
    if len(data) > FILE_LIMIT:
        raise error(f"{path}: is larger than 1 MiB; this is hardly the file you meant")
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise error(f"{path}: byte {fault.start} is not UTF-8 text; save the file as UTF-8") from None


def _letters(word: str) -> str:
    return word.replace("-", "").replace("_", "").casefold()


def _other_name(path: Path) -> str:
    others = {other.stem: other.name for other in path.parent.glob("[!.]*") if other.is_file()}
    guess = others.get(nearest(path.stem, others))  # without the ending, which makes all of them alike
    return f"did you mean {guess}?" if guess else "check its name and the folder you are in"
