"""The bridge between a job file and its program, for a project's own tests."""

from pathlib import Path

from vertex_launch import contract, spec
from vertex_launch.contract import Address, Replica


def replicas(
    job: str | Path,
    address: Address = lambda pool, index: f"cmle-training-workerpool{pool}-{index}:2222",  # as the service has them
) -> tuple[Replica, ...]:
    """Return what the service gives each replica of a job file: its command and its environment, the chief first.

    Nothing runs. Of a hyperparameter tuning job these are the replicas of its first trial, with the flags that the
    search tries first. `address` makes host:port of a pool and an index in it. Raises FaultError where the file holds
    no job; its text has a line for each fault, with place and cure.
    """
    loaded = spec.load(Path(job))
    if not isinstance(loaded, spec.TuningJob):
        return contract.replicas(loaded, "1", address)
    from vertex_launch.local.jobs import search  # brings optuna

    tried = search.Search(loaded.spec.study_spec).ask()
    flags = search.arguments(tried.parameters) if tried else []
    return contract.replicas(contract.with_arguments(loaded.trial_job, flags), "1", address, trial="1")
