"""Parts of the trainer that a project may delete, a file or a folder each: found by name when a run asks."""

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from trainer.vertex.errors import TrainerError

HERE = Path(__file__).parent


def strategies(folder: str = "parallel") -> dict[str, str]:
    """Map each module in a folder of trainer/ that defines STRATEGY to its purpose, its docstring's first line."""
    files = {path.stem: path for path in (HERE / folder).glob("[!_]*.py")}
    files |= {path.parent.name: path for path in (HERE / folder).glob("*/__init__.py")}
    sources = {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
    chosen = {name: ast.parse(source) for name, source in sources.items() if "\nSTRATEGY = " in source}
    return {name: (ast.get_docstring(module) or "").partition("\n")[0] for name, module in chosen.items()}


def load(name: str, why: str) -> Any:
    """Return the module trainer.NAME.

    Raises:
        TrainerError: this project has deleted it.
    """
    if importlib.util.find_spec(f"trainer.{name}") is None:
        place = f"trainer/{name.replace('.', '/')}"
        raise TrainerError(f"{why} needs {place}, which this project has deleted; bring it back from its history")
    return importlib.import_module(f"trainer.{name}")
