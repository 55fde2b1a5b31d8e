"""Computes what lost machines cost a run that restarts, and what they cost a run with --strategy elastic.

A machine fails once in H hours on average, and machines fail independently. Therefore, M machines that train for T
hours fail M T / H times. The formulas are first-order: they ignore further failures during a restart.
"""

from dataclasses import dataclass

from vertex_launch.plan.advice import Verdict
from vertex_launch.plan.formatting import duration, usd

START = 600.0  # seconds until a new machine trains; an assumption, because Google doesn't document this time
RARE = 0.1  # failures per run, below which elastic isn't worthwhile
WORTHWHILE = 0.01  # share of a run's time below which a gain isn't worthwhile


@dataclass(frozen=True)
class Run:
    """A run on several machines, without failures."""

    machines: int
    seconds: float  # of all steps; at most the job's timeout
    step_seconds: float
    checkpoint_every: int  # steps
    usd: float | None  # the price of all machines per hour; None if unknown
    fits: bool = True  # whether one GPU can hold the whole model
    is_offered: bool = True  # whether the project has --strategy elastic


@dataclass(frozen=True)
class Failures:
    """The expected number of failures in a run, the seconds that each one costs, and whether elastic is worthwhile."""

    count: float
    hours_between: float  # the mean time between two failures of one machine
    run: Run
    restart_seconds: float  # per failure, if all machines restart from the latest checkpoint
    elastic_seconds: float  # per failure, with --strategy elastic
    verdict: Verdict


def failures(run: Run, hours_between: float) -> Failures:
    """Return the expected failures of a run in which each machine fails once in `hours_between` hours."""
    count = run.machines * run.seconds / 3600 / hours_between
    restart, elastic = restart_seconds(run), elastic_seconds(run)
    verdict = _verdict(run, count, count * (restart - elastic))
    return Failures(count, hours_between, run, restart, elastic, verdict)


def restart_seconds(run: Run) -> float:
    """Return the mean number of seconds that a failure costs if all machines restart.

    All machines wait until the new machine has started. Then they repeat half of the steps between two checkpoints on
    average. With a checkpoint every 200 steps of 1 s: 600 s + 200 / 2 x 1 s = 700 s.
    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM,
    1974.
    """
    return START + min(run.checkpoint_every * run.step_seconds, run.seconds) / 2


def elastic_seconds(run: Run) -> float:
    """Return the mean number of seconds that a failure costs with --strategy elastic.

    One step is repeated. While one of M machines starts, the others train at (M - 1) / M of the speed, so they lose
    1 / M of this time. One failure in M is the chief's, and all others wait for the chief. Together, these cases cost
    (M - 1) / M x 1 / M + 1 / M = (2 M - 1) / M^2 of the time. With three machines: 1 s + 5 / 9 x 600 s = 334 s.
    """
    return run.step_seconds + START * (2 * run.machines - 1) / run.machines**2


def _verdict(run: Run, count: float, saved: float) -> Verdict:
    """Return whether --strategy elastic, which saves `saved` seconds, is worthwhile."""
    share = saved / run.seconds
    if run.machines == 1:
        return Verdict(False, "No: if the only machine fails, no machine can continue.")
    if not run.fits:
        return Verdict(False, "No: --strategy elastic requires that the model fits on one GPU.")
    if count < RARE:
        return Verdict(False, f"No: only one in {1 / count:,.0f} such runs loses a machine.")
    if saved <= 0:
        return Verdict(False, "No: --strategy elastic wouldn't save time.")
    price = "" if run.usd is None else f" and {usd(run.usd * saved / 3600)}"
    gain = f"would save about {duration(saved)}{price} per run, which is {share:.1%} of the run"
    if share < WORTHWHILE:
        return Verdict(False, f"No: --strategy elastic {gain}.")
    part = "" if run.is_offered else " An optional part of PyTorch projects contains this strategy."
    return Verdict(True, f"Yes: --strategy elastic {gain}.{part}")
