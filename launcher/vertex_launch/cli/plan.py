"""The `plan` command, which prints a job's plan, draws a chart, or writes the planned reducers to the job file."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vertex_launch.cli.options import Passed, SettingsOptions, state_dir
from vertex_launch.cli.output import approved, console, refuse_unknown_flags, warn_of_age
from vertex_launch.errors import FaultError, not_installed
from vertex_launch.job.contract import with_arguments
from vertex_launch.job.spec import Job, TuningJob, trial
from vertex_launch.local.running import containers, host
from vertex_launch.plan import apply, failures, planner, pools, report, workload
from vertex_launch.plan.planner import MFU, Compute, Needs, Plan
from vertex_launch.plan.workload import Workload
from vertex_launch.rules import training
from vertex_launch.rules.containers import OF_REDUCERS, image_of
from vertex_launch.rules.rule import RuleContext
from vertex_launch.settings import Settings

PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class PlanOptions(SettingsOptions):
    jobs: Annotated[list[Path], Parameter(help="A job file, or several job files with --compare.")]
    _: KW_ONLY
    passed: Passed = ()
    compare: Annotated[bool, Parameter(help="Compare several jobs side by side.")] = False
    gradient_bytes: Annotated[
        float | None, Parameter(help="Bytes of gradient data to all-reduce per step. Overrides the trainer's value.")
    ] = None
    step_seconds: Annotated[
        float | None, Parameter(help="Measured compute time per step, in seconds, excluding communication.")
    ] = None
    run: Annotated[
        Path | None,
        Parameter(help="Output folder of a run on one machine of the same type. The plan uses the speed of that run."),
    ] = None
    mfu: Annotated[
        float, Parameter(help="Expected fraction of peak FLOPS, from 0.01 to 1. A measured speed overrides it.")
    ] = MFU
    hours_between_failures: Annotated[
        float | None,
        Parameter(help="Mean time between failures of one machine. Adds the cost of failures to the plan."),
    ] = None
    chart: Annotated[Path | None, Parameter(help="Save a chart for 1 to 1,024 machines as a .png or .svg file.")] = None
    apply: Annotated[bool, Parameter(help="If reducers can help, set the recommended number in the job file.")] = False
    json: Annotated[bool, Parameter(help="Print one JSON document instead of tables.")] = False

    def act(self) -> None:
        settings, flags = self.settings(), self.passed
        warn_of_age(settings.catalog)
        jobs = [job for path in self.jobs for job in approved(path, settings)]
        for job in map(trial, jobs if flags else ()):
            refuse_unknown_flags(job, with_arguments(job, flags), settings)
        _require_sense(self, flags)
        plans = [_plan(job, settings, self, flags) for job in jobs]
        if hours := self.hours_between_failures:
            plans = [_with_failures(plans[0], jobs[0], settings, flags, hours)]
        if self.chart:
            _draw(plans[0], self.chart)
        if self.chart and not self.json:
            console.print(f"{self.chart}: chart saved\n")
        if self.json:
            text = json.dumps([asdict(plan) for plan in plans], default=str)
            answers = json.loads(text, parse_constant=lambda _: None)  # JSON doesn't support Infinity
            print(json.dumps(answers if self.compare else answers[0], indent=2))
        else:
            console.print(report.comparison(plans, console) if self.compare else report.report(plans[0]))
        if self.apply:
            _apply(jobs[0], plans[0])


def _require_sense(wanted: PlanOptions, flags: Sequence[str]) -> None:
    above_zero = ("step_seconds", "gradient_bytes", "hours_between_failures")
    for name, value in {f"--{name.replace('_', '-')}": getattr(wanted, name) for name in above_zero}.items():
        if value is not None and not 0 < value < math.inf:
            raise FaultError(f"{name} is {value:g}; use a finite number above 0")
    for fault, present in _contradictions(wanted, flags).items():
        if present:
            raise FaultError(fault)
    needed = {"matplotlib": ("--chart", wanted.chart), "tensorboard": ("--run", wanted.run)}
    if missing := [one for name, (option, used) in needed.items() if used for one in not_installed(name, option)]:
        raise FaultError(*missing)
    if wanted.chart and wanted.chart.suffix.lower() not in PICTURES:
        raise FaultError(f"{wanted.chart} isn't an image filename; use a name that ends in {' or '.join(PICTURES)}")
    if wanted.chart and not wanted.chart.parent.is_dir():
        raise FaultError(f"{wanted.chart}: the folder {wanted.chart.parent} doesn't exist; create it first")


def _contradictions(wanted: PlanOptions, flags: Sequence[str]) -> dict[str, object]:
    """Map each error message about contradictory options to whether it applies."""
    count, unasked = len(wanted.jobs), wanted.gradient_bytes is not None  # --gradient-bytes replaces the trainer
    changes, computed, run = wanted.chart or wanted.apply, wanted.step_seconds is not None, wanted.run
    hours = wanted.hours_between_failures
    unwritten = flags and wanted.apply
    return {
        f"--mfu is {wanted.mfu:g}; use a fraction from 0.01 to 1": not 0.01 <= wanted.mfu <= 1,
        f"plan accepts one job, not {count}; to compare jobs, add --compare": count > 1 and not wanted.compare,
        "--compare can't be combined with --apply or --chart; remove --compare": wanted.compare and changes,
        "--compare can't be combined with --hours-between-failures; remove one of them": wanted.compare and hours,
        "--gradient-bytes can't be combined with trainer flags after --; use only one of them": flags and unasked,
        "--apply can't be combined with flags after --; add them to the args in the job file first": unwritten,
        "--step-seconds and --run both set the compute time; use only one of them": computed and run,
        "--run requires the trainer's batch size, but --gradient-bytes skips the trainer; use --step-seconds": run
        and unasked,
    }


def _plan(job: Job | TuningJob, settings: Settings, wanted: PlanOptions, flags: Sequence[str]) -> Needs:
    """Plan a job. If the trainer's workload or a machine type is unknown, the plan omits memory and time."""
    work, missing = None, ""
    if wanted.gradient_bytes is None:
        try:
            work = workload.of(with_arguments(trial(job), flags), settings.commands, os.environ, state_dir())
        except FaultError as error:
            missing = f"{error}{'' if str(error).endswith(('.', '?')) else '.'} Use --gradient-bytes"
    return planner.plan(
        job,
        settings,
        work,
        gradient_bytes=wanted.gradient_bytes,
        compute=_measured(job, settings, wanted, work),
        mfu=wanted.mfu,
        image_says=containers.label(image_of(chief), OF_REDUCERS) if (chief := trial(job).chief) else "",
        missing=missing,
    )


def _measured(job: Job | TuningJob, settings: Settings, wanted: PlanOptions, work: Workload | None) -> Compute | None:
    if wanted.step_seconds is not None:
        return Compute(wanted.step_seconds, "measured, from --step-seconds")
    if wanted.run and work:
        workload.require_gpus(wanted.run, state_dir().buckets, host.visible_gpus(os.environ))
        rate = workload.samples_per_second_per_gpu(wanted.run)
        how = f"measured: {rate:.3g} samples/s per GPU in {wanted.run}"
        gpus = pools.machines(pools.rows(trial(job), settings.catalog)).members
        return Compute(work.global_batch / gpus / rate, how)
    return None


def _with_failures(
    plan: Needs, subject: Job | TuningJob, settings: Settings, flags: Sequence[str], hours: float
) -> Plan:
    """Add the cost of failures to a plan. Raises FaultError if the time or the number of steps is unknown."""
    job = with_arguments(trial(subject), flags)
    context = RuleContext(settings, settings.catalog, training.project(Path(), date.today()))
    steps, every = (training.number_of(job, name, context) for name in ("steps", "checkpoint_every"))
    if not (isinstance(plan, Plan) and plan.step_seconds):
        raise FaultError(f"{job.path}: --hours-between-failures requires the time of a step; set --step-seconds")
    if not (steps and every):
        raise FaultError(f"{job.path}: --hours-between-failures requires the trainer's --steps and --checkpoint-every")
    run = failures.Run(
        machines=plan.machines.count,
        seconds=min(steps * plan.step_seconds, job.timeout_seconds),
        step_seconds=plan.step_seconds,
        checkpoint_every=every,
        usd=plan.price.usd / plan.at_once if plan.price else None,
        fits=plan.memory is None or plan.memory.fits,
        is_offered=training.ELASTIC in context.project.flags,
    )
    return replace(plan, failures=failures.failures(run, hours))


def _draw(plan: Needs, path: Path) -> None:
    if not isinstance(plan, Plan) or not plan.curves:
        raise FaultError(f"{path}: {_missing(plan)}")
    from vertex_launch.plan import chart  # importing matplotlib takes a second

    chart.save(plan, path)


def _missing(plan: Needs) -> str:
    """Return a message that states which value the chart lacks and how to provide it."""
    if not isinstance(plan, Plan):
        return f"the chart requires the size of the gradients: {plan.missing}"
    if pools.differ(plan.rows):
        return "the chart requires machines of one type; use the same type in pools 0 and 1"
    if plan.workload is None:
        return "the chart requires the trainer's batch size; remove --gradient-bytes"
    if plan.known_compute is None:
        return "the chart requires the compute time of a step; measure it and set --step-seconds"
    return "the chart requires all prices; add the missing prices under [prices] in vertex.toml"


def _apply(job: Job | TuningJob, plan: Needs) -> None:
    if not isinstance(plan, Plan):
        raise FaultError(f"{job.path}: --apply changed nothing: {plan.missing}")
    if plan.advised.verdict.pays is False:
        cure = "remove pool 2" if plan.present else "the job doesn't need pool 2"
        raise FaultError(f"{job.path}: --apply changed nothing, because reducers aren't worth their price; {cure}")
    sizing = plan.advised.sizing
    if plan.present and plan.present.sizing == sizing:
        console.print(f"{job.path}: the file already specifies {sizing.count} x {sizing.machine_type}")
        return
    apply.apply(trial(job), sizing)
    console.print(f"{job.path}: the file now specifies {sizing.count} x {sizing.machine_type}")
