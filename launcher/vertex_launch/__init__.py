"""The way of a job file to a job, here or on Vertex AI.

The API for Python is `replicas(JOB)`: what the service gives each replica of a job file. The rest is a command line.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vertex_launch.contract import Address, Replica

__all__ = ["Replica", "__version__", "replicas"]
__version__ = "0.2.0"


def _prepare(package: str) -> None:
    """Let imports of a package's submodules not run the package, until one of its own names is asked for.

    `google.cloud.aiplatform_v1` imports the clients of all its services, and its `types` all messages. The few that a
    job needs come in 0.1 s and 20 MB instead of 1 s and 110 MB; all messages would take 0.3 s.
    """
    spec = importlib.util.find_spec(package)
    if package in sys.modules or spec is None or spec.loader is None:
        return
    module, run = importlib.util.module_from_spec(spec), spec.loader.exec_module

    def load(name: str) -> Any:
        """Run the package the first time that one of its own names is missing, or all are asked for by *."""
        if (name.startswith("__") and name != "__all__") or importlib.util.find_spec(f"{package}.{name}"):
            raise AttributeError(name)  # a submodule: the import system goes on to import it
        del module.__dict__["__getattr__"]
        run(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = load  # called for names that are not there. Source: PEP 562
    sys.modules[package] = module


_prepare("google.cloud.aiplatform_v1")
_prepare("google.cloud.aiplatform_v1.types")


def replicas(
    job: str | Path,
    address: "Address" = lambda pool, index: f"cmle-training-workerpool{pool}-{index}:2222",  # as the service has them
) -> "tuple[Replica, ...]":
    """Return what the service gives each replica of a job file: its command and its environment, the chief first.

    Nothing runs. Of a hyperparameter tuning job these are the replicas of its first trial, with the flags that the
    search tries first. `address` makes host:port of a pool and an index in it. Raises FaultError where the file holds
    no job; its text has a line for each fault, with place and cure.
    """
    from vertex_launch import contract, spec  # the command line begins without Google's messages

    loaded = spec.load(Path(job))
    if not isinstance(loaded, spec.TuningJob):
        return contract.replicas(loaded, "1", address)
    from vertex_launch.local.jobs import search  # brings optuna

    tried = search.Search(loaded.spec.study_spec).ask()
    flags = search.arguments(tried.parameters) if tried else []
    return contract.replicas(contract.with_arguments(loaded.trial_job, flags), "1", address, trial="1")


def __getattr__(name: str) -> Any:
    """Import the type of a replica only where it is used. Source: PEP 562."""
    if name != "Replica":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vertex_launch.contract import Replica

    return Replica
