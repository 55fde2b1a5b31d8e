"""Prints an estimate of a run's resource requirements as JSON, without training (python -m trainer.describe)."""

import os
import sys
from collections.abc import MutableMapping, Sequence

from trainer.describe import estimate
from trainer.parallel import choice
from trainer.samples import shards
from trainer.vertex import storage
from trainer.vertex.log import exit_code


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Print the resource estimate. Raises TrainerError for errors that the user can fix."""
    _, config = choice.parse(argv, "trainer.describe")
    print(estimate.describe(config, shards.example(config, storage.from_env(environ))).to_json())


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:], os.environ))
