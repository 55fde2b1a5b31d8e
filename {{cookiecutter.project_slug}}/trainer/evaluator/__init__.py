"""The evaluator, a replica of pool 3, which scores the checkpoints of a training while it runs.

An evaluator is no part of the cluster. It sees of the trainers only the checkpoints in the job's folder; the trainers
see of it only the mark on the best checkpoint, which they do not remove. So neither waits for the other.

It scores the oldest checkpoint first, because TensorBoard drops points that come after those of later steps. If it is
slower than the training, some checkpoints are removed before their turn, and are never scored.
"""

import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trainer.checkpoints import commit_marker
from trainer.config import Config
from trainer.evaluator.scoring import scorer
from trainer.job import Job
from trainer.reports.sinks import HELDOUT, Lines, TensorBoard
from trainer.vertex.log import say, say_last, warn

NAME = "evaluator"  # of its run in TensorBoard
RESULTS = "evaluations.json"  # beside the checkpoints: what an evaluator that restarts need not do again
LOOK_SECONDS = 2.0  # between two looks for a new checkpoint; each asks the bucket
PATIENCE_SECONDS = 86_400.0  # without a new checkpoint; the training goes on without an evaluator
AT_ONCE = 32  # samples that are scored: one device need not hold a batch of all of them
ATTEMPTS = 3  # to read a checkpoint that looks whole; a mounted bucket may show one that is gone already

Metrics = Mapping[str, float]
Score = Callable[[Path], Metrics]  # checkpoint -> loss and metrics over all held-out samples
Report = Callable[[int, Metrics], None]


def run(job: Job) -> None:
    """Score checkpoints until the training is over, under a run name of their own.

    Raises:
        TrainerError: there is no held-out shard, or a checkpoint is of another model.
    """
    config, root = job.config, job.storage.checkpoints
    score = scorer(replace(job, config=replace(config, global_batch=min(config.global_batch, AT_ONCE))))
    sinks = (TensorBoard(job.storage.logs / NAME), Lines(config.steps))

    def report(step: int, metrics: Metrics) -> None:
        for sink in sinks:
            sink.write(step, {f"{HELDOUT}{name}": value for name, value in metrics.items()})

    with _stopped_by_sigterm(), contextlib.closing(sinks[0]):
        say(f"evaluating the checkpoints in {root}")
        follow(config, root, score, report)


def follow(config: Config, root: Path, score: Score, report: Report, patience: float = PATIENCE_SECONDS) -> None:
    """Score each whole checkpoint in `root` once, until that of the last step is done, or none comes for so long.

    Raises:
        TrainerError: a checkpoint is of another model.
    """
    results, attempts = read_results(root), Counter[Path]()
    progress = time.monotonic()
    while True:
        mark_best(root, results)
        given_up = {commit_marker.number(folder) for folder, count in attempts.items() if count == ATTEMPTS}
        done = given_up | results.keys()
        folder = next_checkpoint(root, done)
        if folder:
            metrics = _attempt(score, folder, attempts)
            if metrics:
                results[commit_marker.number(folder)] = metrics
                _write_results(root, results)
                report(commit_marker.number(folder), metrics)
                progress = time.monotonic()
                continue
        elif max(done, default=0) >= config.steps:
            say(f"that was the last checkpoint; the best one is {commit_marker.marked(root)}")
            return
        if time.monotonic() - progress > patience:
            warn(f"no new checkpoint in {root} within {patience:g} s; the evaluator ends, the training goes on")
            return
        time.sleep(LOOK_SECONDS)


def next_checkpoint(root: Path, done: Container[int]) -> Path | None:
    """Return the oldest whole checkpoint whose step is not done."""
    waiting = (folder for folder in commit_marker.oldest_first(root) if commit_marker.number(folder) not in done)
    return next((folder for folder in waiting if not commit_marker.fault(folder)), None)


def mark_best(root: Path, results: dict[int, Metrics]) -> None:
    """Mark the checkpoint with the smallest held-out loss of those that are still there."""
    there = [folder for folder in commit_marker.oldest_first(root) if commit_marker.number(folder) in results]
    if not there:
        return
    best = min(there, key=lambda folder: results[commit_marker.number(folder)]["loss"])
    if best != commit_marker.marked(root):
        commit_marker.mark(best, results[commit_marker.number(best)])


def read_results(root: Path) -> dict[int, Metrics]:
    """Step -> metrics, as an earlier evaluator of this job has left them; empty if there was none."""
    try:
        return {int(step): metrics for step, metrics in json.loads((root / RESULTS).read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        warn(f"{root / RESULTS} cannot be read ({error}); all checkpoints are evaluated again")
        return {}


def _write_results(root: Path, results: dict[int, Metrics]) -> None:
    commit_marker.write_json(root / RESULTS, results)


def _attempt(score: Score, folder: Path, attempts: Counter[Path]) -> Metrics | None:
    """Return the checkpoint's metrics; none if it was removed meanwhile, is damaged, or is worth another attempt."""
    attempts[folder] += 1
    problem = commit_marker.damage(folder)
    try:
        if not problem:
            return score(folder)
    except Exception as error:  # what a file that vanishes looks like, each framework says in its own way
        if attempts[folder] == ATTEMPTS and not commit_marker.fault(folder):
            raise
        problem = str(error).partition("\n")[0]
    if commit_marker.fault(folder):
        warn(f"skipped {folder}: it was removed while it was read")
    elif attempts[folder] < ATTEMPTS:
        warn(f"{folder} cannot be read ({problem}); trying again")
    else:
        warn(f"skipped {folder}: {problem}")
    return None


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block, which may still close what it has opened, and then the process.

    With 143, not with 0: the service stops an evaluator also when it takes the machine away, and must not count it
    as finished then. When the job is over, nobody asks how it ended.
    """

    def stop(*_: object) -> None:
        say_last("the evaluator was stopped by SIGTERM")
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
