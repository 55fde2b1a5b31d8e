"""Check, run or submit a job file; or be the service that runs it."""

import errno
import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from vertex_launch import program
from vertex_launch.cli.options import CallingCommand, Command, TrainerCommand, app_of
from vertex_launch.cli.output import complain
from vertex_launch.errors import FaultError

OTHER_FOLDER, ROOM = "; work in a folder that you may write to, or as its owner", "; free some space there"
CURES = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OTHER_FOLDER)
CURES |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM)

# Name -> the command, once it is imported.
COMMANDS: dict[str, Any] = dict.fromkeys(
    (
        *("check", "plan", "run", "emulate", "predict"),
        *("setup", "submit", "jobs", "status", "logs", "cancel", "cost", "model", "tensorboard"),
        *("image", "lock", "package", "schema"),
    )
)
# Command -> its module, where that is not of its name.
MODULES = dict.fromkeys(("status", "cost", "cancel"), "jobs") | dict.fromkeys(("model", "tensorboard"), "outputs")
MODULES |= dict.fromkeys(("lock", "package"), "image") | {"logs": "following", "schema": "check"}
# Command -> its class, where it takes words of another program behind --.
CLASSES: dict[str, type[Command]] = dict.fromkeys(("plan", "run"), TrainerCommand)
CLASSES |= dict.fromkeys(("image", "lock"), CallingCommand)


class Commands(TyperGroup):
    """Imports the module of a command only when that is called or listed: together they take half a second."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # pydantic's words, which Typer asks
            error.message = error.message.removeprefix("Value error, ")
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            module = importlib.import_module(f"vertex_launch.cli.{MODULES.get(cmd_name, cmd_name)}")
            options, kind = f"{cmd_name.title()}Options", CLASSES.get(cmd_name, Command)
            app = getattr(module, "app", None) or app_of(getattr(module, options), kind)
            self.commands[cmd_name] = typer.main.get_command(app)
        return super().get_command(ctx, cmd_name)


def main() -> None:
    """Run the command line; a user's mistake is one sentence, never a traceback."""
    # Words in the shell can be completed for the console script, not for python -m.
    app = typer.Typer(cls=Commands, help=__doc__, no_args_is_help=True, add_completion=program.NAME == program.SCRIPT)
    app.callback()(lambda: None)
    group: Any = typer.main.get_command(app)
    group.commands = COMMANDS
    try:
        group(prog_name=program.NAME)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its exit
    except FaultError as error:
        complain(str(error))
    except OSError as error:  # a full disk, a folder that is not ours, no network
        place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain(place + CURES.get(error.errno or 0, ""))
    raise SystemExit(1)
