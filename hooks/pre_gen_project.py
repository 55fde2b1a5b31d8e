"""Refuse, before a file is written, the answers that Google Cloud would refuse later."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

Answers = dict[str, Any]
Finding = tuple[str, str]  # the question, and what is wrong with its answer

# The filter writes ASCII on one line, a quote in an answer as \", so no answer can end this string. It sorts the keys.
ANSWERS: Answers = json.loads(r"""{{ cookiecutter | tojson }}""")
SHELL = Path(os.environ.get("PWD", "..")).resolve()  # the folder in which the command was typed
QUESTIONS = [key for key in json.loads(r"""{{ cookiecutter | list | tojson }}""") if not key.startswith("_")]

CHOICES = {
    "framework": ("pytorch", "tensorflow"),
    "example": ("images", "text"),
    "parts": ("core", "all"),
    "license": ("Apache-2.0", "MIT", "none"),
}

# No control characters, line ends or halves of characters; no template mark, which an update would execute.
TEXT = r"(?!.*[{][#%{])[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*"
TEXT_IN_WORDS = 'one line without control characters and without "{" before another "{", "%" or "#"'
VERSION = r"[0-9]+(\.[0-9]+)*[a-z0-9.+-]*"
PLACE = r"[a-z+]+://[^\s{}]+|[^{}:]+[.](whl|zip|tar[.]gz)"
SPECIFIERS = rf"(==|~=|!=|[<>]=?) ?{VERSION}(, ?(==|~=|!=|[<>]=?) ?{VERSION})*"
BUCKET_PART = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"

# Question: what the whole answer matches, the same in words, an example.
SHAPES = {
    "project_name": (rf"(?=.*\S){TEXT}", f"{TEXT_IN_WORDS}, not blank", "Digits on Vertex"),
    "project_slug": (
        r"(?=.{2,40}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*",
        "2 to 40 lower-case letters, digits and single hyphens, starting with a letter",
        "digits-vit",
    ),
    "description": (TEXT, TEXT_IN_WORDS, "Reads handwritten digits."),
    "author": (rf"(?=.*\S){TEXT}", f"{TEXT_IN_WORDS}, not blank", "Ada Lovelace"),
    "gcp_project": (
        r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "a project ID of 6 to 30 lower-case letters, digits and hyphens, first a letter, last no hyphen",
        "my-project-123",
    ),
    "bucket": (
        r"(?=.{3,222}\Z)" + BUCKET_PART + rf"([.]{BUCKET_PART})*",
        "a bucket's bare name, no gs:// and no folder: 3 to 63 lower-case letters, digits, "
        "hyphens, underscores and dots, first and last a letter or digit",
        "my-project-training",
    ),
    "machine_count": (
        r"[2-9]|[1-9][0-9]{1,2}|1000",
        "a whole number from 2 to 1000 (jobs/single.yaml is the job for one machine)",
        "2",
    ),
    "launcher": (
        rf"|{VERSION}|(vertex-launch ?)?{SPECIFIERS}|(vertex-launch @ )?({PLACE})",
        "empty, or what pip can install vertex-launch from: a version, a wheel, an archive or an address",
        "0.2.0, vertex-launch>=0.2,<0.3 or git+https://git.example.com/tpl#subdirectory=launcher",
    ),
}


def wrong_shape(answers: Answers) -> Iterator[Finding]:
    """Answers that cannot be what the question asks for."""
    for question, (pattern, words, example) in SHAPES.items():
        if not re.fullmatch(pattern, answers[question]):
            yield question, f"{answers[question]!r} must be {words}; for example {example}"


def wrong_choice(answers: Answers) -> Iterator[Finding]:
    """Choices that are not on the list; only a replayed answer can be one."""
    for question, choices in (CHOICES | {"worker_machine": tuple(answers["_machines"])}).items():
        if answers[question] not in choices:
            yield question, f"{answers[question]!r} must be one of {', '.join(choices)}"


def reserved_bucket(answers: Answers) -> Iterator[Finding]:
    """Bucket names that Cloud Storage keeps for itself."""
    bucket = answers["bucket"]
    if bucket.startswith("goog") or "google" in bucket or re.fullmatch(r"([0-9]+[.]){3}[0-9]+", bucket):
        cure = "must not start with goog, contain google or look like an IP address"
        yield "bucket", f"{bucket!r} {cure}; for example my-project-training"


def unknown_region(answers: Answers) -> Iterator[Finding]:
    """A region where Vertex trains on no GPU at all, most often a typing error or a zone."""
    region, regions = answers["region"], answers["_regions"]
    if region not in regions:
        near = get_close_matches(region.lower(), regions, n=1) or ["us-central1"]
        yield "region", f"{region!r} must be a region that trains on GPUs; for example {near[0]}"


def missing_accelerator(answers: Answers) -> Iterator[Finding]:
    """A region that trains, but not on the chosen machine."""
    region, regions, machine = answers["region"], answers["_regions"], answers["worker_machine"]
    accelerator = answers["_machines"].get(machine, {}).get("accelerator")
    if accelerator and accelerator not in regions.get(region, [accelerator]):
        offers = ", ".join(name for name, accelerators in regions.items() if accelerator in accelerators)
        yield "region", f"{region!r} has no {accelerator} for {machine}; these regions have it: {offers}"


def missing_launcher(answers: Answers) -> Iterator[Finding]:
    """A wheel or an archive of the launcher that is not on this machine."""
    typed = answers["launcher"].removeprefix("vertex-launch @ ")
    if typed.endswith((".whl", ".zip", ".tar.gz")) and "://" not in typed and not (SHELL / typed).is_file():
        yield "launcher", f"there is no file {SHELL / typed}; for example dist/vertex_launch-0.2.0-py3-none-any.whl"


def misspelt(words: Sequence[str]) -> Iterator[Finding]:
    """Questions on the command line that are none, which cookiecutter ignores without a word."""
    for question, answer in re.findall(r"^([\w-]+)=(.*)", "\n".join(words), re.MULTILINE):
        if question not in QUESTIONS and (near := get_close_matches(question, QUESTIONS, n=1)):
            yield question, f"is no question; did you mean {near[0]}={answer}?"


def command_line() -> list[str]:
    """The words that started cookiecutter, this program's parent; none where the system does not tell."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["ps", "-o", "args=", "-p", str(os.getppid())], text=True).split()
    return []


RULES = (wrong_shape, wrong_choice, reserved_bucket, unknown_region, missing_accelerator, missing_launcher)


def findings(answers: Answers) -> list[Finding]:
    """Return all findings in the order of the questions, but none for a default that follows from a wrong answer."""
    unsorted = (finding for rule in RULES for finding in rule(answers))
    ordered = sorted(unsorted, key=lambda finding: QUESTIONS.index(finding[0]))
    refused = {question for question, _ in ordered}
    return [finding for finding in ordered if not followed(finding[0], answers, refused)]


def followed(question: str, answers: Answers, refused: set[str]) -> bool:
    """Whether this is the default bucket of a refused project."""
    default = answers["gcp_project"].rpartition(":")[2] + "-training"
    return question == "bucket" and "gcp_project" in refused and answers["bucket"] == default


def command(answers: Answers, refused: set[str]) -> str:
    """Return the command that asks again, in the same folder, with the good answers as defaults."""
    gone = {question for question in QUESTIONS if question in refused or followed(question, answers, refused)}
    good = [f"{question}={answers[question]}" for question in QUESTIONS if question not in gone]
    folder = Path.cwd().parent
    elsewhere = [] if folder == Path(os.environ.get("PWD", folder)).resolve() else ["--output-dir", str(folder)]
    return shlex.join(["cookiecutter", *elsewhere, answers["_template"], *good])


if __name__ == "__main__":
    if unknown := [f"{question}: {fault}" for question, fault in misspelt(command_line())]:
        sys.exit("\n".join(unknown))
    typed = ANSWERS | {"project_slug": ANSWERS["__typed_slug"]}
    if wrong := findings(typed):
        print(*(f"{question}: {fault}" for question, fault in wrong), sep="\n", file=sys.stderr)
        print("To be asked again, with your good answers as defaults:", file=sys.stderr)
        sys.exit(f"  {command(typed, {question for question, _ in wrong})}")
