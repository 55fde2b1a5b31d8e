"""Defines findings, which describe problems in the user's input, and the exception that contains findings."""

import difflib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

FILE_LIMIT = 2**20  # bytes; the largest sensible job file has a few thousand
SHOWN = 50  # maximum number of findings of one kind to show
COUNTED = 1000  # maximum number of findings to look for; finding the intended name takes a millisecond

EXTRAS = {"matplotlib": "plots", "optuna": "search", "tensorboard": "tensorboard"}  # library -> its extra

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A problem in the user's input, with its location, description, and fix."""

    place: str  # such as `workerPoolSpecs[1].machineSpec`; "" for the whole file, or for no file
    fault: str
    cure: str = ""  # "" only if the fault is a complete sentence that includes the fix
    line: int = 0  # of the file; 0 if there is no line
    code: str = ""  # of the rule that found it
    severity: Severity = "error"

    @property
    def sentence(self) -> str:
        return f"{self.fault}; {self.cure}" if self.cure else self.fault

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence}" if self.place else self.sentence

    def below(self, place: str) -> "Finding":
        """Return the finding with `place` prepended to its location, for use in an enclosing document."""
        return replace(self, place=f"{place}.{self.place}" if self.place else place)


Findings = Iterator[Finding]


class FaultError(ValueError):
    """An exception for errors in the user's input. Each line of its message begins with the filename.

    If an argument is a string, it becomes a finding without a location.
    """

    def __init__(self, *findings: Finding | str, file: Path | str = "") -> None:
        self.findings = tuple(finding if isinstance(finding, Finding) else Finding("", finding) for finding in findings)
        super().__init__("\n".join(f"{start(file, finding.line)}{finding}" for finding in self.findings))


@contextmanager
def of_file(file: Path | str) -> Iterator[None]:
    """If the `with` block raises a FaultError, prefix each line of the error message with the filename."""
    try:
        yield
    except FaultError as error:
        raise FaultError(*error.findings, file=file) from None


def start(file: Path | str, line: int) -> str:
    """Return a clickable message prefix such as `jobs/run.yaml:31: `. If the line or file is unknown, omit it."""
    return f"{file}:{line}: " if file and line else f"{file}: " if file else ""


def nearest(word: str, candidates: Iterable[str], least: float = 0.6) -> str:
    """Return the candidate that is most similar to `word`. Ignore case, hyphens, and underscores.

    If the similarity of every candidate is below `least`, a value from 0 to 1, return "".
    """
    names = {letters(name): name for name in candidates}
    close = difflib.get_close_matches(letters(word), names, n=1, cutoff=least)
    return names[close[0]] if close else ""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Suggest a fix for a misspelled name: the most similar candidate, or, if none is similar, all candidates."""
    names = tuple(candidates)
    guess = nearest(word, names)
    return f"did you mean {guess}?" if guess else f"use one of {', '.join(names)}"


def listed(names: Sequence[str], last: str) -> str:
    """Join names into a phrase such as `A, B and C`, with `last`, such as `and`, before the last name."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def first(findings: Iterable[Finding]) -> Findings:
    """Yield the first SHOWN findings, followed by one that gives the number of remaining findings.

    This function is idempotent.
    """
    iterator = iter(findings)
    yield from islice(iterator, SHOWN)
    surplus = [*islice(iterator, COUNTED - SHOWN)]
    if len(surplus) == 1:
        yield from surplus
    elif surplus:
        least = "at least " if SHOWN + len(surplus) == COUNTED else ""
        yield replace(surplus[0], fault=f"... and {least}{len(surplus):,} more", cure="fix the findings above first")


def not_installed(library: str, place: str) -> Findings:
    """Yield a finding if an optional library isn't installed."""
    if not importlib.util.find_spec(library):
        fault = f"{library} is required, but it isn't installed"
        yield Finding(place, fault, f"run: pip install 'vertex-launch[{EXTRAS[library]}]'")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises FaultError if the file is larger than 1 MiB, unreadable, or not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) <= FILE_LIMIT:
            return data.decode()
        problem = ("the file is larger than 1 MiB", "check that this is the right file")
    except FileNotFoundError:
        problem = ("the file doesn't exist", _other_name(path))
    except IsADirectoryError:
        problem = ("this path is a folder", "specify a file in this folder")
    except OSError as fault:
        problem = (f"the file can't be read ({fault.strerror})", "check the file's permissions")
    except UnicodeDecodeError as fault:
        problem = (f"byte {fault.start} isn't valid UTF-8", "save the file as UTF-8")
    raise FaultError(Finding("", *problem), file=path)


def letters(word: str) -> str:
    """Return a name in lowercase without hyphens or underscores.

    The returned name is the same for camelCase, snake_case, and gcloud's spelling.
    """
    return word.replace("-", "").replace("_", "").casefold()


def _other_name(path: Path) -> str:
    siblings = {file.stem: file.name for file in path.parent.glob("[!.]*") if file.is_file()}
    guess = siblings.get(nearest(path.stem, siblings))  # without the extension, which makes names similar
    return f"did you mean {guess}?" if guess else "check the filename and the current folder"
