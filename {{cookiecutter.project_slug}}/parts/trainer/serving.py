"""Serves the exported model over HTTP, as Vertex AI requires (python -m trainer.serving [MODEL]).

The response to a request {"instances": [...]} is {"predictions": [...]}, with one prediction per instance. The response
to an invalid request is {"error": "..."}. Source: Vertex AI, "Custom container requirements for inference".
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from trainer import export
from trainer.export import Exported
from trainer.vertex import storage
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import exit_code, say

LONGEST = 32 * 2**20  # bytes of a request; the service accepts less
FORM = 'send {"instances": [...]}, with nested lists of numbers'


@dataclass(frozen=True)
class Container:
    """The container's settings, which Vertex AI passes in AIP_* variables.

    The defaults apply if you start the server manually.
    """

    model: str  # a folder, or a gs:// URI
    port: int = 8080
    health: str = "/health"
    predict: str = "/predict"
    host: str = "127.0.0.1"


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Load the model and serve requests until SIGTERM.

    Raises TrainerError if the model is missing or if the port isn't free.
    """
    container = from_env(argv, environ)
    with tempfile.TemporaryDirectory() as aside:
        model = export.load(folder(container.model, environ, Path(aside)))
    try:
        server = ThreadingHTTPServer((container.host, container.port), partial(Handler, container, model))
    except OSError as error:
        reason = f"{error.strerror}; set AIP_HTTP_PORT to another port"
        raise TrainerError(f"can't listen on port {container.port}: {reason}") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    say(f"{container.model} is served at http://{container.host}:{container.port}{container.predict}")
    with server:
        server.serve_forever()


def from_env(argv: Sequence[str], environ: Mapping[str, str]) -> Container:
    """Read the settings. Raises TrainerError if no model is specified or if the port isn't valid."""
    model = "".join(argv[:1]) or environ.get("AIP_STORAGE_URI", "")
    if not model or model.startswith("-"):
        raise TrainerError(
            "no model is specified; pass the model's folder, as in: python -m trainer.serving output/model"
        )
    port, in_cloud = environ.get("AIP_HTTP_PORT", "8080"), not storage.from_env(environ).emulated
    if not port.isdecimal():
        raise TrainerError(f'AIP_HTTP_PORT is "{port}", but it must be a port number')
    return Container(
        model,
        int(port),
        environ.get("AIP_HEALTH_ROUTE", Container.health),
        environ.get("AIP_PREDICT_ROUTE", Container.predict),
        "0.0.0.0" if "AIP_HTTP_PORT" in environ and in_cloud else Container.host,
    )


def folder(address: str, environ: Mapping[str, str], aside: Path) -> Path:
    """Return the model's folder. Copy a gs:// folder to `aside`, because Vertex AI doesn't mount buckets for serving.

    Raises TrainerError if the folder can't be copied.
    """
    path = storage.from_env(environ).path(address)
    if path.exists() or not address.startswith("gs://"):
        return path
    from google.cloud.storage import Client, transfer_manager  # imported only if needed, because it takes a second

    name, _, prefix = f"{address.rstrip('/')}/".removeprefix("gs://").partition("/")
    try:
        bucket = Client().bucket(name)
        blobs = (blob.name for blob in bucket.list_blobs(prefix=prefix))
        names = [blob.removeprefix(prefix) for blob in blobs if not blob.endswith("/")]
        options = {"blob_name_prefix": prefix, "worker_type": transfer_manager.THREAD, "raise_exception": True}
        transfer_manager.download_many_to_path(bucket, names, str(aside), **options)
    except Exception as error:  # from the network, the credentials, Cloud Storage, or a disk
        raise TrainerError(f"{address} can't be read: {str(error).partition(chr(10))[0]}") from None
    return aside


def respond(model: Exported, body: bytes) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status code and the response to a prediction request."""
    try:
        instances = np.array(json.loads(body)["instances"])
        inputs = instances.astype(model.dtype, casting="same_kind" if instances.dtype.kind in "biuf" else "no")
    except (ValueError, TypeError, KeyError, RecursionError):
        return 400, {"error": f"the request isn't valid; {FORM} of the same shape and of type {model.dtype}"}
    if not fits(inputs.shape, model.shape):
        shape = str(model.shape).replace("None", "any")
        return 400, {"error": f"the instances have the shape {inputs.shape}, but they must have the shape {shape}"}
    try:
        predictions = model.answer(inputs)
        if not np.isfinite(predictions).all():  # JSON can't represent these values
            return 500, {"error": "the model's predictions contain NaN or infinite values"}
        return 200, {"predictions": predictions.tolist()}
    except (ValueError, IndexError, RuntimeError) as error:  # such as a byte or a class that is out of range
        return 400, {"error": f"the model rejects the instances: {str(error).strip().partition(chr(10))[0]}"}
    except Exception as error:
        traceback.print_exc()
        return 500, {"error": f"the model fails: {str(error).strip().partition(chr(10))[0]}"}


def fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Return whether `shape` matches `wanted`. A `None` value in `wanted` matches any size."""
    return len(shape) == len(wanted) and all(want in (None, size) for size, want in zip(shape, wanted, strict=True))


class Handler(BaseHTTPRequestHandler):
    """A handler for health check requests and prediction requests."""

    protocol_version = "HTTP/1.1"
    timeout = 60.0  # for a client that doesn't send anything

    def __init__(self, container: Container, model: Exported, *args: Any) -> None:
        self._container, self._model = container, model
        super().__init__(*args)  # handles the request

    def do_GET(self) -> None:
        health = self._container.health
        self.reply(*((200, {}) if self.path == health else (404, {"error": f"{self.path} is unknown; use {health}"})))

    def do_POST(self) -> None:
        predict, length = self._container.predict, self.headers.get("Content-Length", "")
        fault = 404 if self.path != predict else 411 if not length.isdecimal() else 413 if int(length) > LONGEST else 0
        if fault:
            self.close_connection = True  # because the body isn't read
            sentence = f"send a POST request of at most {LONGEST} bytes, with a Content-Length header, to {predict}"
            return self.reply(fault, {"error": sentence})
        self.reply(*respond(self._model, self.rfile.read(int(length))))

    def reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Don't log requests, because Vertex AI already logs them."""


if __name__ == "__main__":
    sys.exit(exit_code(serve, sys.argv[1:], os.environ))
