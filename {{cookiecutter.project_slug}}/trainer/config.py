"""Declares a run's flags in one dataclass, with one flag per field.

A flag's name is the field's name with dashes instead of underscores. Example: `--global-batch 192 --steps 2000`.
trainer/data.py and trainer/model.py declare the data and model flags. Each strategy's file in trainer/parallel/
declares that strategy's flags. If data.py or model.py repeats a field of LoopFlags, the default in that file takes
precedence.
"""

import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from trainer import data, flags, model
from trainer.cluster.spec import Cluster
from trainer.data import DataFlags
from trainer.model import ModelFlags
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import warn
from trainer.vertex.storage import Storage

TIMEOUTS = ("collective_timeout", "rollcall_timeout")
# Flags that may differ between replicas. The data itself is compared, so --data may differ, too.
OWN = (
    "anyway",
    "collective_timeout",
    "data",
    "data_processes",
    "profile",
    "rehearse_export",
    "rollcall_timeout",
)
CODE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class LoopFlags:
    """The training loop flags, which `Config` inherits."""

    steps: int = 600
    """Number of optimizer steps."""
    global_batch: int = 96
    """Number of samples per step across all processes. The loss curve doesn't depend on the number of processes."""
    micro_batches: int = 1
    """Number of micro-batches into which each process splits its batch.
    Increase it if a batch doesn't fit in memory."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the forward pass. The value auto selects bfloat16 on GPUs that support it. Weights and gradients are
    always float32."""
    learning_rate: float = 2e-3
    """Peak learning rate, after a linear warm-up and before a cosine decay to zero."""
    warmup: int = 50
    """Number of warm-up steps. If the run has fewer steps, it ends during the warm-up."""
    weight_decay: float = 0.05
    """Decoupled weight decay for the weight matrices (AdamW)."""
    clip: float = 1.0
    """Maximum global norm of the gradient."""
    skip_nonfinite: int = 0
    """Maximum number of steps to skip because the gradient norm is NaN or infinite.
    If more steps must be skipped, the run fails."""
    seed: int = 0
    """Seed for the initial weights and the order of the data."""
    log_every: int = 50
    """Number of steps between reports. A report is also written before each evaluation and each checkpoint."""
    evaluate_every: int = 200
    """Number of steps between evaluations on the held-out shards. The model is also evaluated after the last step."""
    checkpoint_every: int = 200
    """Number of steps between checkpoints. A checkpoint is also saved after the last step."""
    compare_ranks_every: int = 0
    """Number of steps between checks for diverged replicas.
    Replicas are also checked before each checkpoint."""
    keep: int = 2
    """Number of latest checkpoints to keep."""
    data_processes: int = 0
    """Number of processes per GPU that prepare batches.
    If it is 0, threads prepare the batches, but Python runs only one thread at a time."""
    anyway: bool = False
    """Continue even if shards are missing or replicas have diverged.
    Also continue if the data, flags, or code differ from those of the checkpoint or of other replicas."""
    rollcall_timeout: float | None = None
    """Seconds to wait for the other replicas at startup. The default is 600 on Vertex AI and 60 in the local Vertex."""
    collective_timeout: float = 300
    """If a peer doesn't respond for this number of seconds, the run fails."""
    rehearse_export: bool | None = None
    """Export the model once before the first step, so that an export error doesn't cost a whole run.
    The default is true on Vertex AI and false in the local Vertex."""
    profile: str | None = None
    """Steps to trace with the profiler. For example, 20:25 traces the five steps after step 20.
    The chief writes the trace to the logs folder."""
    require_reducers: bool = False
    """Exit with code 78 if NCCL's log shows that NCCL doesn't use the job's reducers."""


@dataclass(frozen=True, kw_only=True)
class Config(ModelFlags, LoopFlags):
    """Train the model from trainer/model.py on the data from trainer/data.py.

    To print the required resources as a JSON object without training, run `python -m trainer.describe` with the same
    flags.
    """


def findings(config: Config) -> Iterator[str]:
    """Yield an error message, including the flag's name, for each invalid value."""
    if "inputs" not in (names := data.Batch._fields):
        yield (
            f"trainer/data.py: Batch has {', '.join(names)}, but not `inputs`;"
            " rename the model's input array to `inputs`"
        )
    yield from data.findings(config)
    yield from model.findings(config)
    yield from flags.at_least(1, config, "steps", "global_batch", "micro_batches")
    yield from flags.at_least(1, config, "log_every", "evaluate_every", "checkpoint_every")
    yield from flags.above_zero(config, "learning_rate", "clip", *TIMEOUTS)
    if config.keep < 1:
        yield f"--keep is {config.keep}, but it must be at least 1, because a run without a checkpoint can't resume"
    yield from flags.at_least(0, config, "warmup", "weight_decay", "skip_nonfinite")
    yield from flags.at_least(0, config, "compare_ranks_every", "data_processes")
    if not 0 <= config.seed < 2**32:
        yield f"--seed is {config.seed}, but it must be between 0 and 2**32 - 1"
    if config.profile is not None and not traced_steps(config):
        yield f"--profile is {config.profile}, but it must be a range of steps such as 20:25"
    elif (traced := traced_steps(config)) and traced.stop > config.steps:
        yield f"--profile is {config.profile}, but it must end by the last step, {config.steps}"


def of_model(config: ModelFlags) -> dict[str, str]:
    """Return the model's own flags.

    Some of these flags, such as the number of heads, can't be derived from the weights' shapes.
    """
    of_data = {field.name for field in fields(DataFlags)}
    return {field.name: str(getattr(config, field.name)) for field in fields(ModelFlags) if field.name not in of_data}


def traced_steps(config: Config) -> range:
    """Return the zero-based indices of the steps to trace. Example: 20:25 selects the indices 20 to 24."""
    bounds = re.fullmatch(r"(\d{1,9}):(\d{1,9})", config.profile or "")
    return range(int(bounds[1]), int(bounds[2])) if bounds else range(0)


def learning_rate(config: Config, step: int) -> float:
    """Return the learning rate for a zero-based step index, with a linear warm-up and a cosine decay to zero."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / (config.steps - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def due(step: int, config: Config, *intervals: int) -> bool:
    """Return True if `step` is the last step or a multiple of any interval."""
    return step == config.steps or any(step % interval == 0 for interval in intervals)


@dataclass(frozen=True)
class Job:
    """A run's flags, machines, and folders, which are known before any training process starts."""

    config: Config
    storage: Storage
    shards: Path  # the folder of the data set
    cluster: Cluster = field(default_factory=Cluster)

    @property
    def rehearses_export(self) -> bool:
        return not self.storage.emulated if self.config.rehearse_export is None else self.config.rehearse_export

    def object_to(self, fault: str, error: TrainerError) -> None:
        """Raise the error. If --anyway is set, the chief prints a warning instead."""
        if not self.config.anyway:
            raise error
        if self.cluster.rank == 0:
            warn(f"{fault}; continuing because of --anyway")


def facts(config: Config, **versions: str) -> dict[str, str]:
    """Return the values that must be the same on all replicas: flags, versions, and a checksum of the trainer's code.

    The values are keyed by name. If --anyway is set, return an empty dictionary.
    """
    if config.anyway:
        return {}
    values = {flags.flag(name): str(value) for name, value in asdict(config).items() if name not in OWN}
    code = 0
    for file in sorted(CODE.rglob("*.py")):
        code = zlib.crc32(file.read_bytes(), code)
    return {**values, **versions, f"{CODE.name}/": f"{code:08x}"}
