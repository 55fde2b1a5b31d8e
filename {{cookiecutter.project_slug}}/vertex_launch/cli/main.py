"""Check, run or submit a job file; or be the service that runs it."""

import os
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from vertex_launch import catalog, json_schema, package, program, settings
from vertex_launch import check as checks
from vertex_launch.cli import emulate, plan, run
from vertex_launch.cli.options import SETTINGS, JobFile, TrainerCommand, command_of
from vertex_launch.cli.output import approved, complain, console, errors, report, warn_of_age
from vertex_launch.errors import FaultError
from vertex_launch.local import run_job
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.rules import explain as rules
from vertex_launch.rules import training
from vertex_launch.spec import JobError
from vertex_launch.state_dir import StateDir

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def check(
    jobs: Annotated[list[Path] | None, typer.Argument(metavar="JOB", help="Job files, as in jobs/.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as one JSON document.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say all about the rules with these CODEs in place of JOBs, or list all.")
    ] = False,
) -> None:
    """Say everything that Vertex AI would refuse later, or spoil."""
    if explain:
        told = [rules.explain(str(code), catalog.standard()) for code in jobs or ()]
        console.print("\n\n".join(told) or rules.overview(), markup=False)
        return
    if not jobs:
        raise JobError(f"no job file is named; {program.NAME} check jobs/*.yaml checks all")
    ours = settings.load(SETTINGS)
    known = ours.catalog
    warn_of_age(known)
    examined = checks.examine_all(jobs, ours, training.project(Path(), date.today()))
    if as_json:
        print(checks.as_json(examined, known))
    else:
        for one in examined:
            report(one)
            if one.passes(strict):
                count = len(one.findings)
                warned = f", with {count} {'warning' if count == 1 else 'warnings'}" if count else ""
                console.print(Text.assemble(f"{one.path}: ", ("ok", "green"), warned))
    raise typer.Exit(0 if all(one.passes(strict) for one in examined) else 1)


app.command("run", cls=TrainerCommand)(command_of(run.RunOptions, run.run))
app.command("plan", cls=TrainerCommand)(command_of(plan.PlanOptions, plan.plan))
app.add_typer(emulate.app, name="emulate")


@app.command("submit")
def submit_command(
    job: JobFile, yes: Annotated[bool, typer.Option("--yes", help="Do not ask before sending.")] = False
) -> None:
    """Send a job to Vertex AI; shows what will be sent, and asks."""
    from vertex_launch import submit  # only here: it brings Google's clients along, which take most of a second

    ours = settings.load(SETTINGS)
    loaded = approved(job, ours)
    endpoint = os.environ.get("VERTEX_ENDPOINT", "")  # a service on this machine in place of Google's
    if endpoint:
        submit.require_local(endpoint)
        console.print(f"to the local Vertex at {endpoint}, not to Google Cloud", markup=False)
    request = submit.request(loaded, ours)
    console.print(submit.summary(loaded, ours), markup=False)
    console.print(f"  label    {submit.label(request)}, to find the job by if its answer is lost", markup=False)
    if not (yes or typer.confirm("Send it?")):
        raise typer.Exit(1)
    with submit.google_errors(), signals_as_exceptions():
        client = submit.client(ours, endpoint)
        try:
            name = submit.submit(request, client)
        except KeyboardInterrupt:
            errors.print("interrupted before the answer came; looking for the job")
            errors.print(submit.whereabouts(request, client, endpoint), markup=False)
            raise typer.Exit(130) from None
    console.print(f"sent: {name}\n{submit.page(name, endpoint)}", markup=False)


@app.command("package")
def package_command() -> None:
    """Pack the trainer for a job with a pythonPackageSpec, and say how to send the package to the bucket."""
    ours = settings.load(SETTINGS)
    made = package.build(Path())
    copy = package.place(made, ours.bucket, StateDir().buckets)
    console.print(f"{run_job.shown(made.file)}, and for the local Vertex {run_job.shown(copy)}", markup=False)
    console.print(f"send it: gcloud storage cp {run_job.shown(made.file)} {made.address(ours.bucket)}", markup=False)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of job files; jobs/schema.json is the one that editors read."""
    typer.echo(json_schema.text(), nl=False)


def main() -> None:
    """Run the command line; a user's mistake is one sentence, never a traceback."""
    try:
        app(prog_name=program.NAME)
    except FaultError as error:
        complain(str(error))
    except OSError as error:  # a full disk, a folder that is not ours, no network
        complain(str(error))
    raise SystemExit(1)


if __name__ == "__main__":
    main()
