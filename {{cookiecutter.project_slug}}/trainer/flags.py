"""Provides checks for flag values, and a flag type whose choices are the modules in a folder."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import tyro

HERE = Path(__file__).parent


def module_in(folder: str) -> Any:
    """Return a flag type whose choices are the strategies in a folder of trainer/.

    The help text contains the first line of each module's docstring. `vertex-launch check` reads the type without
    importing the module. Therefore, write the type in the form `strategy: Annotated[str, module_in("parallel")]`.
    """
    purposes = strategies(folder)
    help = "\n".join(f"{name}: {purpose}" for name, purpose in purposes.items())
    choices: Any = Literal[tuple(purposes)]
    # If a flag has a constructor, tyro formats its default as ['first'].
    return tyro.conf.arg(
        constructor=choices, help=help, help_behavior_hint=lambda text: "(default: " + text.strip("[']") + ")"
    )


def strategies(folder: str = "parallel") -> dict[str, str]:
    """Map each module that defines STRATEGY in a folder of trainer/ to the first line of its docstring."""
    files = {path.stem: path for path in (HERE / folder).glob("[!_]*.py")}
    files |= {path.parent.name: path for path in (HERE / folder).glob("*/__init__.py")}
    sources = {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
    chosen = {name: ast.parse(source) for name, source in sources.items() if "\nSTRATEGY = " in source}
    return {name: (ast.get_docstring(module) or "").partition("\n")[0] for name, module in chosen.items()}


def at_least(least: float, flags: object, *names: str, must: str = "") -> Iterator[str]:
    """Yield a message for each field whose value isn't finite or is less than `least`. None is always valid."""
    must = must or ("0 or more" if least == 0 else f"at least {least}")
    for name in names:
        value = getattr(flags, name)
        if value is not None and not least <= value < math.inf:
            yield f"{flag(name)} is {value}, but it must be {must}"


def above_zero(flags: object, *names: str) -> Iterator[str]:
    """Yield a message for each field whose value isn't finite or isn't greater than 0. None is always valid."""
    return at_least(math.ulp(0.0), flags, *names, must="above 0")


def flag(field: str) -> str:
    """Return the flag for a field. Example: the flag for `global_batch` is `--global-batch`."""
    return f"--{field.replace('_', '-')}"
