"""Lay the chosen framework over the project and put the chosen license in its place."""

import json
import shutil
from typing import Any

# The filter writes ASCII on one line, a quote in an answer as \", so no answer can end this string.
ANSWERS: dict[str, Any] = json.loads(r"""{{ cookiecutter | tojson }}""")


def lay_framework(framework: str) -> None:
    """Move frameworks/NAME/, which mirrors the project's folders, over the project."""
    shutil.copytree(f"frameworks/{framework}", ".", dirs_exist_ok=True)
    shutil.rmtree("frameworks")


def put_license(license: str) -> None:
    """Make the chosen text the project's LICENSE."""
    if license != "none":
        shutil.copyfile(f"licenses/{license}", "LICENSE")
    shutil.rmtree("licenses")


if __name__ == "__main__":
    lay_framework(ANSWERS["framework"])
    put_license(ANSWERS["license"])
    print(f"Next:\n  cd {ANSWERS['project_slug']}\n  pip install nox\n  nox -s local")
