"""The way of a job file to a job, here or on Vertex AI.

The API for Python is `replicas(JOB)`: what the service gives each replica of a job file. The rest is a command line.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vertex_launch.job.contract import Address, Replica

__all__ = ["Replica", "__version__", "replicas"]
__version__ = "0.2.0"


def replicas(
    job: str | Path,
    address: "Address" = lambda pool, index: f"cmle-training-workerpool{pool}-{index}:2222",  # as the service has them
) -> "tuple[Replica, ...]":
    """Return what the service gives each replica of a job file: its command and its environment, the chief first.

    Nothing runs. Of a hyperparameter tuning job these are the replicas of its first trial, with the flags that the
    search tries first. `address` makes host:port of a pool and an index in it. Raises FaultError where the file holds
    no job; its text has a line for each fault, with place and cure.
    """
    from vertex_launch import errors  # the command line begins without Google's messages
    from vertex_launch.job import contract, spec

    loaded = spec.load(Path(job))
    if not isinstance(loaded, spec.TuningJob):
        return contract.replicas(loaded, "1", address)
    from vertex_launch.local.jobs import search  # brings optuna

    if missing := [*search.findings(loaded.spec.study_spec)]:
        raise errors.FaultError(*missing, file=job)
    tried = search.Search(loaded.spec.study_spec).ask()
    flags = search.arguments(tried.parameters) if tried else []
    return contract.replicas(contract.with_arguments(loaded.trial_job, flags), "1", address, trial="1")


def __getattr__(name: str) -> Any:
    """Import the type of a replica only where it is used. Source: PEP 562."""
    if name != "Replica":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vertex_launch.job.contract import Replica

    return Replica
