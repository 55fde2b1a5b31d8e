"""Folders that are whole or not at all.

A folder is written first and sealed last: the seal lists every file with its size. Object stores, also
when mounted under /gcs, rename no folder in one step, so a last small file is what makes it count.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SEAL = "sealed.json"
BEST = "best.json"  # beside the folders; marks one of them


def begin(folder: Path) -> None:
    """Make room: whatever an interrupted run left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def seal(folder: Path) -> None:
    """Say that the folder is whole."""
    write_json(folder / SEAL, {"files": _sizes(folder)})


def fault(folder: Path) -> str:
    """Why the folder is not whole; empty if it is."""
    try:
        files = json.loads((folder / SEAL).read_text())["files"].items()
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its {SEAL} cannot be read ({error})"
    sizes = _sizes(folder)
    changed = sorted(name for name, size in files if sizes.get(name) != size)
    return f"{changed[0]} is missing or was cut short" if changed else ""


def numbered(root: Path, number: int) -> Path:
    return root / f"step-{number:09d}"


def oldest_first(root: Path) -> list[Path]:
    """All folders, whole or not."""
    return _newest_first(root)[::-1]


def latest(root: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest whole folder; each broken one that is newer is named in a warning."""
    for folder in _newest_first(root):
        problem = fault(folder)
        if not problem:
            return folder
        warn(f"skipped {folder}: {problem}")
    return None


def prune(root: Path, keep: int) -> None:
    """Keep the newest `keep` whole folders and the one that is marked as the best; remove all others that are older."""
    whole = [folder for folder in _newest_first(root) if not fault(folder)]
    best = marked(root)
    for folder in _newest_first(root):
        if len(whole) >= keep and folder.name < whole[keep - 1].name and folder != best:
            shutil.rmtree(folder, ignore_errors=True)


def mark(folder: Path, metrics: Mapping[str, float]) -> None:
    """Make this the best of the folders beside it: `prune` keeps it as long as no other is marked."""
    write_json(folder.parent / BEST, {"step": number(folder), "metrics": metrics})


def marked(root: Path) -> Path | None:
    """The folder that is marked as the best, if one is; somebody may have removed it since."""
    try:
        return numbered(root, int(json.loads((root / BEST).read_text())["step"]))
    except (OSError, ValueError, LookupError, TypeError):  # none, or not written by us
        return None


def write_json(file: Path, value: Any) -> None:
    """Replace the file in one step: who reads it sees the old text or the new one."""
    aside = file.with_name(f"{file.name}.partial")
    aside.write_text(json.dumps(value, indent=1))
    aside.replace(file)


def number(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _newest_first(root: Path) -> list[Path]:
    return sorted(root.glob("step-" + "[0-9]" * 9), reverse=True)


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(SEAL))
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)}
