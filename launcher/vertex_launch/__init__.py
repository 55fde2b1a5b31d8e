"""Runs job files, on this machine or on Vertex AI.

The Python API is `replicas(JOB)`, which returns the command and environment of each replica. All other functions are
commands of the command line.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vertex_launch.job.contract import Address, Replica

__all__ = ["Replica", "__version__", "replicas"]
__version__ = "0.2.0"


def replicas(
    job: str | Path,
    address: "Address" = lambda pool, index: f"cmle-training-workerpool{pool}-{index}:2222",  # the service's names
) -> "tuple[Replica, ...]":
    """Return the command and the environment that the service gives each replica of a job file, chief first.

    No replica is started. For a hyperparameter tuning job, the replicas are those of its first trial, with the
    trial's flags. `address` returns host:port for a pool and an index in the pool. Raises FaultError if the file
    isn't a valid job. The message has one line for each error, with its place and a fix.
    """
    from vertex_launch import errors  # the command line starts without importing Google's messages
    from vertex_launch.job import contract, spec

    loaded = spec.load(Path(job))
    if not isinstance(loaded, spec.TuningJob):
        return contract.replicas(loaded, "1", address)
    from vertex_launch.local.jobs import search  # imports optuna

    if missing := [*search.findings(loaded.spec.study_spec)]:
        raise errors.FaultError(*missing, file=job)
    tried = search.Search(loaded.spec.study_spec).ask()
    flags = search.arguments(tried.parameters) if tried else []
    return contract.replicas(contract.with_arguments(loaded.trial_job, flags), "1", address, trial="1")


def __getattr__(name: str) -> Any:
    """Import the type `Replica` only when it is used. Source: PEP 562."""
    if name != "Replica":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vertex_launch.job.contract import Replica

    return Replica
