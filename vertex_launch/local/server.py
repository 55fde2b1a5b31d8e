"""Starts the local Vertex and says how clients reach it."""

import os
import socket
from pathlib import Path

import uvicorn
from rich.console import Console

from vertex_launch.errors import FaultError
from vertex_launch.local.context import Context
from vertex_launch.local.jobs.background import repeating
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.vertex_api import Vertex, create_app
from vertex_launch.local.views.jobs import reports

RUNS_SECONDS = 0.5  # between two looks at what the command `run` has written
LEAVE_SECONDS = 2  # for requests under way at the end; a client may never finish its own
INTRODUCTION = Path(__file__).with_name("introduction.txt")  # what a person pastes to use the service
ADDRESS = "127.0.0.1"  # never another: a client can run any program here


def serve(context: Context, port: int, console: Console) -> None:
    """Serve until Ctrl-C or SIGTERM; then stop every job. Raises FaultError for a folder or a port not to be used."""
    listener = _listener(port)
    endpoint = f"http://{ADDRESS}:{listener.getsockname()[1]}"
    vertex = Vertex(context, endpoint)
    introduction = INTRODUCTION.read_text(encoding="utf-8").format(endpoint=endpoint, context=context)
    console.print(introduction, markup=False, highlight=False)
    isolated = isolation(context.state_dir.buckets)
    if not isolated.layered:
        kind, place = ("overlays", "") if isolated.buckets else ("mounts", ", buckets at $GCS_MOUNT alone")
        console.print(f"This system permits no {kind}: jobs write into this folder{place}", style="yellow")
    for path in vertex.store.unreadable:
        console.print(f"left out {path}: it is no resource; remove it", style="yellow", markup=False)
    config = uvicorn.Config(
        create_app(vertex),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=LEAVE_SECONDS,
    )
    try:
        runs = repeating(vertex.jobs.follow_runs, RUNS_SECONDS)
        with signals_as_exceptions(), runs, reports(vertex.store, vertex.jobs, console):
            uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        console.print("stopping: every job and its processes")
        vertex.close()


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        fault = os.strerror(error.errno or 0)
        raise FaultError(f"port {port}: cannot be used ({fault}); choose another with --port") from None
