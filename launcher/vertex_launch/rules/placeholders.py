"""Rules for template placeholders that neither a shell nor Vertex AI replaces."""

import re
from collections.abc import Iterator
from itertools import pairwise

from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.spec import OUTPUT, Job, Pool
from vertex_launch.rules import shells
from vertex_launch.rules.rule import Finding, Findings, RuleContext, rule

MARKS = shells.FACTS["marks"]
ENGINE, MARK = ([re.compile(pattern, re.DOTALL) for pattern in MARKS[key]] for key in ("engine", "text"))
READER = re.compile(rf"\b(?:{'|'.join(shells.FACTS['readers'])})\b")
WORD = re.compile(r"""(?:\$?\{\{[^{}\n]*\}\}|\{"IfPresent.{0,2000}\}|[^\s'"])+""")  # a word of a script
REPLACED = re.compile(r"(?<!\{\{)\$(?!\{\{|\{\w+\.)")  # a shell replaces these
MARK_IN_NAME = re.compile("|".join([*MARKS["text"][:-2], *MARKS["name"]]))


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the location and text of each value that can contain a placeholder. A separate rule checks images."""
    folder = job.spec.base_output_directory.output_uri_prefix
    if not folder_fault(folder, OUTPUT):
        yield OUTPUT, folder
    for pool in job.pools:
        for index, variable in enumerate(pool.env):
            yield pool.at(pool.task, f"env[{index}].value"), f"{variable.name}={variable.value}"
        yield from _program(pool)


def _program(pool: Pool) -> Iterator[tuple[str, str]]:
    """Yield the location and text of each word of a pool's command line, except words that a shell expands."""
    words = [(pool.at(pool.task, f"command[{n}]"), word) for n, word in enumerate(pool.spec.container_spec.command)]
    words += [(pool.at(pool.task, f"args[{n}]"), word) for n, word in enumerate(pool.args)]
    text = shells.inline(words)
    if READER.search(text.text if text else "".join(word for _, word in words[:1])):
        return
    if text:
        left = [] if text.is_python else [word for word in WORD.findall(text.text) if not REPLACED.search(word)]
        words = [one for one in words if one[0] != text.place] + [(text.place, word) for word in left]
    for (_, flag), (place, word) in pairwise([("", ""), *words]):
        yield place, f"{flag}={word}" if re.fullmatch("--?[^=]+", flag) else word


def _marks(job: Job, of_engine: bool) -> Iterator[tuple[str, str]]:
    """Yield the location and text of each placeholder. If two pools have the same text, report it only once."""
    first = {text: place for place, text in reversed([*_texts(job)])}
    for text, place in reversed(first.items()):
        engine, mark = (next(filter(None, (one.search(text) for one in kind)), None) for kind in (ENGINE, MARK))
        if found := engine if of_engine else None if engine else mark:
            yield place, found[found.lastgroup or 0]


@rule("placeholder-engine", "error", "documented", "placeholders")
def nothing_compiled(job: Job, context: RuleContext) -> Findings:
    """A job must not contain placeholders that only other systems replace, such as {{$.inputs.parameters['epochs']}} or
    ${{ github.sha }}.
    Otherwise: The program receives the placeholder instead of a value."""
    for place, mark in _marks(job, of_engine=True):
        yield Finding(place, f"{mark} is a template placeholder that Vertex AI doesn't replace", "write its value")


@rule("placeholder", "warning", "inferred", "api-types")
def nothing_to_replace(job: Job, context: RuleContext) -> Findings:
    """A job should not contain placeholders such as ${NAME}, <project-id>, or YOUR_BUCKET. Vertex AI replaces only
    $(NAME).
    Otherwise: The program receives the placeholder instead of a value."""
    for place, mark in _marks(job, of_engine=False):
        variable = re.fullmatch(r"\$\{?(\w+)\}?", mark)
        of_env = f", or $({variable[1]}) if Vertex AI or env sets it" if variable else ""
        yield Finding(place, f"{mark} is a placeholder that Vertex AI doesn't replace", f"write its value{of_env}")
