"""Shards on the command line. The first command writes an example data set, the second reads all of one:

    python -m trainer.samples NAME --to DIR
    python -m trainer.samples verify DIR

With `shards.write` a program writes data sets of its own.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tyro

from trainer.data import EXAMPLES
from trainer.samples.shards import Dataset, verify, write_example
from trainer.vertex.errors import TrainerError


def main(name: str, to: str) -> None:
    """Write this example data set as train and held-out shards.

    Args:
        to: Folder to write the shards to.
    """
    if "://" in to:
        sys.exit(f"--to {to}: must be a folder of this machine; copy it from there to the bucket")
    try:
        write_example(name, Path(to))
    except OSError as error:
        sys.exit(f"--to {to}: cannot be written ({error.strerror})")
    counts = ", ".join(f"{len(Dataset(Path(to), split))} {split}" for split in ("train", "heldout"))
    print(f"{counts} samples in {to}; train on them with --data {to}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {name: partial(main, name) for name in EXAMPLES} | {"verify": verify}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m trainer.samples")
    except TrainerError as error:
        sys.exit(str(error))
