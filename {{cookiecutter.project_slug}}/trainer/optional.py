"""The parts of the trainer that a project may delete, a file or a folder each: found by name when a run asks."""

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from trainer.errors import TrainerError

HERE = Path(__file__).parent


def purposes(folder: str) -> dict[str, str]:
    """Module -> the first line of its docstring, for each module in a folder of trainer/; none of them is imported."""
    files = {path.stem: path for path in (HERE / folder).glob("[!_]*.py")}
    files |= {path.parent.name: path for path in (HERE / folder).glob("*/__init__.py")}
    said = {name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for name, path in files.items()}
    return {name: (said[name] or "").partition("\n")[0] for name in sorted(said)}


def load(name: str, why: str) -> Any:
    """The module trainer.NAME.

    Raises:
        TrainerError: this project has deleted it.
    """
    if importlib.util.find_spec(f"trainer.{name}") is None:
        place = f"trainer/{name.replace('.', '/')}"
        raise TrainerError(f"{why} needs {place}, which this project has deleted; bring it back from its history")
    return importlib.import_module(f"trainer.{name}")
