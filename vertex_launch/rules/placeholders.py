"""Marks of a template that nobody replaced, where no shell and no service replaces them either."""

import re
from collections.abc import Iterator

from vertex_launch.addresses import folder_fault
from vertex_launch.rules import shells
from vertex_launch.rules.rule import Finding, Findings, RuleContext, rule
from vertex_launch.spec import OUTPUT, Job, Pool

OF_CLOUD = "project|bucket|gcs|gcp|registry|repository|region|your|my"
# Certain in any text; <image> and [USER], which models know as tokens, are not.
MARK = re.compile(
    r"(?<![$\w])\$(?:\{[A-Z_][A-Z0-9_]*\}|[A-Z][A-Z0-9_]+\b)"
    r"|\bYOUR[-_][A-Z0-9_-]+|\byour[-_](?:project|bucket|region|image|registry|repo|dataset|account|key)\b"
    rf"|<(?i:{OF_CLOUD})\b[^<>]*>|<(?i:{OF_CLOUD})[_-][^<>]*>"
    r"|\[(?:YOUR|PROJECT|BUCKET|REGION|REGISTRY|IMAGE)[A-Z0-9_-]*\]"
    r"|\{\{[ -]*[\w.]*(?:project|bucket|region)[\w.]*[ -]*\}\}"
)
# Certain in a name of Google Cloud, in which none of these characters can stand.
MARK_IN_NAME = re.compile(rf"{MARK.pattern}|<[^<>]*>|\{{\{{.*?\}}\}}|\{{\w+\}}|\[\w+\]|\$\w+|\$\{{.*?\}}")


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    """Every place of a job with a text in which a mark would stay, but for images, which have a rule of their own."""
    folder = job.spec.base_output_directory.output_uri_prefix
    if not folder_fault(folder, OUTPUT):
        yield OUTPUT, folder
    for pool in job.pools:
        for index, variable in enumerate(pool.env):
            yield pool.at(pool.task, f"env[{index}].value"), variable.value
        yield from _program(pool)


def _program(pool: Pool) -> Iterator[tuple[str, str]]:
    """The words of a pool's own program, but for those that a shell reads, or a text of Python."""
    words = [(pool.at(pool.task, f"command[{n}]"), word) for n, word in enumerate(pool.spec.container_spec.command)]
    words += [(pool.at(pool.task, f"args[{n}]"), word) for n, word in enumerate(pool.args)]
    inline = shells.inline(words)
    if inline is None or inline.is_python:
        yield from ((place, word) for place, word in words if inline is None or place != inline.place)


@rule("placeholder", "warning", "inferred", "api-types")
def nothing_to_replace(job: Job, context: RuleContext) -> Findings:
    """No mark of a template is left, such as ${NAME}, <project-id> or YOUR_BUCKET: Vertex AI replaces $(NAME) alone.
    Otherwise: The program is given the mark itself, where it wants a value."""
    first = {text: place for place, text in reversed([*_texts(job)])}  # two pools with one are one finding
    for text, place in reversed(first.items()):
        if found := MARK.search(text):
            variable = re.fullmatch(r"\$\{?(\w+)\}?", found[0])
            of_env = f", or $({variable[1]}) if the service or env sets it" if variable else ""
            yield Finding(place, f"{found[0]} is a mark that nothing replaces", f"write what it stands for{of_env}")
