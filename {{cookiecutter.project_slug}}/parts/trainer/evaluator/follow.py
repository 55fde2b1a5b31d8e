"""Scores each checkpoint of a run while training continues, and marks the best one.

An evaluator isn't part of the training cluster. The evaluator reads only the checkpoints in the job's folder. The
training replicas read only the evaluator's marker for the best checkpoint, so that they don't remove that checkpoint.
Therefore, the evaluator and the training replicas don't wait for each other.

The evaluator scores the oldest checkpoint first, because TensorBoard drops points that arrive after points for later
steps. If the evaluator is slower than training, some checkpoints are removed before it scores them.
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
from trainer.reports.curves import TensorBoard
from trainer.reports.sinks import HELDOUT, Lines
from trainer.samples import shards
from trainer.vertex import storage, writable
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say, say_last, warn
from trainer.vertex.storage import read_json, write_json

NAME = "evaluator"  # the name of its run in TensorBoard
OUTPUTS = ("checkpoints", "logs")
RESULTS = "evaluations.json"  # next to the checkpoints: the results that a restarted evaluator reuses
BEST = "best.json"  # next to the checkpoints: the best checkpoint, which isn't pruned
LOOK_SECONDS = 2.0  # seconds between two checks for a new checkpoint, each of which is a request to the bucket
PATIENCE_SECONDS = 86_400.0  # seconds without a new checkpoint, after which the evaluator exits
AT_ONCE = 32  # samples per batch, so that the batch fits on one device
ATTEMPTS = 3  # to read a checkpoint that seems complete; a mounted bucket may list one that is already gone

Metrics = Mapping[str, float]
Score = Callable[[Path], Metrics]  # checkpoint -> loss and metrics over all held-out samples
Report = Callable[[int, Metrics], None]


def run(argv: Sequence[str], environ: Mapping[str, str], scorer: Callable[[Job], Score]) -> None:
    """Run the evaluator.

    Args:
        scorer: a function that takes the job and returns a function that scores checkpoints.

    Raises:
        TrainerError: If this is a second evaluator, if an output isn't writable, or if `score_all` raises TrainerError.
    """
    _, config = choice.parse(argv, "trainer.evaluator")
    folders, cluster = storage.from_env(environ), spec.from_env(environ)
    if not cluster.name.endswith("-0"):
        raise TrainerError(f"{cluster.name}: a single evaluator scores all checkpoints; set pool 3's replicaCount to 1")
    writable.require_writable(folders, OUTPUTS)
    with shards.at(config.data, folders) as folder:
        score_all(Job(config, folders, folder, cluster), scorer)


def score_all(job: Job, scorer: Callable[[Job], Score]) -> None:
    """Score checkpoints until training is complete. TensorBoard shows the results as a separate run.

    After SIGTERM, the evaluator exits with code 143, not 0. Vertex AI also sends SIGTERM to preempt a machine, and
    treats an evaluator that exits with code 0 as finished. After the job has ended, the exit code doesn't matter.

    Raises:
        TrainerError: If held-out shards are missing or if a checkpoint doesn't match the model.
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
    """Score each complete checkpoint in `root` once, until the last step's checkpoint is scored.

    If there is no new checkpoint for `patience` seconds, print a warning and stop.

    Raises:
        TrainerError: If a checkpoint doesn't match the model.
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
            return say(f"the last checkpoint was scored; the best checkpoint is {best}")
        if time.monotonic() > deadline:
            return warn(f"no new checkpoint in {root} for {patience:g} s; the evaluator stops, but the job continues")
        time.sleep(LOOK_SECONDS)


def mark_best(root: Path, results: Mapping[int, Metrics], marked: Path | None) -> Path | None:
    """Mark the existing checkpoint with the smallest finite held-out loss as the best one.

    Return the marked checkpoint. If no existing checkpoint has a finite loss, return `marked`.
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
    """Return the metrics that an earlier evaluator of this job stored, keyed by step.

    If there are no stored metrics, return an empty dictionary.
    """
    try:
        return {int(step): metrics for step, metrics in read_json(root / RESULTS).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        warn(f"{root / RESULTS} can't be read ({error}); evaluating all checkpoints again")
        return {}


def _attempt(score: Score, folder: Path, *, is_last: bool) -> Metrics | None:
    """Return the checkpoint's metrics.

    Return None if the checkpoint was removed or is damaged, or if a later attempt might succeed.
    """
    problem = commit_marker.why_corrupt(folder)
    try:
        if not problem:
            return score(folder)
    except Exception as error:  # each framework has its own exception for a missing file
        if is_last and not commit_marker.why_incomplete(folder):
            raise
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    if commit_marker.why_incomplete(folder):
        warn(f"skipped {folder}: the checkpoint was removed during the evaluation")
    else:
        warn(f"skipped {folder}: {problem}" if is_last else f"{folder} can't be scored ({problem}); trying again")
    return None
