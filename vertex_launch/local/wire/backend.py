"""Servers to which a proxy hands what it hears: those of the local Vertex or, while it does not run, of the buckets."""

import functools
import socket
import threading
from pathlib import Path
from typing import Any

from vertex_launch import program
from vertex_launch.local.running.hosts import LOOPBACK
from vertex_launch.local.wire.wire import HTTP, Backend


def of_service(endpoint: str) -> Backend:
    """Return the servers of a local Vertex at this address, one for each protocol, started when they are asked for."""

    def port(protocol: str) -> int:
        from vertex_launch.local.wire import bridge  # most jobs need no gRPC

        return _port(endpoint) if protocol == HTTP else bridge.serve(endpoint, LOOPBACK)

    return port


def of_buckets(buckets: Path) -> Backend:
    """Return servers of the buckets alone, which refuse Vertex AI's own calls."""
    endpoint = functools.cache(lambda: _storage(buckets))
    return lambda protocol: of_service(endpoint())(protocol)


def _storage(buckets: Path) -> str:
    import uvicorn  # most runs need no server

    from vertex_launch.local.api.errors import ApiError
    from vertex_launch.local.api.http import Call, Router
    from vertex_launch.local.storage.gcs_api import GcsApi

    def refuse(call: Call, **parts: str) -> Any:
        fault = f"{call.method} {call.path}: Vertex AI and Cloud Logging answer only where their local service runs"
        raise ApiError("UNIMPLEMENTED", f"{fault}; start `{program.NAME} emulate` and send the job there")

    refusals = [(method, "/v[12].*", refuse) for method in ("GET", "POST", "PATCH", "DELETE")]
    listener = socket.create_server((LOOPBACK, 0))
    app = Router([*GcsApi(buckets).routes(), *refusals])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="buckets", daemon=True).start()
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
