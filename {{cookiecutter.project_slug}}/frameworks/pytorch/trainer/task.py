"""python -m trainer.task: environment and flags in, a trained and exported model out."""

import os
import sys
from collections.abc import MutableMapping, Sequence

from trainer import replica
from trainer.errors import TrainerError
from trainer.telemetry import say_lines


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """One replica's run, or what it would need; returns its exit code."""
    try:
        replica.run(argv, environ)
    except TrainerError as error:
        say_lines(str(error), "ERROR")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
