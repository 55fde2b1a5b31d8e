"""Folders that are committed whole, or do not count.

A folder is written first and committed last: its commit marker lists every file with its size and checksum. Object
stores, also when mounted under /gcs, cannot rename a folder in one step, so one last small file decides.

Sizes are compared wherever a folder is listed. Checksums need a read of every byte, so only the code that trains on,
scores or exports the contents of a folder compares them, with `why_corrupt`. They are CRC-32, which finds accidents,
not forgery: the standard library has nothing faster (measured in November 2026, one core: 4 to 6 GB/s; SHA-256 1.8,
BLAKE2b 1).
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import checksum, read_json, write_json

MARKER = "committed.json"
ANEW = "begin anew: here with --fresh, in the cloud with another output folder"
UNREADABLE = "it cannot be read"
NO_NUMBERS = "holds values that are no numbers"
READERS = 8  # files that are read at once: a mounted bucket serves several faster than one


def create_empty(folder: Path) -> None:
    """Create the folder empty: whatever an interrupted run left there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def commit(folder: Path, checksums: Mapping[str, int] = {}) -> None:
    """Write the commit marker: from now on the folder counts as whole.

    Args:
        checksums: by file name, computed while writing; all other files are read again.

    Raises:
        TrainerError: a file that has a checksum is not there.
    """
    sizes = _sizes(folder)
    if strayed := sorted(checksums.keys() - sizes.keys()):
        raise TrainerError(
            f"{folder} lacks {strayed[0]}, which another machine has written; give all of them one output folder:"
            " set baseOutputDirectory in the job file"
        )
    read = _checksums(folder, [name for name in sizes if name not in checksums])
    write_json(folder / MARKER, {"files": sizes, "crc32": {**checksums, **read}})


def why_incomplete(folder: Path) -> str:
    """Return why the folder is not whole, judged by file sizes; empty if it is whole."""
    try:
        marker = read_json(folder / MARKER)
        if "damage" in marker:
            return str(marker["damage"])
        # A bit that flips in the name of a key must not turn the checksums off.
        if unknown := sorted(marker.keys() - {"files", "crc32"}):
            raise ValueError(f"{unknown[0]!r} is none of its keys")
        sizes = _sizes(folder)
        changed = sorted(name for name, size in marker["files"].items() if sizes.get(name) != size)
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its {MARKER} cannot be read ({error})"
    return f"{changed[0]} is missing or was cut short" if changed else ""


def why_corrupt(folder: Path, reader: int = 0, readers: int = 1) -> str:
    """Return why this reader's share of the files differs from what was committed; empty if it does not.

    A marker without checksums, from an older version, is compared by sizes alone: a long run must not start anew.
    """
    try:
        committed = read_json(folder / MARKER).get("crc32", {})
        checksums = _checksums(folder, sorted(committed)[reader::readers])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{UNREADABLE} ({error})"
    changed = [name for name, value in checksums.items() if value != committed[name]]
    return f"{changed[0]} is damaged: its content is not what was saved" if changed else ""


def invalidate(folder: Path, problem: str) -> None:
    """Replace the commit marker of a damaged folder: it no longer counts, and nobody reads it again to find out.

    What one machine could not read may be whole, and stays.
    """
    if not problem.startswith(UNREADABLE):
        write_json(folder / MARKER, {"damage": problem})


def numbered(root: Path, number: int) -> Path:
    return root / f"step-{number:09d}"


def number(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def folders(root: Path) -> list[Path]:
    """All folders, whole or not, oldest first."""
    return sorted(root.glob("step-" + "[0-9]" * 9))


def complete_folders(root: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yield the folders that are whole by their file sizes, newest first; warn of each broken one on the way."""
    for folder in reversed(folders(root)):
        if problem := why_incomplete(folder):
            warn(f"skipped {folder}: {problem}")
        else:
            yield folder


def latest(root: Path, warn: Callable[[str], None], why_refused: Callable[[Path], str] = lambda _: "") -> Path | None:
    """Return the newest folder that is whole, undamaged and not refused; warn of each newer one that is.

    For one process alone that is about to resume from there: it invalidates every folder that it finds damaged.
    """
    for folder in complete_folders(root, warn):
        problem = why_corrupt(folder) or why_refused(folder)
        if not problem:
            return folder
        invalidate(folder, problem)
        warn(f"skipped {folder}: {problem}")
    return None


def prune(root: Path, keep: int) -> None:
    """Keep the newest `keep` whole folders and the spared ones; remove all others that are older."""
    kept = [folder for folder in folders(root) if not why_incomplete(folder)][-keep:]
    kept_anyway = spared(root)
    for folder in folders(root):
        if len(kept) == keep and folder < kept[0] and folder not in kept_anyway:
            shutil.rmtree(folder, ignore_errors=True)


def spared(root: Path) -> set[Path]:
    """Return the folders that `prune` never removes: those that a JSON file beside them names, as {"step": 40}."""
    found = set()
    for file in root.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError):  # it names none
            found.add(numbered(root, int(read_json(file)["step"])))
    return found


def unfit(folder: Path, cause: str) -> TrainerError:
    """The error of a run whose newest checkpoint is of another model, with what it may do."""
    return TrainerError(
        f"{folder} does not fit this model ({cause}); use the model and the flags it was saved with, or {ANEW}"
    )


def require_within(steps: int, taken: int) -> None:
    """Raises TrainerError for a run of so many steps whose checkpoint has taken more."""
    if taken > steps:
        raise TrainerError(f"--steps is {steps}, and the run has taken {taken} already; raise it, or {ANEW}")


def require_finite(folder: Path, findings: Sequence[str]) -> None:
    """Raises TrainerError for a state that is not to be written to the folder, with the first finding about it."""
    if finding := next(filter(None, findings), ""):
        again = "run again, and it resumes from the one before; if this comes back, lower --learning-rate"
        raise TrainerError(f"{folder.name} is not written: {finding}; {again}")


def exportable(root: Path, step: int) -> Path:
    """Return the folder of the last step. Raises TrainerError where it is damaged."""
    folder = numbered(root, step)
    if problem := why_corrupt(folder):
        raise TrainerError(f"{folder} is not exported: {problem}; run again, and it resumes from the one before")
    return folder


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(MARKER))
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)}


def _checksums(folder: Path, names: Sequence[str]) -> dict[str, int]:
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(checksum, (folder / name for name in names)), strict=True))
