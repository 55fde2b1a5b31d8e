"""The `check` command, which checks job files, and the `schema` command, which prints a JSON Schema for editors."""

import json
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from vertex_launch import program
from vertex_launch.cli.options import SettingsOptions
from vertex_launch.cli.output import complain, console, report, warn_of_age
from vertex_launch.errors import FaultError, Finding
from vertex_launch.job import schema_file
from vertex_launch.job.state_dir import StateDir
from vertex_launch.rules import applied, explain, training
from vertex_launch.rules.check import examine_all, release_notice
from vertex_launch.settings import Settings


@dataclass(frozen=True)
class CheckOptions(SettingsOptions):
    jobs: Annotated[list[Path] | None, Parameter(help="Job files.")] = None
    _: KW_ONLY
    as_json: Annotated[bool, Parameter("--json", help="Print all findings as one JSON document.")] = False
    strict: Annotated[bool, Parameter(help="Treat warnings as errors.")] = False
    explain: Annotated[
        bool, Parameter(help="Explain the rules with these CODEs, or list all rules, instead of checking files.")
    ] = False

    def act(self) -> None:
        settings = self.settings()
        if self.explain:
            texts = [explain.explain(str(code), settings) for code in self.jobs or ()]
            console.print("\n\n".join(texts) or explain.overview(settings))
            return
        if not self.jobs:
            raise FaultError(f"no job file was given; run {program.NAME} check JOB.yaml")
        warn_of_age(settings.catalog)
        if dropped := release_notice(settings.launcher):
            complain(dropped, style="yellow")
        project = replace(training.project(Path(), date.today()), buckets=StateDir().buckets)
        examined = examine_all(self.jobs, settings, project)
        schema_file.write_for(self.jobs)
        if self.as_json:
            entries = [_entry(file.path, finding, settings) for file in examined for finding in file.findings]
            print(json.dumps(entries, indent=2))
        else:
            for file in examined:
                report(file)
                if file.passes(self.strict):
                    count = len(file.findings)
                    warned = f", with {count} {'warning' if count == 1 else 'warnings'}" if count else ""
                    console.print(Text.assemble(f"{file.path}: ", ("ok", "green"), warned))
            if formless := [str(file.path) for file in examined if file.job is None]:
                complain(
                    f"the rules weren't applied to {', '.join(formless)}; fix the file format first",
                    style="dim",
                )
        raise SystemExit(0 if all(file.passes(self.strict) for file in examined) else 1)


def _entry(path: Path, finding: Finding, settings: Settings) -> dict[str, Any]:
    rule, sources = applied(settings)[finding.code], explain.sources
    details = {"certainty": rule.certainty, "consequence": rule.consequence, "source": sources(rule, settings.catalog)}
    return {**asdict(finding), "file": str(path), "line": finding.line or None, **details}


@dataclass(frozen=True)
class SchemaOptions:
    def act(self) -> None:
        from vertex_launch.job import json_schema  # `check` doesn't need this module

        print(json_schema.text(schema_file.mark()), end="")
