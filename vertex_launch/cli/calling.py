"""Programs that a command calls, which speak for themselves, and whose options it hands on."""

import shlex
import subprocess

import typer

from vertex_launch.cli.options import PassingCommand
from vertex_launch.cli.output import console


class WithOptions(PassingCommand):
    """A command whose own words may be options of another program, too."""

    ignore_unknown_options = True


def call(*words: str) -> None:
    """Show a line and run it; where it fails, this program ends with its exit code."""
    console.print(shlex.join(words), markup=False)
    with subprocess.Popen(words) as running:
        try:
            code = running.wait()
        except KeyboardInterrupt:  # which has reached it, too: gcloud has yet to cancel what Google builds
            code = running.wait() or 130
    if code:
        raise typer.Exit(128 - code if code < 0 else code)
