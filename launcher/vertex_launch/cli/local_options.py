"""Options shared by `run` and `emulate`, the commands that run jobs on this machine."""

import os
from dataclasses import dataclass, field, replace
from typing import Annotated

from cyclopts import Parameter

from vertex_launch.cli.options import SettingsOptions, StateFolder, state_dir
from vertex_launch.cli.output import complain
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running import faults, host
from vertex_launch.local.running.context import Context, Options
from vertex_launch.settings import passing


@dataclass(frozen=True, kw_only=True)
class LocalOptions(SettingsOptions):
    """Options of the `run` and `emulate` commands."""

    state_dir: StateFolder = field(default_factory=lambda: state_dir().folder)
    pass_env: Annotated[
        list[str] | None,
        Parameter(metavar="NAME", help="Pass this shell's variable NAME to replicas. Can be repeated."),
    ] = None
    retry_user_errors: Annotated[bool, Parameter(help="Also restart after exit codes 1, 2, 126, and 127.")] = False

    fault: Annotated[
        list[str] | None,
        Parameter(metavar="R:F@M", help="Simulate a fault, such as workerpool1-0:kill@step=20. Can be repeated."),
    ] = None

    def context(self, options: Options) -> Context:
        """Return the state folder, settings, and options for jobs on this machine.

        Print a warning for each environment variable that replicas should receive but isn't set in the user's shell.
        """
        settings = passing(self.settings(), self.pass_env or ())
        for sentence in host.not_set(os.environ, settings.env):
            complain(sentence, style="yellow")
        ordered = faults.parsed(self.fault or ())
        return Context(StateDir(self.state_dir), settings, os.environ, replace(options, faults=ordered))
