"""Starts the local Vertex and says how clients reach it."""

import socket
from collections.abc import Mapping

import uvicorn
from rich.console import Console

from launch.emulator.home import Home
from launch.emulator.resources.datasets import Datasets
from launch.emulator.resources.jobs import Jobs, Options
from launch.emulator.resources.models import Models
from launch.emulator.resources.pipelines import Pipelines
from launch.emulator.resources.store import Store, StoreError
from launch.emulator.resources.tuning import Tunings
from launch.emulator.running.interrupts import signals_as_exceptions
from launch.emulator.running.isolation import isolation
from launch.emulator.service import Vertex, create_app
from launch.emulator.views.view import View
from launch.settings import Settings

LEAVE_SECONDS = 2  # for requests under way when the service is to end; a client may never finish its own
ADDRESS = "127.0.0.1"  # never another: whoever reaches the service runs programs on this machine


def serve(
    home: Home, settings: Settings, options: Options, port: int, environ: Mapping[str, str], console: Console
) -> None:
    """Serve until Ctrl-C or SIGTERM; then stop every job.

    Raises:
        StoreError: the state folder or the port cannot be had.
    """
    listener = _listener(port)
    endpoint = f"http://{ADDRESS}:{listener.getsockname()[1]}"
    vertex = build(home, settings, options, endpoint, environ)
    console.print(introduction(endpoint, home, settings, options), markup=False, highlight=False)
    if not isolation(home.buckets).buckets:
        console.print(
            "This system permits no mounts: jobs find the buckets not at /gcs but at $GCS_MOUNT", style="yellow"
        )
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
        with signals_as_exceptions(), View(vertex.store, vertex.jobs, console):
            uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        console.print("stopping: every job and its processes")
        vertex.close()


def build(home: Home, settings: Settings, options: Options, endpoint: str, environ: Mapping[str, str]) -> Vertex:
    """Everything behind the face, in the state that the folder holds; the endpoint is empty if there is no face."""
    store = Store(home.folder, endpoint)
    (home.buckets / settings.bucket).mkdir(parents=True, exist_ok=True)
    # So that what a job does with google-cloud-storage or gcsfs ends up in the same folders.
    reached = {"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"} if endpoint else {}
    jobs = Jobs(store, home, settings, {**environ, **reached}, options)
    datasets, models = Datasets(store, home.buckets), Models(store, home.buckets)
    pipelines = Pipelines(store, jobs, datasets, models, home.buckets)
    return Vertex(store, home, jobs, Tunings(store, home, jobs), pipelines, datasets, models)


def introduction(endpoint: str, home: Home, settings: Settings, options: Options) -> str:
    """What a person pastes to use the service."""
    bucket = f"gs://{settings.bucket}"
    return f"""\
Local Vertex at {endpoint}: {options.capacity} replicas at once, state in {home.folder}; Ctrl-C ends it

gcloud, in another terminal:
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM={endpoint}/
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING={endpoint}/
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE={endpoint}/storage/v1/
  export CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true CLOUDSDK_CORE_PROJECT={settings.project}

Python, with `export STORAGE_EMULATOR_HOST={endpoint}`:
  from google.auth.credentials import AnonymousCredentials; from google.cloud import aiplatform
  aiplatform.init(project="{settings.project}", location="{settings.region}", staging_bucket="{bucket}",
      api_endpoint="{endpoint}", api_transport="rest", credentials=AnonymousCredentials())
"""


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen(128)  # who reads the address and comes at once has to wait a moment, no more
    except OSError as error:
        listener.close()
        raise StoreError(f"port {port}: cannot be used ({error.strerror}); choose another with --port") from None
    return listener
