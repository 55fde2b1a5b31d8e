"""A project's own rules and severities, from the [rules] table in the project's vertex.toml."""

import inspect
import runpy
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from vertex_launch.errors import FaultError, Finding, Findings, nearest, read_text
from vertex_launch.facts.catalog import OWN
from vertex_launch.rules.rule import REFUSED, Rule, RuleContext
from vertex_launch.settings import Settings

MODULE = "module"  # the key for the file that declares rules; all other keys are rule codes
PLACE = f"{OWN}: rules"
SEVERITIES = ("error", "warning", "off")
KEPT = ("form", "chief-count", "pool-count", "pool-replicas", "pool-machine", "pool-task", "task-field")
TAKEN = "Vertex AI might accept the job, but the project's own rules don't allow it."


def merged(ours: Mapping[str, Rule], settings: Settings) -> dict[str, Rule]:
    """Return the built-in rules and the project's own rules, keyed by code, with the project's severities.

    Raises FaultError if a key in [rules] isn't valid or if the module with the project's own rules can't be used.
    """
    own = _own(ours, settings.rules[MODULE]) if MODULE in settings.rules else ()
    rules = {**ours, **{one.code: one for one in own}}
    severities = {code: value for code, value in settings.rules.items() if code != MODULE}
    if found := [finding for code, value in severities.items() for finding in _of_line(code, value, rules)]:
        raise FaultError(*found)
    return rules | {code: replace(rules[code], severity=value) for code, value in severities.items()}


def _of_line(code: str, value: object, rules: Mapping[str, Rule]) -> Findings:
    if code in KEPT:
        yield Finding(
            PLACE,
            f'the severity of "{code}" can\'t be changed',
            "remove the key, because a file that breaks this rule isn't a valid job",
        )
    elif code not in rules:
        yield Finding(PLACE, *unknown(code, rules))
    elif value not in SEVERITIES:
        yield Finding(PLACE, f'the severity "{value}" of "{code}" isn\'t valid', f"use one of {', '.join(SEVERITIES)}")


def unknown(code: str, rules: Mapping[str, Rule]) -> tuple[str, str]:
    """Return the problem and the solution for a rule code that doesn't exist."""
    guess = nearest(code, rules)
    cure = f"did you mean {guess}?" if guess else "to list all rules, run check --explain without a code"
    return f'there is no rule "{code}"', cure


def _own(ours: Mapping[str, Rule], module: object) -> list[Rule]:
    if not (isinstance(module, str) and module.endswith(".py")):
        cure = f'write {MODULE} = "house_rules.py", or the name of your own file'
        raise FaultError(Finding(f"{PLACE}: {MODULE}", f'"{module}" isn\'t a Python file', cure))
    path = Path(module)
    declared = [one for one in _load(path).values() if isinstance(one, Rule) and ours.get(one.code) is not one]
    if found := [*_unusable(ours, declared, path)]:
        raise FaultError(*found, file=path)
    return [
        replace(one, consequence=TAKEN if one.consequence == REFUSED else one.consequence, check=_guarded(one, path))
        for one in declared
    ]


@cache
def _load(path: Path) -> dict[str, Any]:
    """Run a Python file, and return its global variables, keyed by name."""
    try:
        read_text(path)
    except FaultError as error:
        raise FaultError(f"{PLACE}: {MODULE}: {error}") from None
    try:
        return runpy.run_path(str(path.absolute()))
    except (Exception, SystemExit) as error:
        raise _fault(
            path, error, "this file can't be imported", f"fix the error, or remove {MODULE} from [rules] in {OWN}"
        ) from None


def _unusable(ours: Mapping[str, Rule], declared: list[Rule], path: Path) -> Findings:
    if not declared:
        yield Finding(
            "", "this file doesn't declare a rule", "use @rule(...) to decorate a function that yields findings"
        )
    codes = [*ours, MODULE]
    for one in declared:
        code = getattr(inspect.unwrap(one.check), "__code__", None)
        line = code.co_firstlineno if code and code.co_filename == str(path.absolute()) else 0
        if one.code in codes:
            yield Finding("", f"another rule already has the code {one.code}", "choose a different code", line)
        if one.severity not in SEVERITIES[:2]:
            yield Finding("", f'the severity "{one.severity}" of {one.code} isn\'t valid', "use error or warning", line)
        if not one.text:
            yield Finding(
                "", f"the rule {one.code} doesn't have a docstring", "add a docstring that states the rule", line
            )
        codes.append(one.code)


def _guarded(one: Rule, path: Path) -> Any:
    """Wrap a rule's check so that an exception becomes an error in the rule's file, without a traceback."""

    def check(subject: Any, context: RuleContext) -> Findings:
        try:
            for finding in one.check(subject, context):
                if not isinstance(finding, Finding):
                    raise TypeError(f"the rule yielded {finding!r}, which isn't a Finding")
                yield finding
        except Exception as error:
            cure = f'fix the rule, or write {one.code} = "off" under [rules] in {OWN}'
            raise _fault(path, error, f"the rule {one.code} failed", cure) from None

    return check


def _fault(path: Path, error: BaseException, fault: str, cure: str) -> FaultError:
    """Return an error that describes an exception in a project's module, with the line that raised it."""
    file, said = str(path.absolute()), error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [0, *(one.lineno or 0 for one in traceback.extract_tb(error.__traceback__) if one.filename == file)]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno or 0)
    told = f"{fault} ({type(error).__name__}{': ' if said else ''}{' '.join(said.split())})"
    return FaultError(Finding("", told, cure, lines[-1]), file=path)
