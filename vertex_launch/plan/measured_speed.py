"""The speed of a run, from the curves that the trainer wrote for TensorBoard."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from vertex_launch.errors import FaultError

RATE = "train/samples_per_second_per_device"
OUTPUT = Path("output")  # of a trainer without a launcher


def require_gpus(folder: Path, buckets: Path, gpus: Sequence[str]) -> None:
    """Raise FaultError for a run on CPUs of this machine, which only its folder tells: one of ours, or in `buckets`."""
    here = folder.resolve()
    if not gpus and (here.is_relative_to(buckets.resolve()) or here.is_relative_to(OUTPUT.resolve())):
        cure = "copy the output of a run in the cloud from its bucket to another folder, or use --step-seconds"
        raise FaultError(f"{folder}: is a run of this machine, which has no GPU; {cure}")


def samples_per_second_per_gpu(folder: Path) -> float:
    """The median over a run of the samples per second and GPU; raises FaultError if its folder has no such curve."""
    rates = [rate for path in sorted(folder.glob("**/events.out.tfevents.*")) for rate in _rates(path)]
    if not rates:
        cure = "name the output folder of a run, copied from its bucket"
        raise FaultError(f"{folder}: holds no curve {RATE}; {cure}")
    return statistics.median(rates)


def _rates(path: Path) -> list[float]:
    # Imported lazily, as it imports most of TensorBoard.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    values = (value for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value)
    return [value.simple_value for value in values if value.tag == RATE and 0 < value.simple_value < math.inf]
