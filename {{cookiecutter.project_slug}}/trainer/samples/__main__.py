"""Writes and verifies shards from the command line.

The first command below writes an example dataset. The second command reads and verifies all shards in a folder. To
write your own dataset, call `shards.write` from a Python program.

    python -m trainer.samples NAME --to DIR
    python -m trainer.samples verify DIR
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grain
import tyro

from trainer import data
from trainer.data import EXAMPLES
from trainer.samples.fingerprint import Fingerprint, require_unchanged
from trainer.samples.shards import READERS, Dataset, checksums, damage, record_count, write_example
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import checksum


def main(name: str, to: str) -> None:
    """Write this example dataset as training shards and held-out shards.

    Args:
        to: Local folder to which the shards are written.
    """
    if "://" in to:
        sys.exit(
            f"--to {to} isn't a local folder; write to a local folder first, and then copy the shards to the bucket"
        )
    try:
        write_example(name, Path(to))
    except OSError as error:
        sys.exit(f"--to {to} can't be written ({error.strerror})")
    counts = ", ".join(f"{len(Dataset(Path(to), split))} {split}" for split in ("train", "heldout"))
    print(f"{counts} samples in {to}; train on them with --data {to}")


def verify(folder: tyro.conf.Positional[Path]) -> None:
    """Read all shards in a folder, and compare their checksums with those stored when the shards were written.

    Raises:
        TrainerError: If shards are missing or damaged.
    """
    kept = checksums(folder, "train") | checksums(folder, "heldout")
    names = sorted({path.name for path in folder.glob("*.array_record")} | kept.keys())
    with ThreadPoolExecutor(READERS) as readers:
        faults = readers.map(lambda name: _fault(folder / name, kept.get(name, [])), names)
    if found := "\n".join(filter(None, faults)):
        raise TrainerError(found)
    train, heldout = Dataset(folder, "train"), Dataset(folder, "heldout")
    require_unchanged(Fingerprint(0, 0, train.shards, heldout.shards), None, anyway=False, is_chief=True)
    bare = sum(name not in kept for name in names)
    seen = f"readable, but {bare} have no checksum" if bare else "unchanged since they were written"
    print(f"{len(names)} shards, {len(train) + len(heldout)} samples: {seen}")


def _fault(shard: Path, kept: Sequence[int]) -> str:
    """Read a whole shard and return a description of any damage. If the shard is intact, return an empty string."""
    index = 0
    try:
        if kept and checksum(shard) != kept[0]:
            return f"{shard} differs from the shard that was written; copy the shard again, or write the dataset again"
        count, source = record_count(shard), grain.sources.ArrayRecordDataSource(str(shard))
        for index in range(count):
            data.decode(source[index])
    except FileNotFoundError:
        return f"{shard} is missing; copy it again"
    except TrainerError as error:
        return str(error)
    except Exception as error:  # also an error in your own decode()
        return f"{shard}: {damage(index, error)}"
    return ""


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {name: partial(main, name) for name in EXAMPLES} | {"verify": verify}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m trainer.samples")
    except TrainerError as error:
        sys.exit(str(error))
