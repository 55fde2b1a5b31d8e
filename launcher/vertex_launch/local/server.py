"""The local Vertex server, which provides the REST APIs of Vertex AI, Cloud Logging, and Cloud Storage."""

import os
import re
import socket
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Console

from vertex_launch.errors import FaultError, Finding
from vertex_launch.facts import catalog
from vertex_launch.job.job_resource import id_of
from vertex_launch.local.api.collection import EMPTY, Collection
from vertex_launch.local.api.errors import ApiError, invalid
from vertex_launch.local.api.http import Call, Route, Router
from vertex_launch.local.api.operations import OPERATION, Operations
from vertex_launch.local.api.projects import Projects
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import logs
from vertex_launch.local.jobs.background import repeating
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.jobs.persistent_resources import PersistentResources
from vertex_launch.local.jobs.pipelines import Pipelines
from vertex_launch.local.jobs.tuning import Tunings
from vertex_launch.local.registry import metadata, tensorboards
from vertex_launch.local.registry.datasets import Annotations, DataItems, Datasets
from vertex_launch.local.registry.models import Evaluations, Models, Slices
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.faults import IN_PYTHON, Action
from vertex_launch.local.running.namespaces import isolation
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.local.storage.gcs_api import GcsApi
from vertex_launch.local.views import page, shell
from vertex_launch.local.views.jobs import reports
from vertex_launch.local.wire.wire import TOKEN
from vertex_launch.rules.region_and_output import REGION_NAME

# The gcloud beta and alpha commands use v1beta1. Google's REST clients use "ui" for operations and locations. The local
# Vertex serves the same API under every prefix.
V1 = "/(?:v1|v1beta1|ui)"
AT = f"{V1}/{{parent:parent}}"
LOCATIONS = f"{V1}/projects/{{project}}/locations"
LONGEST_DISTURBANCE = 7 * 24 * 3600  # seconds, the maximum duration of a job
RUNS_SECONDS = 0.5  # the interval at which the files that the `run` command writes are read
LEAVE_SECONDS = 2  # the time that open requests have at shutdown; a client might never finish its request
INTRODUCTION = Path(__file__).with_name("introduction.txt")  # the commands that a user pastes to use the server
ADDRESS = "127.0.0.1"  # never another host: a client can run any program on this machine


class Vertex:
    """All resources and routes of the local Vertex. If the endpoint is "", only this process can use the resources.

    Each API method takes a call and the segments of the URL path. An API method returns JSON or raises ApiError. Raises
    FaultError if the state folder isn't usable.
    """

    def __init__(self, context: Context, endpoint: str = "") -> None:
        self.store = store = Store(context.state_dir.folder, endpoint)
        (context.state_dir.buckets / context.settings.bucket).mkdir(parents=True, exist_ok=True)
        self.jobs = Jobs(store, context, endpoint)
        self.tunings = Tunings(store, self.jobs)
        models = Models(store)
        self.pipelines = Pipelines(store, self.jobs, self.tunings, models)
        self._operations = Operations(store)
        self._projects = Projects(store, context.settings.project)
        kinds: list[Collection] = [self.jobs, self.tunings, self.pipelines, Datasets(store), models]
        kinds += [PersistentResources(store, self.jobs), Evaluations(store), Slices(store)]
        kinds += [DataItems(store), Annotations(store), *metadata.collections(store)]
        kinds += tensorboards.collections(store, context.settings.bucket)
        self._collections = [kind.collection for kind in kinds]
        self._methods = {key: act for kind in kinds for key, act in kind.methods().items()}
        self._methods |= self._operations.methods()

    def close(self) -> None:
        """Stop all jobs, and wait until all of their processes have exited."""
        self.tunings.close()
        self.pipelines.close()
        self.jobs.close()
        self.store.close()

    def routes(self) -> list[Route]:
        """Return the routes of the APIs, the web page, and the interactive shells."""
        named = self._projects.translated
        resources = named(self.resource)
        return [
            *((method, f"{AT}/{{below:path}}", resources) for method in ("GET", "POST", "PATCH", "DELETE")),
            ("GET", LOCATIONS, named(self.locations)),
            ("GET", f"{LOCATIONS}/{{location}}", named(self.location)),
            ("POST", "/v2/entries:list", named(lambda call: logs.list_entries(self.store, call.json()))),
            ("POST", "/v2/entries:write", named(lambda call: logs.write_entries(self.store, call.json()))),
            ("POST", "/control/{id}/{action}", self.disturb),
            ("POST", "/token", lambda call: TOKEN),  # the same token for every service account key
            *self._projects.routes(),
            *GcsApi(self.store.state_dir.buckets).routes(),
            *page.routes(self.store, self.jobs),
            shell.page(),
        ]

    def resource(self, call: Call, parent: str, below: str) -> Any:
        """Call the API method for a collection or a resource. The path can end with a custom verb such as :cancel."""
        path, colon, verb = below.partition(":")
        address = "/".join("*" if i % 2 else part for i, part in enumerate(path.split("/")))
        act = self._methods.get(f"{call.method} {OPERATION.sub('', address)}{colon}{verb}")
        if act is None:
            raise self._refusal(call.method, below)
        answer = act(call, f"{parent}/{path}")
        if answer is None:
            answer = EMPTY if call.method == "DELETE" else {}
        did = {"PATCH": "Update", "DELETE": "Delete"}.get(call.method, verb.title() or "Create")
        version = "v1beta1" if call.path.startswith("/v1beta1/") else "v1"
        return self._operations.wrapped(answer, f"{parent}/{path}", did, version)

    def _refusal(self, method: str, below: str) -> ApiError:
        collection, collections = re.split("[/:]", below)[0], ", ".join(self._collections)
        if collection in self._collections:
            fault = f"the local Vertex doesn't support {method} {below}; its collections are {collections}"
            return ApiError("UNIMPLEMENTED", fault)
        return ApiError("NOT_FOUND", f"the local Vertex has no {collection}; it has {collections}")

    def locations(self, call: Call, project: str) -> Any:
        """List the regions in the catalog. The local Vertex also accepts requests for any other region."""
        return {"locations": [self.location(call, project, region) for region in catalog.standard().regions]}

    def location(self, call: Call, project: str, location: str) -> Any:
        if not REGION_NAME.fullmatch(location):
            raise ApiError("NOT_FOUND", f'location "{location}" doesn\'t exist; use a region such as us-central1')
        return {"name": f"projects/{project}/locations/{location}", "locationId": location}

    def disturb(self, call: Call, id: str, action: str) -> Any:
        """Simulate a fault in one replica of a job. This method isn't part of Google's API."""
        body = call.json()
        replica, seconds = body.get("replica"), body.get("seconds", 0)
        actions = [one for one in get_args(Action) if one not in IN_PYTHON]  # these must be set before the start
        if action not in actions:
            raise ApiError("NOT_FOUND", f'action "{action}" doesn\'t exist; use {", ".join(actions)}')
        if not isinstance(replica, str):
            raise invalid([Finding("replica", "isn't a string", "use a name such as workerpool0-0")])
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DISTURBANCE:
            raise invalid([Finding("seconds", f"isn't a number from 0 to {LONGEST_DISTURBANCE}", "change it")])
        jobs = {id_of(job["name"]): job for job in self.store.all("customJobs")}
        if id not in jobs:
            running = ", ".join(key for key, job in jobs.items() if job["state"] == "JOB_STATE_RUNNING")
            cure = f"the running jobs are {running}" if running else "no job is running"
            raise ApiError("NOT_FOUND", f'custom job "{id}" doesn\'t exist; {cure}')
        self.jobs.disturb(jobs[id]["name"], cast(Action, action), replica, float(seconds))
        return {}


def serve(context: Context, port: int, console: Console) -> None:
    """Serve until Ctrl-C or SIGTERM, and then stop all jobs.

    Raises FaultError if the state folder or port isn't usable.
    """
    import uvicorn  # imported late because tuning jobs that `run` starts don't need a server

    listener = _listener(port)
    endpoint = f"http://{ADDRESS}:{listener.getsockname()[1]}"
    vertex = Vertex(context, endpoint)
    introduction = INTRODUCTION.read_text(encoding="utf-8").format(endpoint=endpoint, context=context)
    console.print(introduction, markup=False, highlight=False)
    isolated = isolation(context.state_dir.buckets)
    if not isolated.layered:
        kind, place = ("overlays", "") if isolated.mounts else ("mounts", ", with buckets only under $GCS_MOUNT")
        console.print(f"This system doesn't support {kind}, so jobs write into this folder{place}", style="yellow")
    for path in vertex.store.unreadable:
        console.print(f"skipped {path}: the file doesn't contain a resource; remove it", style="yellow", markup=False)
    config = uvicorn.Config(
        Router(vertex.routes(), partial(shell.connect, vertex.jobs.open_shell)),
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
        console.print("stopping all jobs and their processes")
        vertex.close()


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        fault = os.strerror(error.errno or 0)
        raise FaultError(f"port {port}: the port can't be used ({fault}); use --port to choose another port") from None
