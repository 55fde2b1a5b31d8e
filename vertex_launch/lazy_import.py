"""Imports a package without running what it imports in turn, until one of its names is asked for.

`google.cloud.aiplatform_v1` imports the clients of all its services, and its `types` all messages. The few that a job
needs come in 0.1 s and 20 MB instead of 1 s and 110 MB; all messages would take 0.3 s.
"""

import importlib.util
import sys
from typing import Any


def prepare(package: str) -> None:
    """Let later imports of a package's submodules not run the package itself."""
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
