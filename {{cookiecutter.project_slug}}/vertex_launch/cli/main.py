"""Check, run or submit a job file; or be the service that runs it."""

import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from vertex_launch import catalog, json_schema, package, program, settings
from vertex_launch import check as checks
from vertex_launch.cli import emulate, plan, run
from vertex_launch.cli.options import JobFile, SettingsOptions, TrainerCommand, command_of
from vertex_launch.cli.output import approved, complain, console, errors, report, warn_of_age
from vertex_launch.errors import FaultError
from vertex_launch.local import run_job
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.rules import explain as rules
from vertex_launch.rules import training
from vertex_launch.spec import JobError
from vertex_launch.state_dir import StateDir

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@dataclass(frozen=True, kw_only=True)
class CheckOptions(SettingsOptions):
    """What the user wants of `check`."""

    jobs: Annotated[list[Path] | None, typer.Argument(metavar="JOB", help="Job files.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as one JSON document.")] = False
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Say all about the rules with these CODEs in place of JOBs, or list all.")
    ] = False


def check(click: typer.Context, wanted: CheckOptions) -> None:
    """Say everything that Vertex AI would refuse later, or spoil."""
    if wanted.explain:
        told = [rules.explain(str(code), catalog.standard()) for code in wanted.jobs or ()]
        console.print("\n\n".join(told) or rules.overview(), markup=False)
        return
    if not wanted.jobs:
        raise JobError(f"no job file is named; write {program.NAME} check JOB.yaml")
    ours = wanted.settings()
    known = ours.catalog
    warn_of_age(known)
    examined = checks.examine_all(wanted.jobs, ours, training.project(Path(), date.today()))
    if wanted.as_json:
        print(checks.as_json(examined, known))
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


app.command("check")(command_of(CheckOptions, check))
app.command("run", cls=TrainerCommand)(command_of(run.RunOptions, run.run))
app.command("plan", cls=TrainerCommand)(command_of(plan.PlanOptions, plan.plan))
app.add_typer(emulate.app, name="emulate")


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(SettingsOptions):
    """What the user wants of `submit`."""

    job: JobFile
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before sending.")] = False


def submit(click: typer.Context, wanted: SubmitOptions) -> None:
    """Send a job to Vertex AI; shows what will be sent, and asks."""
    from vertex_launch import submit  # only here: it brings Google's clients along, which take most of a second

    ours = wanted.settings()
    endpoint = os.environ.get("VERTEX_ENDPOINT", "")  # a service on this machine in place of Google's
    if endpoint:
        submit.require_local(endpoint)
    else:
        settings.require(ours, "project", "region")
    loaded = approved(wanted.job, ours)
    with submit.google_errors():
        client = submit.client(ours, endpoint)
    if endpoint:
        ours = settings.for_local(ours)
        console.print(f"to the local Vertex at {endpoint}, not to Google Cloud", markup=False)
    request = submit.request(loaded, ours)
    console.print(submit.summary(loaded, ours), markup=False)
    console.print(f"  label    {submit.label(request)}, to find the job by if its answer is lost", markup=False)
    if not (wanted.yes or typer.confirm("Send it?")):
        raise typer.Exit(1)
    with submit.google_errors(), signals_as_exceptions():
        try:
            name = submit.submit(request, client)
        except KeyboardInterrupt:
            errors.print("interrupted before the answer came; looking for the job")
            errors.print(submit.whereabouts(request, client, endpoint), markup=False)
            raise typer.Exit(130) from None
    console.print(f"sent: {name}\n{submit.page(name, endpoint)}", markup=False)


app.command("submit")(command_of(SubmitOptions, submit))


@dataclass(frozen=True, kw_only=True)
class PackageOptions(SettingsOptions):
    """What the user wants of `package`."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with pyproject.toml.")] = Path()


def pack(click: typer.Context, wanted: PackageOptions) -> None:
    """Pack a folder for a job with a pythonPackageSpec, and say how to send the package to the bucket."""
    ours = wanted.settings()
    settings.require(ours, "bucket")
    made = package.build(wanted.folder, Path(package.DIST))
    copy = package.place(made, ours.bucket, StateDir().buckets)
    console.print(f"{run_job.shown(made.file)}, and for the local Vertex {run_job.shown(copy)}", markup=False)
    console.print(f"send it: gcloud storage cp {run_job.shown(made.file)} {made.address(ours.bucket)}", markup=False)


app.command("package")(command_of(PackageOptions, pack))


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of job files; editors check and complete files with it."""
    typer.echo(json_schema.text(), nl=False)


def main() -> None:
    """Run the command line; a user's mistake is one sentence, never a traceback."""
    try:
        app(prog_name=program.NAME)
    except (FaultError, OSError) as error:  # OSError: a full disk, a folder that is not ours, no network
        complain(str(error))
    raise SystemExit(1)


if __name__ == "__main__":
    main()
