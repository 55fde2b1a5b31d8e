"""Check, run, or submit a job file, or start a local Vertex AI."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

from vertex_launch import program
from vertex_launch.cli.output import complain
from vertex_launch.errors import FaultError, nearest

OTHER_FOLDER, ROOM = (
    "; use a folder that you can write to, or run this command as the folder's owner",
    "; free some disk space",
)
CURES = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OTHER_FOLDER)
CURES |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM)

# Command -> its purpose.
COMMANDS = {
    "check": "Report job settings that Vertex AI would reject or that would make a job fail later.",
    "plan": "Estimate a job's cost, quota, memory, and step time, and evaluate reduction servers.",
    "run": "Run a job locally. Each replica is a process or a container with Vertex AI's environment variables.",
    "emulate": "Start a local Vertex AI for gcloud and the SDK. With an ACTION, simulate a replica failure.",
    "predict": "Serve an exported model on this machine, request predictions, and stop the server.",
    "setup": "Use gcloud to create the Google Cloud resources that jobs need. Existing resources aren't changed.",
    "submit": "Show a job, ask for confirmation, and submit it to Vertex AI. --or and --regions add alternatives.",
    "jobs": "List the newest jobs, tuning jobs, and training pipelines, with their states and costs.",
    "status": "Show a job's state, its cost so far, and why it failed. The exit code depends on the job's state.",
    "logs": "Print the output of a job's replicas in chronological order. With --follow, continue until the job ends.",
    "cancel": "Stop a job and keep its checkpoints. To resume, submit the job again with the same output folder.",
    "cost": "Estimate what a job has cost so far, based on list prices and its machines' run time.",
    "model": "Download the model that a job exported to the bucket. For a tuning job, use the best trial's model.",
    "tensorboard": "Show live TensorBoard curves of a job or tuning job in the browser. To stop, press Ctrl-C.",
    "image": "Build this folder's image. cpu builds a small image, push pushes the image, and cloud uses Cloud Build.",
    "lock": "Lock the versions of all packages in the image. With --upgrade, select the newest compatible versions.",
    "package": "Build a package for a job with a pythonPackageSpec, and print the command that uploads it.",
    "schema": "Print a JSON Schema, which editors use to check and complete job files.",
}
# Command -> its class. The module of the class is imported only when the command is called.
PLACES = {
    "check": "check:CheckOptions",
    "plan": "plan:PlanOptions",
    "run": "run:RunOptions",
    "emulate": "emulate:EmulateOptions",
    "predict": "predict:PredictOptions",
    "setup": "setup:SetupOptions",
    "submit": "submit:SubmitOptions",
    "jobs": "jobs:JobsOptions",
    "status": "jobs:StatusOptions",
    "logs": "following:LogsOptions",
    "cancel": "jobs:CancelOptions",
    "cost": "jobs:CostOptions",
    "model": "outputs:ModelOptions",
    "tensorboard": "outputs:TensorboardOptions",
    "image": "image:ImageOptions",
    "lock": "image:LockOptions",
    "package": "image:PackageOptions",
    "schema": "check:SchemaOptions",
}
# Command -> the arguments that may follow a lone --. The field `passed` of the class receives them.
PASSING = {"plan": "TRAINER FLAGS", "run": "TRAINER FLAGS", "image": "DOCKER OPTIONS", "lock": "UV OPTIONS"}


def main() -> None:
    """Run the command-line interface. If the user's input isn't valid, print a message without a traceback."""
    try:
        value = parsed(sys.argv[1:] or ["--help"])
        if value is not None:
            value.act()
        raise SystemExit(0 if sys.argv[1:] else 2)
    except CycloptsError as error:
        complain(f"{error} See --help.")
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise, Python prints an error at exit
    except EOFError:
        complain("\nthe confirmation prompt wasn't answered; to skip this prompt, add --yes")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except FaultError as error:
        complain(str(error))
    except OSError as error:  # a full disk, missing permissions, no network
        place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain(place + CURES.get(error.errno or 0, ""))
    raise SystemExit(1)


def parsed(words: Sequence[str]) -> Any:
    """Parse a command and its options, and return the command. If help was printed, return None."""
    end = words.index("--") if words[0] in PASSING and "--" in words else len(words)
    try:
        command, bound, to_give = app().parse_args(words[:end], print_error=False, exit_on_error=False)
    except MissingArgumentError as error:
        if error.argument and error.argument.index is not None:  # not an option without its value
            name = error.argument.name.removeprefix("--").upper()
            raise CycloptsError(msg=f"{words[0]} requires the argument {name}.") from None
        raise
    except UnknownOptionError as error:
        if "TRAINER" not in PASSING.get(words[0], ""):
            raise
        meant, word = "put trainer flags", error.token.keyword or error.token.value
        if guess := nearest(word, [name for argument in error.argument_collection for name in argument.names]):
            meant = f"did you mean {guess}? If it's a trainer flag, put it"
        raise FaultError(f"{words[0]} has no option {word}; {meant} after a lone --, as in -- {word}") from None
    return command(*bound.args, **bound.kwargs, **dict.fromkeys(to_give, tuple(words[end + 1 :])))


def app() -> App:
    """Return the command-line application with all commands in COMMANDS."""
    plain = Parameter(negative=(), show_default=lambda value: str(value) if value else None)
    made = App(
        program.NAME, __doc__, help_flags="--help", version_flags=(), help_format="plaintext", default_parameter=plain
    )
    for number, (name, meaning) in enumerate(COMMANDS.items()):
        usage = f"Usage: {program.NAME} {name} [OPTIONS] [ARGS] [-- {PASSING[name]}]" if name in PASSING else None
        made.command(f"vertex_launch.cli.{PLACES[name]}", name, help=meaning, usage=usage, sort_key=number)
    if program.NAME == program.SCRIPT:  # shells complete arguments of a script, but not of python -m
        made.register_install_completion_command()
    return made
