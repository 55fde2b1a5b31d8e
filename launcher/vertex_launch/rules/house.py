"""Rules and severities of a project's own, from the table [rules] of its vertex.toml."""

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

MODULE = "module"  # the key of the file with rules; the other keys are codes
PLACE = f"{OWN}: rules"
SEVERITIES = ("error", "warning", "off")
KEPT = ("form", "chief-count", "pool-count", "pool-replicas", "pool-machine", "pool-task", "task-field")
TAKEN = "Vertex AI may take the job; this project does not want it."


def merged(ours: Mapping[str, Rule], settings: Settings) -> dict[str, Rule]:
    """The rules that hold in a project, by code: ours and its own, with the severities that it gives them.

    Raises FaultError where a line of [rules], or the module that it names, cannot be used.
    """
    own = _own(ours, settings.rules[MODULE]) if MODULE in settings.rules else ()
    rules = {**ours, **{one.code: one for one in own}}
    severities = {code: value for code, value in settings.rules.items() if code != MODULE}
    if found := [finding for code, value in severities.items() for finding in _of_line(code, value, rules)]:
        raise FaultError(*found)
    return rules | {code: replace(rules[code], severity=value) for code, value in severities.items()}


def _of_line(code: str, value: object, rules: Mapping[str, Rule]) -> Findings:
    if code in KEPT:
        yield Finding(PLACE, f'"{code}" keeps its severity', "remove the line: what breaks that rule is no job at all")
    elif code not in rules:
        yield Finding(PLACE, *unknown(code, rules))
    elif value not in SEVERITIES:
        yield Finding(PLACE, f'"{code}" is "{value}"', f"write one of {', '.join(SEVERITIES)}")


def unknown(code: str, rules: Mapping[str, Rule]) -> tuple[str, str]:
    """The fault and the cure of a code that no rule has."""
    guess = nearest(code, rules)
    cure = f"did you mean {guess}?" if guess else "check --explain without a code lists all"
    return f'no rule is called "{code}"', cure


def _own(ours: Mapping[str, Rule], module: object) -> list[Rule]:
    if not (isinstance(module, str) and module.endswith(".py")):
        cure = f'write {MODULE} = "house_rules.py", or as yours is called'
        raise FaultError(Finding(f"{PLACE}: {MODULE}", f'"{module}" is no file of Python', cure))
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
    """Run a file of Python; returns what it declares, by name."""
    try:
        read_text(path)
    except FaultError as error:
        raise FaultError(f"{PLACE}: {MODULE}: {error}") from None
    try:
        return runpy.run_path(str(path.absolute()))
    except (Exception, SystemExit) as error:
        raise _fault(path, error, "cannot be imported", f"mend it, or remove {MODULE} from [rules] in {OWN}") from None


def _unusable(ours: Mapping[str, Rule], declared: list[Rule], path: Path) -> Findings:
    if not declared:
        yield Finding("", "declares no rule", "write @rule(...) above a function that yields findings")
    codes = [*ours, MODULE]
    for one in declared:
        code = getattr(inspect.unwrap(one.check), "__code__", None)
        line = code.co_firstlineno if code and code.co_filename == str(path.absolute()) else 0
        if one.code in codes:
            yield Finding("", f"the code {one.code} is taken", "choose another", line)
        if one.severity not in SEVERITIES[:2]:
            yield Finding("", f'the severity of {one.code} is "{one.severity}"', "write error or warning", line)
        if not one.text:
            yield Finding("", f"{one.code} has no docstring", "write there what must hold of a job", line)
        codes.append(one.code)


def _guarded(one: Rule, path: Path) -> Any:
    """The check of a rule, whose failure is a fault of its file and no traceback."""

    def check(subject: Any, context: RuleContext) -> Findings:
        try:
            for finding in one.check(subject, context):
                if not isinstance(finding, Finding):
                    raise TypeError(f"it yields {finding!r}, which is no Finding")
                yield finding
        except Exception as error:
            cure = f'mend it, or write {one.code} = "off" below [rules] in {OWN}'
            raise _fault(path, error, f"the rule {one.code} fails", cure) from None

    return check


def _fault(path: Path, error: BaseException, fault: str, cure: str) -> FaultError:
    """An exception of a project's module in one sentence, with the last of its lines that led to it."""
    file, said = str(path.absolute()), error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [0, *(one.lineno or 0 for one in traceback.extract_tb(error.__traceback__) if one.filename == file)]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno or 0)
    told = f"{fault} ({type(error).__name__}{': ' if said else ''}{' '.join(said.split())})"
    return FaultError(Finding("", told, cure, lines[-1]), file=path)
