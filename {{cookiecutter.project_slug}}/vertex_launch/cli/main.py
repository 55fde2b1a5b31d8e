"""Check, run or submit a job file; or be the service that runs it."""

import itertools
import os
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from google.cloud.aiplatform_v1.types import HyperparameterTuningJob
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from vertex_launch import catalog, json_schema, package, settings
from vertex_launch import check as checks
from vertex_launch.catalog import Catalog
from vertex_launch.check import Examined
from vertex_launch.cli import emulate, resume
from vertex_launch.cli import plan as planning
from vertex_launch.errors import FaultError, nearest, start
from vertex_launch.local import run_job
from vertex_launch.local.jobs.custom_jobs import Options, policy
from vertex_launch.local.running import host
from vertex_launch.local.running.restart_policy import Policy
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.planner import MFU
from vertex_launch.replicas import limit, with_arguments
from vertex_launch.rules import explain as rules
from vertex_launch.rules import training
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, JobError, TuningJob, trial
from vertex_launch.state_dir import StateDir, output_folder

SETTINGS = Path("vertex.toml")

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(emulate.app, name="emulate")
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


class OptionError(FaultError):
    """A command does not know an option."""


JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A job file, as in jobs/.")]


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
        raise JobError("no job file is named; python -m vertex_launch check jobs/*.yaml checks all")
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


class Run(TyperCommand):
    """A command whose unknown options are most likely the trainer's, which stand behind a --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        for word in itertools.takewhile(lambda word: word != "--", args):
            if word.startswith("--") and word.partition("=")[0] not in (*known, "--help"):
                guess = nearest(word, known)
                cure = (
                    f"did you mean {guess}?"
                    if guess
                    else f"flags of the trainer stand behind a lone --, as in -- {word}"
                )
                raise OptionError(f"run has no option {word}; {cure}")
        return super().parse_args(ctx, args)


@app.command(cls=Run)
def run(
    job: JobFile,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", help="More trainer flags.")] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="At most so many replicas that train.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Empty the job's output folder first.")] = False,
    restarts: Annotated[bool, typer.Option("--restarts", help="Start again what fails, as the service does.")] = False,
    pass_env: emulate.PassEnv = None,
    retry_user_errors: Annotated[
        bool, typer.Option("--retry-user-errors", help="With --restarts: also what ends with code 1, 2, 126 or 127.")
    ] = False,
) -> None:
    """Run a job in the local Vertex: each replica a process, with the service's environment."""
    ours = settings.passing(settings.load(SETTINGS), pass_env or ())
    loaded = approved(job, ours)
    for sentence in host.not_set(os.environ, ours.env):
        complain(sentence, style="yellow")
    one = trial(loaded)
    wanted = with_arguments(limit(one, max_replicas) if max_replicas else one, arguments or ())
    options = Options(retry_user_errors=retry_user_errors)
    if isinstance(loaded, TuningJob):
        raise typer.Exit(0 if search(loaded, wanted, ours, fresh, options) else 1)
    if retry_user_errors and not restarts:
        raise OptionError("--retry-user-errors is for --restarts, without which nothing starts again; add that")
    starts_again = policy(wanted, options) if restarts else Policy()
    if not fresh:
        run_job.say_what_is_there(wanted, StateDir(), console)
    try:
        whole = sum(pool.replica_count for pool in one.pools if not pool.reduces)
        outcome = run_job.run(wanted, StateDir(), os.environ, console, ours, starts_again, fresh, whole)
    except KeyboardInterrupt:
        errors.print("interrupted; every replica was stopped")
        errors.print(resume.advice(wanted, StateDir(), sys.argv[1:], os.environ), markup=False)
        raise typer.Exit(130) from None
    raise typer.Exit(0 if outcome.succeeded else 1)


def search(tuning: TuningJob, wanted: Job, ours: Settings, fresh: bool, options: Options) -> bool:
    """Run a search, each trial as the job that is wanted; returns whether it succeeded.

    Raises:
        JobError: an earlier search is in its output folder, from which trials of the same numbers would resume.
    """
    from vertex_launch.local import local_search  # only here: it brings the whole service along

    state_dir = StateDir()
    if fresh:
        run_job.empty_output(wanted, state_dir)
    elif (folder := output_folder(wanted, state_dir)) and folder.exists() and any(folder.iterdir()):
        raise JobError(f"{tuning.path}: an earlier search is in {run_job.shown(folder)}; add --fresh to forget it")
    message = HyperparameterTuningJob(tuning.spec)
    message.display_name, message.trial_job_spec = tuning.name, wanted.spec
    try:
        return local_search.run(message, state_dir, ours, os.environ, console, options)
    except KeyboardInterrupt:
        errors.print("interrupted; every trial was stopped")
        same = resume.command(sys.argv[1:], os.environ, fresh=True)
        errors.print(f"a search starts over, with: {same}", markup=False)
        raise typer.Exit(130) from None


@app.command("plan")
def plan_command(
    jobs: Annotated[list[Path], typer.Argument(metavar="JOB...", help="A job file; several with --compare.")],
    compare: Annotated[bool, typer.Option("--compare", help="Several jobs side by side.")] = False,
    gradient_bytes: Annotated[
        float | None, typer.Option(help="Bytes of gradients that a step all-reduces; the trainer is then not asked.")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(help="What computing takes in a step, measured without a network.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The output folder of a run on one machine of the kind; its speed counts.")
    ] = None,
    mfu: Annotated[
        float, typer.Option(help="Share of the GPUs' peak that is reached, if nothing is measured: 0.01 to 1.")
    ] = MFU,
    chart: Annotated[Path | None, typer.Option(help="Draw the job on 1 to 1,024 machines: a .png or .svg.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the reducers into the file, unless they lose.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document in place of tables.")] = False,
) -> None:
    """Say what a job needs, costs and gains: machines, quota, memory, time of a step, reduction servers."""
    ours = settings.load(SETTINGS)
    warn_of_age(ours.catalog)
    flags = planning.Flags(
        compare=compare,
        gradient_bytes=gradient_bytes,
        step_seconds=step_seconds,
        run=run,
        mfu=mfu,
        chart=chart,
        apply=apply,
        json=as_json,
    )
    planning.show([approved(path, ours) for path in jobs], ours, flags, os.environ, console)


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


def approved(path: Path, ours: Settings) -> Job | TuningJob:
    """The job, if no rule refuses it; otherwise everything is said and the program ends."""
    examined = checks.examine(path, ours, training.project(Path(), date.today()))
    report(examined)
    if examined.job is None or not examined.passes(strict=False):
        raise typer.Exit(1)
    return examined.job


def report(examined: Examined) -> None:
    """Print what was found in a job file."""
    for finding in examined.findings:
        style = "red" if finding.severity == "error" else "yellow"
        where = start(examined.path, finding.line)
        errors.print(Text.assemble(where, (finding.severity, style), f": {finding} ({finding.code})"))


def warn_of_age(known: Catalog) -> None:
    """Facts that are old deserve a look before one relies on them."""
    if old := checks.notice(known, date.today()):
        complain(old, style="yellow")


def complain(text: str, style: str = "red") -> None:
    """A fault, as it is: brackets that the user wrote are no markup."""
    errors.print(Text(text, style=style))


def main() -> None:
    """Run the command line; a user's mistake is one sentence, never a traceback."""
    try:
        app(prog_name="python -m vertex_launch")
    except FaultError as error:
        complain(str(error))
    except OSError as error:  # a full disk, a folder that is not ours, no network
        complain(str(error))
    raise SystemExit(1)


if __name__ == "__main__":
    main()
