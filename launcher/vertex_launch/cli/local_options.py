"""The options of `run` and `emulate`, which alone need the machinery of jobs that run here."""

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
    """Options of `run` and `emulate`."""

    state_dir: StateFolder = field(default_factory=lambda: state_dir().folder)
    pass_env: Annotated[
        list[str] | None,
        Parameter(metavar="NAME", help="A variable of this shell that replicas get, too; can be repeated."),
    ] = None
    retry_user_errors: Annotated[bool, Parameter(help="Start again also what ends with code 1, 2, 126 or 127.")] = False

    fault: Annotated[
        list[str] | None,
        Parameter(metavar="R:F@M", help="Rehearse: workerpool1-0:kill@step=20, :late=20, ...; can be repeated."),
    ] = None

    def context(self, options: Options) -> Context:
        """Return the context of all jobs, and complain of each variable to pass that this shell lacks."""
        settings = passing(self.settings(), self.pass_env or ())
        for sentence in host.not_set(os.environ, settings.env):
            complain(sentence, style="yellow")
        ordered = faults.parsed(self.fault or ())
        return Context(StateDir(self.state_dir), settings, os.environ, replace(options, faults=ordered))
