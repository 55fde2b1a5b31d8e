"""The sentence about a gradient that is no number: which step, whose, and of which samples."""

from collections.abc import Iterable, Sequence

from trainer.job import Job
from trainer.shards import Dataset, order
from trainer.vertex.errors import TrainerError

SHOWN = 50  # samples; a global batch may have thousands
CURE = (
    "look at these samples and at the operations of trainer/model.py, lower --learning-rate, or leave out a few such"
    " steps with --skip-nonfinite"
)


class GradientError(TrainerError):
    """The error of a run that ends at a step, an index.

    Args:
        places: in the global batch, by process, of the samples whose own gradients are no numbers; all empty where
            nobody could find that out.
    """

    def __init__(self, job: Job, step: int, places: Sequence[Sequence[int]]) -> None:
        size, numbers = job.config.global_batch, order(len(Dataset(job.shards, "train")), job.config)

        def samples(places: Iterable[int]) -> str:
            named = [str(numbers[step * size + place]) for place in places]
            rest = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            return f"samples {', '.join(named[:SHOWN])}{rest}"

        guilty = [f"{job.cluster.process(i, len(places))} ({samples(own)})" for i, own in enumerate(places) if own]
        whose = f"that of {', '.join(guilty)}" if guilty else f"it has {samples(range(size))}"
        super().__init__(f"the gradient of step {step + 1} is no number: {whose}; {CURE}")
