"""Runs the command of a model's serving container locally, and sends prediction requests as Vertex AI does.

Source for the routes, variables, and formats: Vertex AI, "Custom container requirements for inference".
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
ROUTE = "/v1/endpoints/local/deployedModels/local"  # Vertex AI's default; a model upload can specify other routes
READY_SECONDS = 300.0  # the time limit for loading the model
ANSWER_SECONDS = 60.0  # the time limit for one request
GRACE_SECONDS = 5.0  # the time between SIGTERM and SIGKILL
POLL_SECONDS = 0.1
LONGEST = 1_500_000  # the maximum request size of a public endpoint, in bytes. Source: Vertex AI, "Quotas and limits"


@dataclass(frozen=True)
class Endpoint:
    """A serving container that is ready for requests."""

    route: str  # the health route
    process: "subprocess.Popen[bytes]"
    session: requests.Session

    @property
    def predict(self) -> str:
        return f"{self.route}:predict"

    def ask(self, request: Mapping[str, Any]) -> list[Any]:
        """Return a prediction for each instance in the request. Raises FaultError if the response isn't valid."""
        try:
            answer = self.session.post(self.predict, json=request, timeout=ANSWER_SECONDS)
            content = answer.json()
        except requests.JSONDecodeError:
            raise FaultError(f"{self.predict}: the response (HTTP {answer.status_code}) isn't JSON") from None
        except requests.RequestException as error:
            raise FaultError(f"{self.predict}: no response ({type(error).__name__}); see the output above") from None
        table = content if isinstance(content, dict) else {}
        if answer.status_code != 200:
            raise FaultError(f"{self.predict}: {answer.status_code}: {table.get('error', content)}")
        predictions = table.get("predictions")
        if not isinstance(predictions, list) or len(predictions) != len(request["instances"]):
            wanted = f'{{"predictions": [...]}} with {len(request["instances"])} predictions, one for each instance'
            raise FaultError(f"{self.predict}: the response isn't {wanted}")
        return predictions


@contextlib.contextmanager
def serving(
    model: Path, environ: Mapping[str, str], state_dir: StateDir, command: Sequence[str] = COMMAND
) -> Iterator[Endpoint]:
    """Run the model's serving container until the `with` block ends.

    As on Vertex AI, the container receives only a few of the shell's environment variables. Raises FaultError if the
    container exits or doesn't become healthy within READY_SECONDS.
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
        raise FaultError(f"{command[0]}: the command can't be started ({error.strerror})") from None
    try:
        session = requests.Session()
        session.trust_env = False  # a proxy would look for this local host and port on its own machine
        endpoint = Endpoint(f"http://{address}{ROUTE}", process, session)
        _wait(endpoint)
        yield endpoint
    finally:
        _stop(process)
        host.remove_home(state_dir, "prediction")


def _wait(endpoint: Endpoint) -> None:
    """Wait until the health route returns 200, as Vertex AI does before it sends prediction requests."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if (code := endpoint.process.poll()) is not None:
            raise FaultError(f"the container exited with code {code} before it was healthy; see its output above")
        with contextlib.suppress(requests.RequestException):
            if endpoint.session.get(endpoint.route, timeout=POLL_SECONDS * 10).status_code == 200:
                return
        time.sleep(POLL_SECONDS)
    raise FaultError(f"GET {ROUTE} didn't return 200 within {READY_SECONDS:g} s; check the container's health route")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to the command, as a container runtime does to PID 1.

    After GRACE_SECONDS, kill the process group.
    """
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
