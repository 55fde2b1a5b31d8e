"""The run that a process takes part in, as one value."""

from dataclasses import dataclass, field
from pathlib import Path

from trainer.cluster.spec import Cluster
from trainer.config import Config
from trainer.goodput import Clock
from trainer.vertex.storage import Storage


@dataclass(frozen=True)
class Job:
    """Flags, machines and folders, all known before any process starts."""

    config: Config
    storage: Storage
    shards: Path  # the folder of the data set
    cluster: Cluster = field(default_factory=Cluster)
    clock: Clock = field(default_factory=Clock)
