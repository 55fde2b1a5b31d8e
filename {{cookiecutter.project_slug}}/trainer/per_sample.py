"""One number per sample: what losses() and metrics() of trainer/model.py promise, held against what they return."""

from collections.abc import Mapping
from typing import Any

from trainer.vertex.errors import TrainerError

OURS = ("loss", "samples")  # what the loop itself sums under these names


def require(output: Any, losses: Any, metrics: Mapping[str, Any], count: int) -> None:
    """Return if there is one output, and one number for each of so many samples.

    A mean would be averaged again, and its gradients divided once too often, without a word.

    Raises:
        TrainerError: the output is no tensor, a result has another shape, or a metric the loop's own name.
    """
    if not hasattr(output, "shape"):
        kind = type(output).__name__
        raise TrainerError(f"the model of trainer/model.py returns a {kind}, must return one tensor: it is exported so")
    for name in OURS:
        if name in metrics:
            raise TrainerError(f'metrics() of trainer/model.py returns "{name}", which the loop reports; rename it')
    results = {"losses()": losses, **{f'"{name}" of metrics()': value for name, value in metrics.items()}}
    for what, value in results.items():
        shape = tuple(value.shape)
        if shape != (count,):
            raise TrainerError(
                f"{what} in trainer/model.py has the shape {shape}, must be ({count},): one number per sample, no mean"
            )
