"""Lay example and framework over the project, drop what the machines cannot use, put the license in its place."""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

# The filter writes ASCII on one line, a quote in an answer as \", so no answer can end this string.
ANSWERS: dict[str, Any] = json.loads(r"""{{ cookiecutter | tojson }}""")


def lay(overlays: str, choice: str) -> None:
    """Move OVERLAYS/CHOICE/, which mirrors the project's folders, over the project."""
    shutil.copytree(f"{overlays}/{choice}", ".", dirs_exist_ok=True)
    shutil.rmtree(overlays)


def drop_reducers(machine: str) -> None:
    """No job with reducers for GPUs that have a network of their own: these would not use them."""
    if ANSWERS["_machines"][machine].get("fabric"):
        Path("jobs/reduction-server.yaml").unlink()


def put_license(license: str) -> None:
    """Make the chosen text the project's LICENSE."""
    if license != "none":
        shutil.copyfile(f"licenses/{license}", "LICENSE")
    shutil.rmtree("licenses")


def way_here() -> str:
    """What to write behind cd: the way from the folder of the user's shell, if it lies above."""
    here, shell = Path.cwd(), Path(os.environ.get("PWD", "..")).resolve()
    return shlex.quote(str(here.relative_to(shell) if here.is_relative_to(shell) else here))


if __name__ == "__main__":
    lay("examples", ANSWERS["example"])  # which has files for each framework
    lay("frameworks", ANSWERS["framework"])
    drop_reducers(ANSWERS["worker_machine"])
    put_license(ANSWERS["license"])
    print(f"Next:\n  cd {way_here()}\n  pip install nox\n  nox -s local")
