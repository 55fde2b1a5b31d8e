"""Prints the results of commands to stdout, and findings and errors to stderr."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vertex_launch import rules
from vertex_launch.errors import FaultError, start
from vertex_launch.facts.catalog import Catalog
from vertex_launch.job.spec import Job, TuningJob
from vertex_launch.rules import check as checks
from vertex_launch.rules import training
from vertex_launch.rules.check import Examined
from vertex_launch.settings import Settings
from vertex_launch.untrusted import printable

WIDEST = 200  # columns


class Lasting(Console):
    """A console that stops printing if its output pipe is closed. A closed pipe doesn't affect the exit code."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


# A user's brackets and colons are printed literally, not as markup or emoji.
PLAIN: Mapping[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False, "emoji": False}
console, lasting, errors = Console(**PLAIN), Lasting(**PLAIN), Console(stderr=True, **PLAIN)


def approved(path: Path, *places: Settings) -> list[Job | TuningJob]:
    """Check a job file with each set of settings, and return one job per set.

    Print each finding only once. If the job file has an error, exit with code 1.
    """
    project = training.project(Path(), date.today())
    examined = [checks.examine(path, settings, project) for settings in places]
    findings = dict.fromkeys(finding for one in examined for finding in one.findings)
    report(replace(examined[0], findings=tuple(findings)))
    jobs = [one.job for one in examined if one.job and one.passes(strict=False)]
    if len(jobs) < len(places):
        raise SystemExit(1)
    return jobs


def refuse_unknown_flags(file: Job, job: Job, settings: Settings) -> None:
    """Raise FaultError if the trainer would reject a flag after `--`. This check runs before any file is deleted."""
    project = training.project(Path(), date.today())
    before, after = rules.findings(file, settings, project), rules.findings(job, settings, project)
    in_file = {finding.sentence for finding in before}
    if new := {finding.sentence for finding in after if finding.code in training.FLAG_RULES} - in_file:
        raise FaultError(*(f"after --: {sentence}" for sentence in sorted(new)))


def report(examined: Examined) -> None:
    for finding in examined.findings:
        style = "red" if finding.severity == "error" else "yellow"
        where = start(examined.path, finding.line)
        code = f" ({finding.code})" if finding.code else ""
        errors.print(Text.assemble(where, (finding.severity, style), f": {printable.lines(str(finding))}{code}"))


def print_table(table: Table) -> None:
    """Print a table. If stdout isn't a terminal, make the table wide enough that cells aren't truncated."""
    (console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDEST)).print(table)


def warn_of_age(catalog: Catalog) -> None:
    """Print a warning if the rules use outdated facts about Vertex AI."""
    if old := checks.facts_notice(catalog, date.today()):
        complain(old, style="yellow")


@contextlib.contextmanager
def interrupted(message: str) -> Iterator[None]:
    """If the user presses Ctrl-C during the `with` block, even at a prompt, print `message` and exit with code 130."""
    try:
        yield
    except (KeyboardInterrupt, EOFError):
        errors.print(f"\n{message}")
        raise SystemExit(130) from None


def confirmed(question: str) -> bool:
    """Ask for confirmation, and return whether the user confirmed. Raises EOFError if stdin provides no input."""
    return input(f"{question} [y/N]: ").strip().casefold() in ("y", "yes")


def complain(text: str, style: str = "red") -> None:
    """Print a message to stderr. Replace control characters, which could affect the terminal."""
    errors.print(Text(printable.lines(text), style=style))
