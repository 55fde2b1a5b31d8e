"""Environments of packages that the tests' own one lacks, kept from run to run."""

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def environment(home: Path, packages: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages, made if it is not there."""
    python, done, wanted = home / ".venv/bin/python", home / "installed.txt", "\n".join(packages)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done.exists() and done.read_text(encoding="utf-8") == wanted):
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / ".venv")], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
            done.write_text(wanted, encoding="utf-8")
    return python
