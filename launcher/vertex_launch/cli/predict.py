"""The `predict` command, which serves an exported model locally as Vertex AI would, and requests predictions."""

import json
import math
import os
import shlex
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vertex_launch.cli.options import state_dir
from vertex_launch.cli.output import complain, errors
from vertex_launch.errors import FaultError
from vertex_launch.local import prediction
from vertex_launch.local.running.signals import signals_as_exceptions

SERVER = Path("trainer/serving.py")  # the project's own server, which is the default


@dataclass(frozen=True)
class PredictOptions:
    model: Annotated[Path, Parameter(help="The folder of an exported model.")]
    sample: Annotated[
        Path | None,
        Parameter(
            allow_leading_hyphen=True,
            help='A JSON file that contains {"instances": [...]}. To read standard input, use -.',
        ),
    ] = None
    _: KW_ONLY
    serve: Annotated[bool, Parameter(help="Keep serving until you press Ctrl-C.")] = False
    command: Annotated[str, Parameter(help="The serving command. The default is python -m trainer.serving.")] = ""

    def act(self) -> None:
        if not (self.sample or self.serve):
            raise FaultError("the request is missing; specify a file with instances, or add --serve")
        if not self.model.is_dir():
            raise FaultError(f"{self.model}: the folder doesn't exist; download a model with the `model` command")
        request = request_of(self.sample) if self.sample else None
        command, code = program_of(self.command), 130
        try:
            with signals_as_exceptions(), prediction.serving(self.model, os.environ, state_dir(), command) as endpoint:
                code = 0 if self.serve else 130
                if request:
                    if (length := len(json.dumps(request))) > prediction.LONGEST:
                        complain(f"the request is {length} bytes, but endpoints accept at most 1.5 MB", style="yellow")
                    each = ",\n  ".join(map(json.dumps, endpoint.ask(request)))
                    print(f'{{"predictions": [\n  {each}\n]}}')
                if self.serve:
                    errors.print(f"send a request with: curl -d @SAMPLE.json {endpoint.predict}\nstop with Ctrl-C")
                    ended = endpoint.process.wait(math.inf)  # with a timeout, Python waits in short intervals
                    raise FaultError(f"the container exited with code {ended}")
        except KeyboardInterrupt:
            errors.print("stopped")
            raise SystemExit(code) from None


def program_of(command: str) -> tuple[str, ...]:
    """Return the --command value or, by default, the command that starts the project's own server.

    Raises FaultError if --command is empty and the project doesn't contain a server.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise FaultError(f"--command: {error}; close the quotes") from None
    if not (words or SERVER.exists()):
        raise FaultError(f"the default server {SERVER} doesn't exist; specify a server with --command")
    return words or prediction.COMMAND


def request_of(path: Path) -> dict[str, Any]:
    """Return the prediction request from a file that contains {"instances": [...]} or only the list of instances.

    Raises FaultError if the file can't be read or has a different format.
    """
    try:
        content = json.loads(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
        json.dumps(content, allow_nan=False)  # Python accepts NaN, but other programs don't
    except OSError as error:
        raise FaultError(f"{path}: the file can't be read ({error.strerror}); specify a file with instances") from None
    except (ValueError, RecursionError) as error:
        raise FaultError(f'{path}: the file is not valid JSON ({error}); write {{"instances": [...]}}') from None
    request = {"instances": content} if isinstance(content, list) else content
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list) or not request["instances"]:
        raise FaultError(f'{path}: the file doesn\'t contain instances; write {{"instances": [...]}}')
    return request
