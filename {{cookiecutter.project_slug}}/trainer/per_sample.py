"""One number per sample: check that losses() and metrics() of trainer/model.py return what they promise."""

from collections.abc import Mapping
from typing import Any

from trainer.vertex.errors import TrainerError

RESERVED = ("loss", "samples")  # names under which the loop itself adds up


def require(output: Any, losses: Any, metrics: Mapping[str, Any], count: int) -> None:
    """Return if there is one output, and one number for each of so many samples.

    A mean would be averaged again, and its gradients divided once too often, without a word.

    Raises:
        TrainerError: the output is no tensor, a result has another shape, or a metric the loop's own name.
    """
    if not hasattr(output, "shape"):
        kind = type(output).__name__
        raise TrainerError(f"the model of trainer/model.py returns a {kind}, must return one tensor: it is exported so")
    for name in metrics.keys() & RESERVED:
        raise TrainerError(f'metrics() of trainer/model.py returns "{name}", which the loop reports; rename it')
    results = {"losses()": losses, **{f'"{name}" of metrics()': value for name, value in metrics.items()}}
    for name, shape in ((name, tuple(getattr(value, "shape", ()))) for name, value in results.items()):
        if shape != (count,):
            raise TrainerError(
                f"{name} in trainer/model.py has the shape {shape}, must be ({count},): one number per sample, no mean"
            )
