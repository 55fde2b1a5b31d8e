"""Copies of the model that differ: whose, in which tensor, and where the run goes on; and models that answer otherwise.

Parameters say nothing about what else a model computes with, such as an order that `build` has drawn. Its answers do.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.job import Job
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import warn

SAMPLES = 32  # whose answers are compared
EXACT, ROUNDED = 1e-3, 2e-2  # largest difference of losses, computed in float32 and in lower precision
DRAWN = "have build() of trainer/model.py draw all from the generators that --seed sets, or keep it in the state dict"
CURE = (
    "if it names the same replica again, replace the machine, or look for code that changes the state outside of the"
    " optimizer; --anyway goes on as it is"
)


def require_alike(job: Job, step: int, saved: str, names: Sequence[str], copies: Sequence[Mapping[str, int]]) -> None:
    """Name the copies that are not like most of them; all, where no value is that of most.

    Args:
        saved: name of the newest checkpoint; empty if there is none.
        names: of the replica, or process, that holds each copy.
        copies: digest of each tensor, by its name, of each copy.

    Raises:
        PeerError: copies are not alike, unless the run is to go on anyway: then the chief warns.
    """
    tensor = next((name for name, value in copies[0].items() if any(copy[name] != value for copy in copies)), "")
    if not tensor:
        return
    ((usual, count),) = Counter(copy[tensor] for copy in copies).most_common(1)
    most = count * 2 > len(copies)
    odd = [*dict.fromkeys(name for name, copy in zip(names, copies, strict=True) if not most or copy[tensor] != usual)]
    differ = f"{'differs' if len(odd) == 1 else 'differ'} from {'the others' if most else 'one another'}"
    fault = f"after step {step} {' and '.join(odd)} {differ} in {tensor}"
    resume = f"resumes from {saved}" if saved else "begins at the first step"
    object_to(job, fault, PeerError(f"{fault}; nothing is saved, and the next start {resume}: {CURE}"))


class Answers(NamedTuple):
    """Losses of the first held-out samples, by which models are compared."""

    losses: Sequence[float]
    tolerance: float = EXACT

    def differ(self, other: Sequence[float]) -> bool:
        """Whether the mean difference, relative to a loss of more than 1, is too large; if both have losses at all."""
        count = min(len(self.losses), len(other))
        own, theirs = np.array(self.losses[:count]), np.array(other[:count])
        differences = np.nan_to_num(np.abs(own - theirs) / (1 + np.abs(own)))
        return bool(differences.size) and float(differences.mean()) > self.tolerance


def repeated(losses: Callable[[], Any], tolerance: float) -> Answers:
    """Return a model's losses; NaNs, which equal all, if it draws numbers in evaluation and so has others each time."""
    first, second = (np.asarray(losses(), np.float32).tolist() for _ in range(2))
    answers = Answers(first, tolerance)
    return Answers([math.nan] * len(first)) if answers.differ(second) else answers


def require_same_answers(job: Job, of_each: Sequence[Answers], names: Sequence[str]) -> Answers:
    """Compare the answers of all processes, or machines, with those of the first that has some; returns the latter.

    Raises:
        TrainerError: they differ, unless the run is to go on anyway: then the chief warns.
    """
    first, name = next((pair for pair in zip(of_each, names, strict=True) if pair[0].losses), (of_each[0], names[0]))
    for answers, other in zip(of_each, names, strict=True):
        if first.differ(answers.losses):
            fault = f"the model of {other} answers otherwise than that of {name}, with the same weights"
            object_to(job, fault, TrainerError(f"{fault}; {DRAWN}"))
    return first


def object_to(job: Job, fault: str, error: TrainerError) -> None:
    """Raise the error, unless the run is to go on anyway: then the chief warns of the fault."""
    if not job.config.anyway:
        raise error
    if job.cluster.rank == 0:
        warn(f"{fault}: going on, by --anyway")
