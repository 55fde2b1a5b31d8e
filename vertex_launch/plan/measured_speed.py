"""The speed of a run, from the curves that the trainer wrote for TensorBoard."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from vertex_launch.errors import FaultError

RATE = "train/samples_per_second_per_device"
OUTPUT = Path("output")  # of a trainer without a launcher


def require_gpus(folder: Path, buckets: Path, gpus: Sequence[str]) -> None:
    """Raise FaultError for a run on this machine's CPUs, known by its folder: in `buckets`, or the default output."""
    resolved = folder.resolve()
    if not gpus and (resolved.is_relative_to(buckets.resolve()) or resolved.is_relative_to(OUTPUT.resolve())):
        cure = "copy the output of a run in the cloud from its bucket to another folder, or use --step-seconds"
        raise FaultError(f"{folder}: is a run of this machine, which has no GPU; {cure}")


def samples_per_second_per_gpu(folder: Path) -> float:
    """The median over a run of the samples per second and GPU; raises FaultError if its folder has no such curve."""
    # Imported lazily, as it imports most of TensorBoard.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    files = sorted(filter(Path.is_file, folder.glob("**/events.out.tfevents.*")))
    loaders = (LegacyEventFileLoader(str(path)) for path in files)
    values = (value for loader in loaders for event in loader.Load() for value in event.summary.value)
    rates: list[float] = [item.simple_value for item in values if item.tag == RATE and 0 < item.simple_value < math.inf]
    if not rates:
        raise FaultError(f"{folder}: holds no curve {RATE}; name the output folder of a run, copied from its bucket")
    return statistics.median(rates)
