"""The command `predict`: ask an exported model, as Vertex AI would."""

import json
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

SERVER = Path("trainer/serving.py")  # the project's server, the default


@dataclass(frozen=True)
class PredictOptions:
    model: Annotated[Path, Parameter(help="The folder of an exported model.")]
    sample: Annotated[
        Path | None,
        Parameter(allow_leading_hyphen=True, help='JSON such as {"instances": [...]}; - is standard input.'),
    ] = None
    _: KW_ONLY
    serve: Annotated[bool, Parameter(help="Go on answering until Ctrl-C.")] = False
    command: Annotated[str, Parameter(help="What serves it, in place of python -m trainer.serving.")] = ""

    def act(self) -> None:
        if not (self.sample or self.serve):
            raise FaultError("nothing is asked; name a file with instances, or add --serve")
        if not self.model.is_dir():
            raise FaultError(f"{self.model}: there is no such folder; the command `model` fetches one")
        request = request_of(self.sample) if self.sample else None
        command, code = program_of(self.command), 130
        try:
            with signals_as_exceptions(), prediction.serving(self.model, os.environ, state_dir(), command) as endpoint:
                code = 0 if self.serve else 130
                if request:
                    if (length := len(json.dumps(request))) > prediction.LONGEST:
                        complain(f"the request has {length} bytes, and a public endpoint takes 1.5 MB", style="yellow")
                    each = ",\n  ".join(map(json.dumps, endpoint.ask(request)))
                    print(f'{{"predictions": [\n  {each}\n]}}')
                if self.serve:
                    errors.print(f"ask it with: curl -d @SAMPLE.json {endpoint.predict}\nCtrl-C stops it")
                    raise FaultError(f"the container ended with exit code {endpoint.process.wait()}")
        except KeyboardInterrupt:
            errors.print("stopped")
            raise SystemExit(code) from None


def program_of(command: str) -> tuple[str, ...]:
    """The words of --command, by default the project's own server."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise FaultError(f"--command: {error}; close the quotes") from None
    if not (words or SERVER.exists()):
        raise FaultError(f"there is no {SERVER} here to serve the model; name a server with --command")
    return words or prediction.COMMAND


def request_of(path: Path) -> dict[str, Any]:
    """The request in a file, {"instances": [...]} or the list of instances alone; raises FaultError for others."""
    try:
        content = json.loads(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
        json.dumps(content, allow_nan=False)  # Python reads NaN, which no other program would
    except OSError as error:
        raise FaultError(f"{path}: cannot be read ({error.strerror}); name a file with instances") from None
    except (ValueError, RecursionError) as error:
        raise FaultError(f'{path}: is not JSON ({error}); write {{"instances": [...]}}') from None
    request = {"instances": content} if isinstance(content, list) else content
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list) or not request["instances"]:
        raise FaultError(f'{path}: names no instances; write {{"instances": [...]}}')
    return request
