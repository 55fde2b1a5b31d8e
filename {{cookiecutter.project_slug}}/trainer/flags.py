"""Checks for the files that declare flags, each of which yields a phrase for a wrong value, and a kind of flag."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import tyro

HERE = Path(__file__).parent


def module_in(folder: str) -> Any:
    """Kind of flag whose choices are the strategies in a folder of trainer/; the modules' first lines are its help.

    Used as in `strategy: Annotated[str, module_in("parallel")]`, which `vertex-launch check` reads without an import.
    """
    purposes = strategies(folder)
    help = "\n".join(f"{name}: {purpose}" for name, purpose in purposes.items())
    choices: Any = Literal[tuple(purposes)]
    # tyro gives the default of a flag with a constructor as ['first'].
    return tyro.conf.arg(
        constructor=choices, help=help, help_behavior_hint=lambda text: "(default: " + text.strip("[']") + ")"
    )


def strategies(folder: str = "parallel") -> dict[str, str]:
    """Map each module in a folder of trainer/ that defines STRATEGY to its purpose, its docstring's first line."""
    files = {path.stem: path for path in (HERE / folder).glob("[!_]*.py")}
    files |= {path.parent.name: path for path in (HERE / folder).glob("*/__init__.py")}
    sources = {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
    chosen = {name: ast.parse(source) for name, source in sources.items() if "\nSTRATEGY = " in source}
    return {name: (ast.get_docstring(module) or "").partition("\n")[0] for name, module in chosen.items()}


def at_least(least: float, flags: object, *names: str, must: str = "") -> Iterator[str]:
    """Yield a phrase for each of these fields that is below `least`, or not finite; None is no fault."""
    must = must or ("0 or more" if least == 0 else f"at least {least}")
    for name in names:
        value = getattr(flags, name)
        if value is not None and not least <= value < math.inf:
            yield f"{flag(name)} is {value}, must be {must}"


def above_zero(flags: object, *names: str) -> Iterator[str]:
    """Yield a phrase for each of these fields that is 0, below it, or not finite; None is no fault."""
    return at_least(math.ulp(0.0), flags, *names, must="above 0")


def flag(field: str) -> str:
    """`--global-batch` of global_batch"""
    return f"--{field.replace('_', '-')}"
