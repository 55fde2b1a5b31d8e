"""Parts of the trainer that a project may delete, a file or a folder each: found by name when a run asks."""

import importlib
import importlib.util
from typing import Any

from trainer.vertex.errors import TrainerError


def load(name: str, why: str) -> Any:
    """Return the module trainer.NAME.

    Raises:
        TrainerError: this project has deleted it.
    """
    if importlib.util.find_spec(f"trainer.{name}") is None:
        place = f"trainer/{name.replace('.', '/')}"
        raise TrainerError(f"{why} needs {place}, which this project has deleted; bring it back from its history")
    return importlib.import_module(f"trainer.{name}")
