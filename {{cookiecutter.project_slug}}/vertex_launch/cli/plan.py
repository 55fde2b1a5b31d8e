"""The command `plan`: from job files and flags to tables, a picture, JSON, or a changed file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from vertex_launch.errors import FaultError
from vertex_launch.local.running import host
from vertex_launch.plan import apply, measured_speed, planner, pools, report, workload
from vertex_launch.plan.planner import Compute, Plan
from vertex_launch.plan.workload import Workload
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob, trial
from vertex_launch.state_dir import StateDir

PICTURES = (".png", ".svg")


class UsageError(FaultError):
    """The flags do not go together."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user knows and wants; None stands for what was not given."""

    compare: bool
    gradient_bytes: float | None
    step_seconds: float | None
    run: Path | None
    mfu: float
    chart: Path | None
    apply: bool
    json: bool


def show(
    jobs: Sequence[Job | TuningJob], settings: Settings, flags: Flags, environ: Mapping[str, str], console: Console
) -> None:
    """Plan jobs and do with the plans what the flags ask for.

    Raises:
        UsageError: the flags do not go together.
        FaultError: a job cannot be planned, or not changed.
    """
    _require_sense(jobs, flags)
    plans = [_plan(job, settings, flags, environ) for job in jobs]
    if flags.chart:
        _draw(plans[0], flags.chart)
    if flags.chart and not flags.json:
        console.print(f"{flags.chart}: drawn\n", markup=False)
    if flags.json:
        answers = [_as_json(plan) for plan in plans]
        print(json.dumps(answers if flags.compare else answers[0], indent=2, default=str))
    else:
        console.print(report.comparison(plans, console) if flags.compare else report.report(plans[0]))
    if flags.apply:
        _apply(jobs[0], plans[0], console)


def _require_sense(jobs: Sequence[Job | TuningJob], flags: Flags) -> None:
    for name, value in (("--step-seconds", flags.step_seconds), ("--gradient-bytes", flags.gradient_bytes)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is {value:g}; give a finite number above 0")
    if not 0.01 <= flags.mfu <= 1:
        raise UsageError(f"--mfu is {flags.mfu:g}; give a share from 0.01 to 1")
    if len(jobs) > 1 and not flags.compare:
        raise UsageError(f"plan takes one job, not {len(jobs)}; add --compare to see them side by side")
    if flags.compare and (flags.chart or flags.apply):
        raise UsageError("--compare changes and draws nothing; leave it out to --apply or --chart one job")
    if flags.step_seconds is not None and flags.run:
        raise UsageError("--step-seconds and --run both say how long computing takes; keep one")
    if flags.run and flags.gradient_bytes is not None:
        raise UsageError(
            "--run needs the trainer's global batch, which --gradient-bytes leaves out; use --step-seconds"
        )
    if flags.chart and flags.chart.suffix.lower() not in PICTURES:
        raise UsageError(f"{flags.chart}: is no picture; end its name in {' or '.join(PICTURES)}")
    if flags.chart and not flags.chart.parent.is_dir():
        raise UsageError(f"{flags.chart}: there is no folder {flags.chart.parent}; make it first")


def _plan(job: Job | TuningJob, settings: Settings, flags: Flags, environ: Mapping[str, str]) -> Plan:
    said = workload.of(trial(job), settings.commands, environ, StateDir()) if flags.gradient_bytes is None else None
    return planner.plan(
        job,
        settings,
        said,
        gradient_bytes=flags.gradient_bytes,
        compute=_measured(job, settings, flags, said, environ),
        mfu=flags.mfu,
    )


def _measured(
    job: Job | TuningJob, settings: Settings, flags: Flags, said: Workload | None, environ: Mapping[str, str]
) -> Compute | None:
    if flags.step_seconds is not None:
        return Compute(flags.step_seconds, "measured, by --step-seconds")
    if flags.run and said:
        measured_speed.require_gpus(flags.run, StateDir().buckets, host.visible_gpus(environ))
        rate = measured_speed.samples_per_second_per_gpu(flags.run)
        return planner.measured(
            trial(job), settings, said, rate, f"measured: {rate:.3g} samples/s per GPU in {flags.run}"
        )
    return None


def _draw(plan: Plan, path: Path) -> None:
    if not plan.curves:
        raise UsageError(f"{path}: cannot be drawn without {_missing(plan)}")
    from vertex_launch.plan import chart  # only here: matplotlib takes a second to import

    chart.save(plan, path)


def _missing(plan: Plan) -> str:
    """What a curve needs that is not known, and how to say it."""
    if pools.differ(plan.rows):
        return "machines of one kind; make pools 0 and 1 the same"
    if plan.workload is None:
        return "the trainer's batch; plan without --gradient-bytes"
    if plan.known_compute is None:
        return "the time to compute; measure a step, for --step-seconds"
    return "all prices; add yours to vertex.toml, below [prices]"


def _apply(job: Job | TuningJob, plan: Plan, console: Console) -> None:
    if plan.advised.verdict.pays is False:
        cure = "remove pool 2" if plan.present else "the file needs no pool 2"
        raise UsageError(f"{job.path}: --apply wrote nothing, since reducers do not pay here; {cure}")
    sizing = plan.advised.sizing
    if plan.present and plan.present.sizing == sizing:
        console.print(f"{job.path}: has {sizing.count} x {sizing.machine_type} already")
        return
    apply.apply(trial(job), sizing)
    console.print(f"{job.path}: now has {sizing.count} x {sizing.machine_type}")


def _as_json(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = _finite(asdict(plan))
    return found


def _finite(value: Any) -> Any:
    """Infinity, which JSON does not know, as null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
