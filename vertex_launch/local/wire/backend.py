"""Servers to which a proxy hands what it hears: those of the local Vertex or, while it does not run, of the buckets."""

import functools
import socket
import threading
from pathlib import Path
from typing import Any

from vertex_launch import program
from vertex_launch.local.running.hosts import LOOPBACK

HTTP = "http/1.1"  # by ALPN; gRPC is "h2"


@functools.cache
def port(protocol: str, endpoint: str, buckets: Path) -> int:
    """Return the port of the server that speaks a protocol, at "" of the buckets alone; it starts at the first call."""
    endpoint = endpoint or _storage(buckets)
    if protocol == HTTP:
        return int(endpoint.rpartition(":")[2])
    from vertex_launch.local.wire import bridge  # most jobs need no gRPC

    return bridge.serve(endpoint, LOOPBACK)


@functools.cache
def _storage(buckets: Path) -> str:
    """Serve the buckets, and refuse Vertex AI's own calls; returns the address."""
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
