"""Programs that a command calls, which speak for themselves, and whose options it hands on."""

import shlex
import signal
import subprocess

import typer

from vertex_launch.cli.options import PassingCommand
from vertex_launch.cli.output import console


class WithOptions(PassingCommand):
    """A command whose own words may be options of another program, too."""

    ignore_unknown_options = True


def call(*words: str) -> None:
    """Show a line and run it; where it fails, this program ends with its exit code.

    Ctrl-C reaches the program, too, which ends in its own time: gcloud has yet to cancel what Google builds.
    """
    console.print(shlex.join(words), markup=False)
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        code = subprocess.run(words, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    if code or interrupts:
        raise typer.Exit(128 - code if code < 0 else code or 130)
