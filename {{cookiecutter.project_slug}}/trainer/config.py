"""Everything one can set about a run: one dataclass, one flag per field.

The flags are the field names with dashes: `--global-batch 192 --steps 2000`. Those of the data and the model stand in
trainer/data.py and trainer/model.py, those of a strategy in its file of trainer/parallel/. A field of LoopFlags that
data.py or model.py repeats has its default from there.
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
# Flags that may differ: how long a replica waits, what it looks for, and where its data is, which is compared itself.
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
    """The flags of Config for the loop."""

    steps: int = 600
    """Optimizer steps."""
    global_batch: int = 96
    """Samples per step over all processes; the same curve whatever their number."""
    micro_batches: int = 1
    """Micro-batches per step and process; raise it when a batch does not fit in memory."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the forward pass computes in; auto is bfloat16 on GPUs that have it. Weights and gradients stay float32."""
    learning_rate: float = 2e-3
    """Peak of the schedule: linear warm-up, then cosine decay to zero."""
    warmup: int = 50
    """Steps of warm-up; a run that is shorter ends within it."""
    weight_decay: float = 0.05
    """Decoupled decay of the weight matrices (AdamW)."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    skip_nonfinite: int = 0
    """Steps that a run leaves out, because the norm of the gradient is no number, before it ends with an error."""
    seed: int = 0
    """Decides the initial weights and the order of the data."""
    log_every: int = 50
    """Steps between two reports; there is one before each evaluation and checkpoint, too."""
    evaluate_every: int = 200
    """Steps between two evaluations on the held-out shards; there is one at the end."""
    checkpoint_every: int = 200
    """Steps between two checkpoints; there is one at the end."""
    compare_ranks_every: int = 0
    """Steps between two comparisons of the copies of the model; there is one at each checkpoint, too."""
    keep: int = 2
    """Checkpoints to keep, newest first."""
    data_processes: int = 0
    """Processes that make batches ahead, for each GPU; with 0 threads do, of which Python runs one at a time."""
    anyway: bool = False
    """Go on where shards are missing, where copies of the model differ, and where data, flags or code are not those of
    the checkpoint or of the other replicas."""
    rollcall_timeout: float | None = None
    """Seconds to wait for the other replicas; by default 600 in the cloud, 60 in the local Vertex."""
    collective_timeout: float = 300
    """Seconds after which a silent peer fails the run."""
    rehearse_export: bool | None = None
    """Export the model before the first step, too; by default in the cloud alone, where its failure costs a run."""
    profile: str | None = None
    """Steps of which the chief writes a trace below its logs, such as 20:25: of the five behind step 20."""
    require_reducers: bool = False
    """End with exit code 78 if NCCL is seen not to use the job's reducers."""


@dataclass(frozen=True, kw_only=True)
class Config(ModelFlags, LoopFlags):
    """Train the model of trainer/model.py on the data of trainer/data.py.

    `python -m trainer.describe` with the same flags prints what that needs as one JSON object, and trains nothing.
    """


def findings(config: Config) -> Iterator[str]:
    """Yield a phrase, which names the flag, for each wrong value."""
    if "inputs" not in (names := data.Batch._fields):
        yield f"trainer/data.py: Batch has {', '.join(names)} and no inputs; give that name to the array for the model"
    yield from data.findings(config)
    yield from model.findings(config)
    yield from flags.at_least(1, config, "steps", "global_batch", "micro_batches")
    yield from flags.at_least(1, config, "log_every", "evaluate_every", "checkpoint_every")
    yield from flags.above_zero(config, "learning_rate", "clip", *TIMEOUTS)
    if config.keep < 1:
        yield f"--keep is {config.keep}, must be at least 1: a run without a checkpoint cannot resume"
    yield from flags.at_least(0, config, "warmup", "weight_decay", "skip_nonfinite")
    yield from flags.at_least(0, config, "compare_ranks_every", "data_processes")
    if not 0 <= config.seed < 2**32:
        yield f"--seed is {config.seed}, must be from 0 to 2**32 - 1"
    if config.profile is not None and not traced_steps(config):
        yield f"--profile is {config.profile}, must be two numbers of steps such as 20:25"
    elif (traced := traced_steps(config)) and traced.stop > config.steps:
        yield f"--profile is {config.profile}, must end by the last step, {config.steps}"


def of_model(config: ModelFlags) -> dict[str, str]:
    """Return the flags of the model alone, which shapes may not show, such as a count of heads."""
    of_data = {field.name for field in fields(DataFlags)}
    return {field.name: str(getattr(config, field.name)) for field in fields(ModelFlags) if field.name not in of_data}


def traced_steps(config: Config) -> range:
    """Indices of the steps to trace, counted from 0: for 20:25 the five that end with steps 21 to 25; else none."""
    bounds = re.fullmatch(r"(\d{1,9}):(\d{1,9})", config.profile or "")
    return range(int(bounds[1]), int(bounds[2])) if bounds else range(0)


def learning_rate(config: Config, step: int) -> float:
    """Rate of the step with this index, counted from 0: linear warm-up, then cosine decay to zero."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / (config.steps - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def due(step: int, config: Config, *intervals: int) -> bool:
    """True for the last step, and for each step that is a multiple of an interval."""
    return step == config.steps or any(step % interval == 0 for interval in intervals)


@dataclass(frozen=True)
class Job:
    """Flags, machines and folders, all known before any process starts."""

    config: Config
    storage: Storage
    shards: Path  # the folder of the data set
    cluster: Cluster = field(default_factory=Cluster)

    @property
    def rehearses_export(self) -> bool:
        return not self.storage.emulated if self.config.rehearse_export is None else self.config.rehearse_export

    def object_to(self, fault: str, error: TrainerError) -> None:
        """Raise the error, unless the run is to go on anyway: then the chief warns of the fault."""
        if not self.config.anyway:
            raise error
        if self.cluster.rank == 0:
            warn(f"{fault}: going on, by --anyway")


def facts(config: Config, **versions: str) -> dict[str, str]:
    """Return what all replicas must have alike, by its name: flags, versions, and a checksum of this code.

    Empty where the run is to go on anyway.
    """
    if config.anyway:
        return {}
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in asdict(config).items() if name not in OWN}
    code = 0
    for file in sorted(CODE.rglob("*.py")):
        code = zlib.crc32(file.read_bytes(), code)
    return {**flags, **versions, f"{CODE.name}/": f"{code:08x}"}
