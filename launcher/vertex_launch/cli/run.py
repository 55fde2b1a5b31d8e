"""The `run` command, which runs a job file locally without starting a local Vertex server."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch import program, rules
from vertex_launch.cli.local_options import LocalOptions
from vertex_launch.cli.options import JobFile, Passed
from vertex_launch.cli.output import approved, complain, errors, lasting, refuse_unknown_flags
from vertex_launch.cli.trials_table import table
from vertex_launch.errors import FaultError
from vertex_launch.job import study_validation
from vertex_launch.job.contract import limit, with_arguments
from vertex_launch.job.job_resource import fault, same_result, state
from vertex_launch.job.spec import Job, TuningJob, trial
from vertex_launch.job.state_dir import StateDir, output_folder
from vertex_launch.local import run_job
from vertex_launch.local.running import containers
from vertex_launch.local.running.context import Context, Options
from vertex_launch.local.running.prepare import size
from vertex_launch.settings import for_local

FRESH = "--fresh"


@dataclass(frozen=True)
class RunOptions(LocalOptions):
    job: JobFile
    _: KW_ONLY
    passed: Passed = ()
    max_replicas: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="Maximum number of replicas that train.")
    ] = None
    fresh: Annotated[
        bool, Parameter(FRESH, help="Start over with an empty output folder, and discard a tuning job's trials.")
    ] = False
    containers: Annotated[bool, Parameter(help="Run the container images with Docker or Podman.")] = False
    restarts: Annotated[bool, Parameter(help="Restart the job after a failure, as Vertex AI does.")] = False

    def act(self) -> None:
        client = containers.client() if self.containers else ""
        options = Options(restarts=self.restarts, retry_user_errors=self.retry_user_errors, containers=client)
        context = self.context(options)
        if self.containers and context.options.faults:
            raise FaultError("--fault can't be combined with --containers; use only one of them")
        (loaded,) = approved(self.job, rules.in_local_vertex(context.settings))
        whole, flags = trial(loaded), self.passed
        job = with_arguments(limit(whole, self.max_replicas) if self.max_replicas else whole, flags)
        if flags:
            refuse_unknown_flags(whole, job, context.settings)
        if job.spec.enable_web_access:
            notice = (
                f"enableWebAccess: `run` doesn't provide shells in replicas; to open shells, use {program.NAME} emulate"
            )
            complain(notice, style="yellow")
        if isinstance(loaded, TuningJob):
            for flag in tried(flags, loaded.spec.study_spec):
                complain(
                    f"after --: the tuning job sets {flag}, so each trial replaces your value with its own",
                    style="yellow",
                )
            raise SystemExit(0 if search(loaded, job, context, self.fresh) else 1)
        if self.retry_user_errors and not self.restarts:
            raise FaultError("--retry-user-errors has no effect without --restarts; add --restarts")
        if not self.fresh:
            run_job.say_what_is_there(job, context.state_dir, lasting)
        try:
            outcome = run_job.run(job, context, lasting, self.fresh, size(whole))
        except KeyboardInterrupt:
            errors.print("interrupted; every replica was stopped")
            errors.print(advice(job, context.state_dir, sys.argv, os.environ))
            raise SystemExit(130) from None
        raise SystemExit(0 if outcome.succeeded else 1)


def tried(flags: Sequence[str], study: StudySpec) -> list[str]:
    """Return the flags that are also parameters of the tuning job.

    Each trial appends its own values for these flags, and the last value of a flag takes effect.
    """
    parameters = {_field(name) for _, name in study_validation.parameter_ids(study)}
    names = [word.partition("=")[0] for word in flags if word.startswith("--")]
    return [name for name in names if _field(name) in parameters]


def _field(flag: str) -> str:
    """Return the field name for a flag, such as `learning_rate` for --learning-rate.

    The trainer accepts both hyphens and underscores in flags.
    """
    return flag.removeprefix("--").replace("-", "_")


def search(tuning: TuningJob, job: Job, context: Context, fresh: bool) -> bool:
    """Run a tuning job whose trials run `job`, print the trials, and return whether the tuning job succeeded."""
    from vertex_launch.local import local_search  # this module imports the whole service

    options = replace(context.options, restarts=True, capacity=max(context.options.capacity, size(job)))
    as_in_the_service = replace(context, options=options, settings=for_local(context.settings))
    message = HyperparameterTuningJob(tuning.spec)
    message.display_name, message.trial_job_spec = tuning.name, job.spec
    try:
        ended, runs = local_search.run(message, job, as_in_the_service, lasting, fresh)
    except KeyboardInterrupt:
        errors.print("interrupted; every trial was stopped")
        errors.print(f"to continue after the completed trials, run: {command(sys.argv, os.environ)}")
        raise SystemExit(130) from None
    lasting.print(table(ended, runs))
    if same := same_result(ended):
        lasting.print(same, style="yellow")
    if state(ended) != "SUCCEEDED":
        lasting.print(f"Tuning job failed: {fault(ended) or ended['state']}", style="bold red")
    return state(ended) == "SUCCEEDED"


def advice(job: Job, state_dir: StateDir, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a message with the command that continues an interrupted run.

    The message states whether the run resumes from a checkpoint.
    """
    same = command(argv, environ)
    folder = output_folder(job, state_dir)
    if folder is None:
        return f"the job doesn't set an output folder, so it can't resume; to start over, run: {same}"
    if all(path.name == "lease" for path in (folder / "checkpoints").glob("*")):
        return f"no checkpoint exists yet; start the job again with: {same}"
    return f"resume with: {same}"


def command(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the command line of this process, quoted for a shell. Exclude --fresh so that the run resumes."""
    arguments = argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [word for word in arguments[:end] if word != FRESH]
    if program.name(argv) == program.SCRIPT:
        start = [_shortest(Path(argv[0]), environ)]
    else:
        start = [_shortest(Path(sys.executable), environ), "-m", "vertex_launch"]
    return shlex.join([*start, *kept, *arguments[end:]])


def _shortest(file: Path, environ: Mapping[str, str]) -> str:
    """Return the shortest name by which the user's shell can find a program."""
    for name in ("python", file.name):
        if shutil.which(name, path=environ.get("PATH", "")) == str(file):
            return name
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
