"""Check, run or submit a job file; or be the service that runs it."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError

from vertex_launch import program
from vertex_launch.cli.output import complain
from vertex_launch.errors import FaultError, nearest

OTHER_FOLDER, ROOM = "; work in a folder that you may write to, or as its owner", "; free some space there"
CURES = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OTHER_FOLDER)
CURES |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM)

# Command -> what it is for.
COMMANDS = {
    "check": "Say everything that Vertex AI would refuse later, or spoil.",
    "plan": "Say what a job needs, costs and gains: machines, quota, memory, time of a step, reduction servers.",
    "run": "Run a job in the local Vertex: each replica a process, or a container, with the service's environment.",
    "emulate": "Run a local Vertex AI for gcloud and the SDK; or, with an ACTION, disturb a replica of a job in it.",
    "predict": "Start an exported model's serving container here, ask it for predictions, and stop it.",
    "setup": "Make what jobs need in Google Cloud, step by step, with gcloud; what is there stays as it is.",
    "submit": "Send a job to Vertex AI; shows what will be sent, and asks. --or and --regions send it where it starts.",
    "jobs": "List the newest jobs, searches and training pipelines: how each stands, and what it has cost.",
    "status": "Show how a job stands, what it has cost, and why it failed; the exit code is that of its state.",
    "logs": "Print what the replicas of a job printed, merged by time; --follow ends with the job, and its exit code.",
    "cancel": "Stop a job; its checkpoints stay, and a job sent again with the same output folder resumes from them.",
    "cost": "Say what a job has cost so far, by list prices and the time of its machines.",
    "model": "Copy the model that a job exported, or that of a search's best trial, from the bucket to a folder.",
    "tensorboard": "Show the curves of a job, or of all trials of a search, in the browser as they grow, until Ctrl-C.",
    "image": "Build this folder's image; cpu takes the small one, push sends it, cloud has Google build and keep it.",
    "lock": "Write down the versions of all that the image installs; with --upgrade, the newest that fit.",
    "package": "Pack a folder for a job with a pythonPackageSpec, and say how to send the package to the bucket.",
    "schema": "Print the JSON Schema of job files; editors check and complete files with it.",
}
# Command -> its class, whose module is imported only when the command is called.
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
# Command -> what may follow a lone --, which the field `passed` of its class gets.
PASSING = {"plan": "TRAINER FLAGS", "run": "TRAINER FLAGS", "image": "DOCKER OPTIONS", "lock": "UV OPTIONS"}


def main() -> None:
    """Run the command line; a user's mistake is one sentence, never a traceback."""
    try:
        value = parsed(sys.argv[1:] or ["--help"])
        if value is not None:
            value.act()
        raise SystemExit(0 if sys.argv[1:] else 2)
    except CycloptsError as error:
        complain(f"{error} See --help.")
        raise SystemExit(2) from None
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its exit
    except EOFError:
        complain("\na question was not answered; --yes asks none")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except FaultError as error:
        complain(str(error))
    except OSError as error:  # a full disk, a folder that is not ours, no network
        place = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain(place + CURES.get(error.errno or 0, ""))
    raise SystemExit(1)


def parsed(words: Sequence[str]) -> Any:
    """Return the command with its options, None if its help was printed."""
    end = words.index("--") if words[0] in PASSING and "--" in words else len(words)
    try:
        command, bound, to_give = app().parse_args(words[:end], print_error=False, exit_on_error=False)
    except UnknownOptionError as error:
        if "TRAINER" not in PASSING.get(words[0], ""):
            raise
        meant, word = "flags of the trainer stand", error.token.keyword or error.token.value
        if guess := nearest(word, [name for argument in error.argument_collection for name in argument.names]):
            meant = f"did you mean {guess}? If it is the trainer's, it stands"
        raise FaultError(f"{words[0]} has no option {word}; {meant} behind a lone --, as in -- {word}") from None
    return command(*bound.args, **bound.kwargs, **dict.fromkeys(to_give, tuple(words[end + 1 :])))


def app() -> App:
    """The program, whose commands are the classes above."""
    plain = Parameter(negative=(), show_default=lambda value: str(value) if value else None)
    made = App(
        program.NAME, __doc__, help_flags="--help", version_flags=(), help_format="plaintext", default_parameter=plain
    )
    for number, (name, meaning) in enumerate(COMMANDS.items()):
        usage = f"Usage: {program.NAME} {name} [OPTIONS] [ARGS] [-- {PASSING[name]}]" if name in PASSING else None
        made.command(f"vertex_launch.cli.{PLACES[name]}", name, help=meaning, usage=usage, sort_key=number)
    if program.NAME == program.SCRIPT:  # the shell completes the words of a script, not those of python -m
        made.register_install_completion_command()
    return made
