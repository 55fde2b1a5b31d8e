"""An exported model behind its serving container's command, started and asked as Vertex AI does it.

Source of routes, variables and the forms of request and answer: Vertex AI, "Custom container requirements for
inference".
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from vertex_launch.errors import FaultError
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running import host, hosts

COMMAND = (sys.executable, "-m", "trainer.serving")
ROUTE = "/v1/endpoints/local/deployedModels/local"  # the service's, unless the model's upload names others
READY_SECONDS = 300.0  # for the model to be loaded
ANSWER_SECONDS = 60.0  # for one request
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.1
LONGEST = 1_500_000  # bytes of a request to a public endpoint; Source: Vertex AI, "Quotas and limits"


@dataclass(frozen=True)
class Endpoint:
    """A serving container that is ready."""

    route: str  # of its health
    process: "subprocess.Popen[bytes]"
    session: requests.Session

    @property
    def predict(self) -> str:
        return f"{self.route}:predict"

    def ask(self, request: Mapping[str, Any]) -> list[Any]:
        """The predictions, one for each instance; raises FaultError for any other answer."""
        try:
            answer = self.session.post(self.predict, json=request, timeout=ANSWER_SECONDS)
            content = answer.json()
        except requests.JSONDecodeError:
            raise FaultError(f"{self.predict}: answers {answer.status_code} without JSON") from None
        except requests.RequestException as error:
            raise FaultError(f"{self.predict}: does not answer ({type(error).__name__}); see its lines") from None
        table = content if isinstance(content, dict) else {}
        if answer.status_code != 200:
            raise FaultError(f"{self.predict}: {answer.status_code}: {table.get('error', content)}")
        predictions = table.get("predictions")
        if not isinstance(predictions, list) or len(predictions) != len(request["instances"]):
            wanted = f'{{"predictions": [...]}} of {len(request["instances"])}, one for an instance'
            raise FaultError(f"{self.predict}: answers no {wanted}")
        return predictions


@contextlib.contextmanager
def serving(
    model: Path, environ: Mapping[str, str], state_dir: StateDir, command: Sequence[str] = COMMAND
) -> Iterator[Endpoint]:
    """A container of the model, stopped at the end of the block; of the shell's `environ` it gets little, as there.

    Raises FaultError where it ends, or does not become healthy in time.
    """
    (address,) = hosts.free_addresses(1)
    variables = host.image_environment(environ, state_dir, "prediction") | {
        "AIP_HTTP_PORT": address.rpartition(":")[2],
        "AIP_HEALTH_ROUTE": ROUTE,
        "AIP_PREDICT_ROUTE": f"{ROUTE}:predict",
        "AIP_STORAGE_URI": str(model.resolve()),
    }
    try:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
    except OSError as error:
        raise FaultError(f"{command[0]}: cannot be started ({error.strerror})") from None
    try:
        session = requests.Session()
        session.trust_env = False  # a proxy would look for this address on its own machine
        endpoint = Endpoint(f"http://{address}{ROUTE}", process, session)
        _wait(endpoint)
        yield endpoint
    finally:
        _stop(process)
        host.remove_home(state_dir, "prediction")


def _wait(endpoint: Endpoint) -> None:
    """Wait until the health route answers with 200, as the service does before it sends a request."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if (code := endpoint.process.poll()) is not None:
            raise FaultError(f"the container ended with exit code {code} before it was healthy; see its lines")
        with contextlib.suppress(requests.RequestException):
            if endpoint.session.get(endpoint.route, timeout=POLL_SECONDS * 10).status_code == 200:
                return
        time.sleep(POLL_SECONDS)
    raise FaultError(f"GET {ROUTE} did not answer with 200 within {READY_SECONDS:g} s; is that its health route?")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to the command, as to process 1 of a container, and after the grace time SIGKILL to all."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
