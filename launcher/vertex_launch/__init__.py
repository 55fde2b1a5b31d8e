"""Runs job files locally or on Vertex AI.

The Python API is the `replicas` function, which returns the command and environment variables of each replica. All
other features are available only on the command line.
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
    """Return the command and environment variables of each replica in a job, starting with the chief.

    This function doesn't start any replicas. For a hyperparameter tuning job, return the first trial's replicas, whose
    commands include the trial's flags. `address` maps a pool number and a replica index to a host:port string.

    Raises FaultError if the job file isn't valid. The error message contains a line for each error, with its
    location and a fix.
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
    """Import the `Replica` type on its first use. Source: PEP 562."""
    if name != "Replica":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vertex_launch.job.contract import Replica

    return Replica
