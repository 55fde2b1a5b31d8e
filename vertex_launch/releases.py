"""The releases of the launcher that took something away, held against the one that a project was made with."""

import re

from vertex_launch import __version__, catalog

# Release -> what it no longer has, and what to use in its place.
DROPPED = {
    "0.2.0": "the module vertex_launch.replicas; a test calls the function of that name, vertex_launch.replicas(JOB)",
}


def notice(made_with: str, installed: str = __version__) -> str:
    """Return a sentence if the installed launcher is older than the project's or lacks what that had, else nothing."""
    if not made_with or made_with == installed:
        return ""
    if _numbers(installed) < _numbers(made_with):
        fault = f"this project was made with vertex-launch {made_with}, and {installed} is older"
        return f"{catalog.OWN}: {fault}; install the newer one"
    gone = [text for release, text in DROPPED.items() if _numbers(made_with) < _numbers(release) <= _numbers(installed)]
    if not gone:
        return ""
    fault = f"this project was made with vertex-launch {made_with}, and {installed} has dropped {'; '.join(gone)}"
    return f'{catalog.OWN}: {fault}; then write launcher = "{installed}" there'


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", version)))
