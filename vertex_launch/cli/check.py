"""The command `check`: hold job files against the rules."""

import json
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from vertex_launch import program, releases
from vertex_launch.check import examine_all
from vertex_launch.cli.options import SettingsOptions
from vertex_launch.cli.output import complain, console, report, warn_of_age
from vertex_launch.errors import FaultError, Finding
from vertex_launch.rules import applied, explain, training
from vertex_launch.settings import Settings


@dataclass(frozen=True, kw_only=True)
class CheckOptions(SettingsOptions):
    jobs: Annotated[list[Path] | None, typer.Argument(metavar="JOB", help="Job files.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as one JSON document.")] = False
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Say all about the rules with these CODEs in place of JOBs, or list all.")
    ] = False


def check(click: typer.Context, wanted: CheckOptions) -> None:
    """Say everything that Vertex AI would refuse later, or spoil."""
    ours = wanted.settings()
    if wanted.explain:
        told = [explain.explain(str(code), ours) for code in wanted.jobs or ()]
        console.print("\n\n".join(told) or explain.overview(ours), markup=False)
        return
    if not wanted.jobs:
        raise FaultError(f"no job file is named; write {program.NAME} check JOB.yaml")
    known = ours.catalog
    warn_of_age(known)
    if dropped := releases.notice(ours.launcher):
        complain(dropped, style="yellow")
    examined = examine_all(wanted.jobs, ours, training.project(Path(), date.today()))
    if wanted.as_json:
        print(json.dumps([_entry(one.path, found, ours) for one in examined for found in one.findings], indent=2))
    else:
        for one in examined:
            report(one)
            if one.passes(wanted.strict):
                count = len(one.findings)
                warned = f", with {count} {'warning' if count == 1 else 'warnings'}" if count else ""
                console.print(Text.assemble(f"{one.path}: ", ("ok", "green"), warned))
        if formless := [str(one.path) for one in examined if one.job is None]:
            complain(f"the rules were not applied to {', '.join(formless)}; mend the form first", style="dim")
    raise typer.Exit(0 if all(one.passes(wanted.strict) for one in examined) else 1)


def _entry(path: Path, finding: Finding, ours: Settings) -> dict[str, Any]:
    """A finding for --json, with what its rule says."""
    rule, sources = applied(ours)[finding.code], explain.sources
    said = {"certainty": rule.certainty, "consequence": rule.consequence, "source": sources(rule, ours.catalog)}
    return {**asdict(finding), "file": str(path), "line": finding.line or None, **said}
