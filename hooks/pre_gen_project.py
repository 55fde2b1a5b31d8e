"""Check the answers before cookiecutter writes files, and reject answers that Google Cloud would reject later."""

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
Finding = tuple[str, str]  # a question, and the problem with its answer

# The filter writes one line of ASCII and escapes quotes, so an answer can't end this string. It sorts the keys.
ANSWERS: Answers = json.loads(r"""{{ cookiecutter | tojson }}""")
SHELL = Path(os.environ.get("PWD", "..")).resolve()  # the folder in which the user ran the command
QUESTIONS = [key for key in json.loads(r"""{{ cookiecutter | list | tojson }}""") if not key.startswith("_")]

CHOICES = {
    "framework": ("pytorch", "tensorflow"),
    "example": ("images", "text"),
    "parts": ("core", "all"),
    "license": ("Apache-2.0", "MIT", "none"),
}

# No control characters, line ends or surrogates, and no template marks, because an update would execute them.
TEXT = r"(?!.*[{][#%{])[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*"
TEXT_IN_WORDS = 'one line without control characters and without "{" before another "{", "%" or "#"'
VERSION = r"[0-9]+(\.[0-9]+)*[a-z0-9.+-]*"
PLACE = r"[a-z+]+://[^\s{}]+|[^{}:]+[.](whl|zip|tar[.]gz)"
SPECIFIERS = rf"(==|~=|!=|[<>]=?) ?{VERSION}(, ?(==|~=|!=|[<>]=?) ?{VERSION})*"
BUCKET_PART = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"

# Question: the pattern of the complete answer, a description of the pattern, an example.
SHAPES = {
    "project_name": (rf"(?=.*\S){TEXT}", f"{TEXT_IN_WORDS}, not blank", "Digits on Vertex"),
    "project_slug": (
        r"(?=.{2,40}\Z)[a-z][a-z0-9]*(-[a-z0-9]+)*",
        "2 to 40 lowercase letters, digits and single hyphens, and must start with a letter",
        "digits-vit",
    ),
    "description": (TEXT, TEXT_IN_WORDS, "Reads handwritten digits."),
    "author": (rf"(?=.*\S){TEXT}", f"{TEXT_IN_WORDS}, not blank", "Ada Lovelace"),
    "gcp_project": (
        r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "a project ID of 6 to 30 lowercase letters, digits and hyphens, "
        "which starts with a letter and doesn't end with a hyphen",
        "my-project-123",
    ),
    "bucket": (
        r"(?=.{3,222}\Z)" + BUCKET_PART + rf"([.]{BUCKET_PART})*",
        "a bucket name without gs:// and without a folder: 3 to 63 lowercase letters, digits, hyphens, "
        "underscores and dots that start and end with a letter or digit",
        "my-project-training",
    ),
    "machine_count": (
        r"[2-9]|[1-9][0-9]{1,2}|1000",
        "a whole number from 2 to 1000 (for one machine, use jobs/single.yaml)",
        "2",
    ),
    "launcher": (
        rf"|{VERSION}|(vertex-launch ?)?{SPECIFIERS}|(vertex-launch @ )?({PLACE})",
        "empty, or a pip requirement for vertex-launch: a version, a wheel, an archive or a URL",
        "0.2.0, vertex-launch>=0.2,<0.3 or git+https://git.example.com/tpl#subdirectory=launcher",
    ),
}


def wrong_shape(answers: Answers) -> Iterator[Finding]:
    """Yield a finding for each answer that doesn't match the pattern of its question."""
    for question, (pattern, words, example) in SHAPES.items():
        if not re.fullmatch(pattern, answers[question]):
            yield question, f"{answers[question]!r} must be {words}; for example {example}"


def wrong_choice(answers: Answers) -> Iterator[Finding]:
    """Yield a finding for each choice that isn't on the list. Only a replay file can contain such a choice."""
    for question, choices in (CHOICES | {"worker_machine": tuple(answers["_machines"])}).items():
        if answers[question] not in choices:
            yield question, f"{answers[question]!r} must be one of {', '.join(choices)}"


def reserved_bucket(answers: Answers) -> Iterator[Finding]:
    """Yield a finding if Cloud Storage doesn't allow the bucket name."""
    bucket = answers["bucket"]
    if bucket.startswith("goog") or "google" in bucket or re.fullmatch(r"([0-9]+[.]){3}[0-9]+", bucket):
        cure = "must not start with goog, contain google or look like an IP address"
        yield "bucket", f"{bucket!r} {cure}; for example my-project-training"


def unknown_region(answers: Answers) -> Iterator[Finding]:
    """Yield a finding if the region doesn't offer GPUs for training. A wrong region is usually a typo or a zone."""
    region, regions = answers["region"], answers["_regions"]
    if region not in regions:
        near = get_close_matches(region.lower(), regions, n=1) or ["us-central1"]
        yield "region", f"{region!r} must be a region with GPUs for training; for example {near[0]}"


def missing_accelerator(answers: Answers) -> Iterator[Finding]:
    """Yield a finding if the region doesn't offer the selected machine for training."""
    region, regions, machine = answers["region"], answers["_regions"], answers["worker_machine"]
    accelerator = answers["_machines"].get(machine, {}).get("accelerator")
    if accelerator and accelerator not in regions.get(region, [accelerator]):
        offers = ", ".join(name for name, accelerators in regions.items() if accelerator in accelerators)
        yield "region", f"{region!r} doesn't offer {accelerator} for {machine}; use one of these regions: {offers}"


def missing_launcher(answers: Answers) -> Iterator[Finding]:
    """Yield a finding if the launcher's wheel or archive doesn't exist on this machine."""
    typed = answers["launcher"].removeprefix("vertex-launch @ ")
    if typed.endswith((".whl", ".zip", ".tar.gz")) and "://" not in typed and not (SHELL / typed).is_file():
        yield (
            "launcher",
            f"the file {SHELL / typed} doesn't exist; for example dist/vertex_launch-0.2.0-py3-none-any.whl",
        )


def misspelled(words: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each misspelled question on the command line. cookiecutter ignores such questions."""
    for question, answer in re.findall(r"^([\w-]+)=(.*)", "\n".join(words), re.MULTILINE):
        if question not in QUESTIONS and (near := get_close_matches(question, QUESTIONS, n=1)):
            yield question, f"isn't a question of this template; did you mean {near[0]}={answer}?"


def command_line() -> list[str]:
    """Return the arguments of the parent process, cookiecutter. Return [] if the arguments can't be read."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["ps", "-o", "args=", "-p", str(os.getppid())], text=True).split()
    return []


RULES = (wrong_shape, wrong_choice, reserved_bucket, unknown_region, missing_accelerator, missing_launcher)


def findings(answers: Answers) -> list[Finding]:
    """Return all findings in the order of the questions. Defaults that depend on a wrong answer are excluded."""
    unsorted = (finding for rule in RULES for finding in rule(answers))
    ordered = sorted(unsorted, key=lambda finding: QUESTIONS.index(finding[0]))
    refused = {question for question, _ in ordered}
    return [finding for finding in ordered if not followed(finding[0], answers, refused)]


def followed(question: str, answers: Answers, refused: set[str]) -> bool:
    """Return whether the answer to this question is the default bucket of a rejected project."""
    default = answers["gcp_project"].rpartition(":")[2] + "-training"
    return question == "bucket" and "gcp_project" in refused and answers["bucket"] == default


def command(answers: Answers, refused: set[str]) -> str:
    """Return the command that asks the questions again in the same folder, with the valid answers as defaults."""
    gone = {question for question in QUESTIONS if question in refused or followed(question, answers, refused)}
    good = [f"{question}={answers[question]}" for question in QUESTIONS if question not in gone]
    folder = Path.cwd().parent
    elsewhere = [] if folder == Path(os.environ.get("PWD", folder)).resolve() else ["--output-dir", str(folder)]
    return shlex.join(["cookiecutter", *elsewhere, answers["_template"], *good])


if __name__ == "__main__":
    if unknown := [f"{question}: {fault}" for question, fault in misspelled(command_line())]:
        sys.exit("\n".join(unknown))
    typed = ANSWERS | {"project_slug": ANSWERS["__typed_slug"]}
    if wrong := findings(typed):
        print(*(f"{question}: {fault}" for question, fault in wrong), sep="\n", file=sys.stderr)
        print("To answer the questions again, with your valid answers as defaults, run:", file=sys.stderr)
        sys.exit(f"  {command(typed, {question for question, _ in wrong})}")
