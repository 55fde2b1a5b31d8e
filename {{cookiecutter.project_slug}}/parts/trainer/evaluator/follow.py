"""Follows the checkpoints of a training, scores each of them, and marks the best.

An evaluator is no part of the cluster. It sees of the trainers only the checkpoints in the job's folder; the trainers
see of it only the mark on the best checkpoint, which they do not remove. So neither waits for the other.

It scores the oldest checkpoint first, because TensorBoard drops points that come after those of later steps. If it is
slower than the training, some checkpoints are removed before their turn, and are never scored.
"""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainer.checkpoints import commit_marker
from trainer.cluster import spec
from trainer.config import Config, Job
from trainer.parallel import choice
from trainer.reports.sinks import HELDOUT, Lines, TensorBoard
from trainer.samples import shards
from trainer.vertex import storage, writable
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, say_last, warn
from trainer.vertex.storage import read_json, write_json

NAME = "evaluator"  # of its run in TensorBoard
OUTPUTS = ("checkpoints", "logs")
RESULTS = "evaluations.json"  # beside the checkpoints: what an evaluator that restarts need not do again
BEST = "best.json"  # beside the checkpoints: names the best of them, which is spared from pruning
LOOK_SECONDS = 2.0  # between two looks for a new checkpoint; each asks the bucket
PATIENCE_SECONDS = 86_400.0  # without a new checkpoint; the training goes on without an evaluator
AT_ONCE = 32  # samples that are scored: one device need not hold a batch of all of them
ATTEMPTS = 3  # to read a checkpoint that looks whole; a mounted bucket may show one that is gone already

Metrics = Mapping[str, float]
Score = Callable[[Path], Metrics]  # checkpoint -> loss and metrics over all held-out samples
Report = Callable[[int, Metrics], None]


def run(argv: Sequence[str], environ: Mapping[str, str], scorer: Callable[[Job], Score]) -> None:
    """Do the evaluator's part.

    Args:
        scorer: returns the function that scores a checkpoint.

    Raises:
        TrainerError: this is a second evaluator, an output cannot be written, or as `score_all`.
    """
    _, config = choice.parse(argv, "trainer.evaluator")
    folders, cluster = storage.from_env(environ), spec.from_env(environ)
    if not cluster.name.endswith("-0"):
        raise TrainerError(f"{cluster.name}: one evaluator scores all checkpoints; set replicaCount of pool 3 to 1")
    writable.require_writable(folders, OUTPUTS)
    with shards.at(config.data, folders) as folder:
        score_all(Job(config, folders, folder, cluster), scorer)


def score_all(job: Job, scorer: Callable[[Job], Score]) -> None:
    """Score checkpoints until the training is over, under a run name of their own.

    SIGTERM ends it with 143, not with 0: the service stops an evaluator also when it takes the machine away, and must
    not count it as finished then. When the job is over, nobody asks how it ended.

    Raises:
        TrainerError: there is no held-out shard, or a checkpoint is of another model.
    """
    config, root = job.config, job.storage.checkpoints
    score = scorer(replace(job, config=replace(config, global_batch=min(config.global_batch, AT_ONCE))))
    sinks = (TensorBoard(job.storage.logs / NAME), Lines(config.steps))

    def report(step: int, metrics: Metrics) -> None:
        for sink in sinks:
            sink.write(step, {f"{HELDOUT}{name}": value for name, value in metrics.items()})

    def stop(*_: object) -> None:
        say_last("the evaluator was stopped by SIGTERM")
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    say(f"evaluating the checkpoints in {root}")
    follow(config, root, score, report)


def follow(config: Config, root: Path, score: Score, report: Report, patience: float = PATIENCE_SECONDS) -> None:
    """Score each whole checkpoint in `root` once, until that of the last step is done, or none comes for so long.

    Raises:
        TrainerError: a checkpoint is of another model.
    """
    results, attempts, deadline = read_results(root), Counter[int](), time.monotonic() + patience
    best: Path | None = None
    while True:
        best = mark_best(root, results, best)
        done = results.keys() | {step for step, count in attempts.items() if count == ATTEMPTS}
        waiting = (folder for folder in commit_marker.folders(root) if commit_marker.number(folder) not in done)
        folder = next((folder for folder in waiting if not commit_marker.why_incomplete(folder)), None)
        if folder:
            step = commit_marker.number(folder)
            attempts[step] += 1
            if metrics := _attempt(score, folder, is_last=attempts[step] == ATTEMPTS):
                results[step], deadline = metrics, time.monotonic() + patience
                write_json(root / RESULTS, results)
                report(step, metrics)
                continue
        elif max(done, default=0) >= config.steps:
            return say(f"that was the last checkpoint; the best one is {best}")
        if time.monotonic() > deadline:
            return warn(f"no new checkpoint in {root} within {patience:g} s; the evaluator ends, the training goes on")
        time.sleep(LOOK_SECONDS)


def mark_best(root: Path, results: Mapping[int, Metrics], marked: Path | None) -> Path | None:
    """Mark the checkpoint with the smallest held-out loss, which is a number, of those that are still there.

    Returns it; the `marked` one if there is none.
    """
    numbers = {step: metrics["loss"] for step, metrics in results.items() if math.isfinite(metrics["loss"])}
    losses = {step: loss for step, loss in numbers.items() if commit_marker.numbered(root, step).is_dir()}
    if not losses:
        return marked
    step = min(losses, key=losses.__getitem__)
    best = commit_marker.numbered(root, step)
    if best != marked:
        write_json(root / BEST, {"step": step, "metrics": results[step]})
    return best


def read_results(root: Path) -> dict[int, Metrics]:
    """Step -> metrics, as an earlier evaluator of this job has left them; empty if there was none."""
    try:
        return {int(step): metrics for step, metrics in read_json(root / RESULTS).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        warn(f"{root / RESULTS} cannot be read ({error}); all checkpoints are evaluated again")
        return {}


def _attempt(score: Score, folder: Path, *, is_last: bool) -> Metrics | None:
    """Return the checkpoint's metrics; none if it was removed meanwhile, is damaged, or is worth another attempt."""
    problem = commit_marker.why_corrupt(folder)
    try:
        if not problem:
            return score(folder)
    except Exception as error:  # each framework says in its own way that a file has vanished
        if is_last and not commit_marker.why_incomplete(folder):
            raise
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    if commit_marker.why_incomplete(folder):
        warn(f"skipped {folder}: it was removed while it was read")
    else:
        warn(f"skipped {folder}: {problem}" if is_last else f"{folder} cannot be scored ({problem}); trying again")
    return None
