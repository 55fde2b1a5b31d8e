"""The run that a process takes part in, as one value, and what must be alike in all its replicas."""

import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.cluster.spec import Cluster
from trainer.config import Config
from trainer.goodput import Clock
from trainer.vertex.storage import Storage

# Flags that may differ: how long a replica waits, what it looks for, and where its data is, which is compared itself.
OWN = (
    "anyway",
    "collective_timeout",
    "data",
    "data_processes",
    "doctor",
    "profile",
    "rehearse_export",
    "rollcall_timeout",
)
CODE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """Flags, machines and folders, all known before any process starts."""

    config: Config
    storage: Storage
    shards: Path  # the folder of the data set
    cluster: Cluster = field(default_factory=Cluster)
    clock: Clock = field(default_factory=Clock)

    @property
    def rehearses_export(self) -> bool:
        return not self.storage.emulated if self.config.rehearse_export is None else self.config.rehearse_export


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
