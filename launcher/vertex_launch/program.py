"""The program name in messages: the script or module that the user started."""

import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT, MODULE = "vertex-launch", "python -m vertex_launch"


def name(argv: Sequence[str]) -> str:
    """Return the name of the console script or of the module, depending on the first argument of the process."""
    return SCRIPT if Path(argv[0]).stem == SCRIPT else MODULE


NAME = name(sys.argv)
