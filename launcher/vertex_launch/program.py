"""The name of this program in messages: as the user started it."""

import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT, MODULE = "vertex-launch", "python -m vertex_launch"


def name(argv: Sequence[str]) -> str:
    """The console script or the module, by the first argument of the process."""
    return SCRIPT if Path(argv[0]).stem == SCRIPT else MODULE


NAME = name(sys.argv)
