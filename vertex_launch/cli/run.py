"""The command `run`: a job file in the local Vertex, without the service."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch import rules, settings, study_validation
from vertex_launch.cli import resume
from vertex_launch.cli.options import JobFile, LocalOptions, TrainerCommand, app_of
from vertex_launch.cli.output import approved, complain, console, errors
from vertex_launch.contract import limit, with_arguments
from vertex_launch.errors import FaultError
from vertex_launch.local import run_job
from vertex_launch.local.context import Context, Options
from vertex_launch.local.running import containers
from vertex_launch.local.running.prepare import size
from vertex_launch.rules import training
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob, trial
from vertex_launch.state_dir import output_folder


@dataclass(frozen=True, kw_only=True)
class RunOptions(LocalOptions):
    job: JobFile
    max_replicas: Annotated[int | None, typer.Option(min=1, help="At most so many replicas that train.")] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Empty the job's output folder first.")] = False
    containers: Annotated[
        bool, typer.Option("--containers", help="Run the images themselves, by Docker or Podman.")
    ] = False
    restarts: Annotated[bool, typer.Option("--restarts", help="Start again what fails, as the service does.")] = False


def run(click: typer.Context, wanted: RunOptions) -> None:
    """Run a job in the local Vertex: each replica a process, or a container, with the service's environment."""
    client = containers.client() if wanted.containers else ""
    options = Options(restarts=wanted.restarts, retry_user_errors=wanted.retry_user_errors, containers=client)
    context = wanted.context(options)
    loaded = approved(wanted.job, rules.in_local_vertex(context.settings))
    whole, flags = trial(loaded), click.obj
    job = with_arguments(limit(whole, wanted.max_replicas) if wanted.max_replicas else whole, flags)
    if flags:
        refuse_unknown_flags(whole, job, context.settings)
    if isinstance(loaded, TuningJob):
        for flag in tried(flags, loaded.spec.study_spec):
            complain(f"behind --: {flag} is what the search tries; each trial has its own value", style="yellow")
        raise typer.Exit(0 if search(loaded, job, context, wanted.fresh) else 1)
    if wanted.retry_user_errors and not wanted.restarts:
        raise FaultError("--retry-user-errors is for --restarts, without which nothing starts again; add that")
    if not wanted.fresh:
        run_job.say_what_is_there(job, context.state_dir, console)
    try:
        outcome = run_job.run(job, context, console, wanted.fresh, size(whole))
    except KeyboardInterrupt:
        errors.print("interrupted; every replica was stopped")
        errors.print(resume.advice(job, context.state_dir, sys.argv, os.environ), markup=False)
        raise typer.Exit(130) from None
    raise typer.Exit(0 if outcome.succeeded else 1)


def refuse_unknown_flags(file: Job, job: Job, ours: Settings) -> None:
    """Raises FaultError for flags behind -- that the trainer would refuse, before anything is deleted for them."""
    project = training.project(Path(), date.today())
    before, after = (rules.findings(one, ours, project) for one in (file, job))
    known = {one.sentence for one in before}
    if told := {one.sentence for one in after if one.code in training.FLAG_RULES} - known:
        raise FaultError(*(f"behind --: {sentence}" for sentence in sorted(told)))


def tried(flags: Sequence[str], study: StudySpec) -> list[str]:
    """The flags that trials repeat with values of their own, which come later and so count."""
    parameters = {_field(name) for _, name in study_validation.parameter_ids(study)}
    names = [word.partition("=")[0] for word in flags if word.startswith("--")]
    return [name for name in names if _field(name) in parameters]


def _field(flag: str) -> str:
    """`learning_rate` of --learning-rate, which the trainer takes with either."""
    return flag.removeprefix("--").replace("-", "_")


def search(tuning: TuningJob, job: Job, context: Context, fresh: bool) -> bool:
    """Run a search, each trial as this job; returns whether it succeeded.

    Raises FaultError where an earlier search is in its output folder: trials of the same numbers would resume from it.
    """
    from vertex_launch.local import local_search  # only here: it brings the whole service along

    if not fresh and (folder := output_folder(job, context.state_dir)) and folder.exists() and any(folder.iterdir()):
        raise FaultError(f"{tuning.path}: an earlier search is in {run_job.shown(folder)}; add --fresh to forget it")
    options = replace(context.options, restarts=True, capacity=max(context.options.capacity, size(job)))
    as_in_the_service = replace(context, options=options, settings=settings.for_local(context.settings))
    message = HyperparameterTuningJob(tuning.spec)
    message.display_name, message.trial_job_spec = tuning.name, job.spec
    try:
        forget = (lambda: run_job.empty_output(job, context.state_dir)) if fresh else (lambda: None)
        return local_search.run(message, as_in_the_service, console, forget)
    except KeyboardInterrupt:
        errors.print("interrupted; every trial was stopped")
        same = resume.command(sys.argv, os.environ, fresh=True)
        errors.print(f"a search starts over, with: {same}", markup=False)
        raise typer.Exit(130) from None


app = app_of(run, TrainerCommand)
