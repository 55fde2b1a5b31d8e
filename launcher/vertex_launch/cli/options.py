"""Commands whose options are the fields of one frozen value, and the options that commands share."""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from vertex_launch.errors import FaultError, nearest
from vertex_launch.job.state_dir import StateDir
from vertex_launch.settings import VARIABLES, Settings, load

SETTINGS = Path("vertex.toml")
STATE_DIR = "VERTEX_STATE_DIR"
UNITS = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")
STATE = f"Folder of the local Vertex's state; or set {STATE_DIR}."

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A job file.")]
StateFolder = Annotated[Path, typer.Option(metavar="PATH", envvar=STATE_DIR, show_envvar=False, help=STATE)]


def _stand_in(meaning: str, variable: str) -> Any:
    return typer.Option(help=f"{meaning}; or set {variable}.", rich_help_panel=f"In place of {SETTINGS}")


Bucket = Annotated[str, _stand_in("Bucket for data and results, without gs://", "VERTEX_BUCKET")]
Image = Annotated[str, _stand_in("Your container image", "VERTEX_IMAGE")]
Project = Annotated[str, _stand_in("ID of the Google Cloud project", "VERTEX_PROJECT")]


def seconds(text: str) -> float:
    """Return the seconds of 90s, 20m or 1.5h; raises BadParameter for other texts."""
    if not (match := DURATION.fullmatch(text)):
        raise typer.BadParameter(f'"{text}" is no time; write such as 90s, 20m or 1.5h')
    return float(match[1]) * UNITS[match[2]]


def state_dir() -> StateDir:
    """The state of the local Vertex, for commands without --state-dir."""
    return StateDir(Path(os.environ.get(STATE_DIR) or StateDir.folder))


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """Fields that bear the name of a setting stand in for vertex.toml."""

    def settings(self) -> Settings:
        """Return the values of these options, else of vertex.toml, else of the environment."""
        return load(SETTINGS, os.environ, {key: getattr(self, key, "") for key in VARIABLES})


@dataclass(frozen=True, kw_only=True)
class ProjectOptions(StandIns):
    project: Project = ""
    region: Annotated[str, _stand_in("Region of the machines", "VERTEX_REGION")] = ""


@dataclass(frozen=True, kw_only=True)
class SettingsOptions(ProjectOptions):
    """All of vertex.toml, on every command that reads a job file."""

    bucket: Bucket = ""
    image: Image = ""
    service_account: Annotated[str, _stand_in("Account that the job runs as", "VERTEX_SERVICE_ACCOUNT")] = ""


class Command(TyperCommand):
    """A command whose callback is a class: Typer fills its fields from the command line, and then it acts."""

    def invoke(self, ctx: Any) -> Any:
        return super().invoke(ctx).act()


def app_of(options: type, cls: type[Command]) -> typer.Typer:
    """A program of one command, whose arguments and options are the fields of a frozen dataclass NAMEOptions."""
    app = typer.Typer(add_completion=False)
    app.command(options.__name__.removesuffix("Options").lower(), cls=cls)(options)
    return app


class PassingCommand(Command):
    """A command with words of another program behind a lone --, which become `obj` of its context."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = _own(args)
        ctx.obj = tuple(args[len(own) + 1 :])
        return super().parse_args(ctx, own)


class TrainerCommand(PassingCommand):
    """A command with flags of the trainer behind a lone --; an unknown option is most likely one of those."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        for word in _own(args):
            if word.startswith("--") and word.partition("=")[0] not in (*options, "--help"):
                meant = "flags of the trainer stand"
                if guess := nearest(word, options):
                    meant = f"did you mean {guess}? If it is the trainer's, it stands"
                raise FaultError(f"{ctx.info_name} has no option {word}; {meant} behind a lone --, as in -- {word}")
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- TRAINER FLAGS]"]


class CallingCommand(PassingCommand):
    """A command whose own words may be options of another program, too."""

    ignore_unknown_options = True


def _own(args: list[str]) -> list[str]:
    return [*itertools.takewhile(lambda word: word != "--", args)]
