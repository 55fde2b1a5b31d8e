"""The command `emulate`: start the local Vertex, or disturb a replica of one that runs."""

import json
import math
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from vertex_launch import program, settings
from vertex_launch.cli.local_options import LocalOptions
from vertex_launch.cli.output import console
from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import id_of
from vertex_launch.local.running.context import Options

REQUEST_SECONDS = 30
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine

app = typer.Typer(name="emulate", invoke_without_command=True, add_completion=False)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A custom job's id, the last part of its name.")]
ReplicaName = Annotated[str, typer.Argument(metavar="REPLICA", help="Such as workerpool1-0.")]
Seconds = Annotated[float, typer.Argument(min=0)]

# A panel of its own, because a flag with two names leaves too little room beside long ones.
_as_the_cloud = partial(typer.Option, rich_help_panel="How machines behave")


def _seconds(meaning: str) -> Any:
    return _as_the_cloud(min=0, metavar="S", help=f"Seconds. {meaning}")


@app.callback(result_callback=lambda wanted, **_: wanted and wanted.act())  # None where a command of it was called
@dataclass(frozen=True, kw_only=True)
class EmulateOptions(LocalOptions):
    """Run a local Vertex AI for gcloud and the SDK; its commands disturb the replicas of a job."""

    click: typer.Context
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Of 127.0.0.1; 0 takes a free one.")] = 8911
    capacity: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="Replicas at once, 16, or REGION=N; further jobs are queued. Can be repeated."),
    ] = None
    provision_seconds: Annotated[float, _seconds("Until a job's machines arrive.")] = 0
    grace_seconds: Annotated[float, _seconds("Between SIGTERM and SIGKILL.")] = 5
    reducers_as_ps: Annotated[bool, _as_the_cloud(help="List reducers as ps in TF_CONFIG.")] = True

    def __post_init__(self) -> None:
        self.click.obj = self.state_dir

    def act(self) -> None:
        for name in ("provision_seconds", "grace_seconds"):
            if not math.isfinite(seconds := getattr(self, name)):
                raise FaultError(f"--{name.replace('_', '-')} is {seconds}; give a finite number of seconds")
        from vertex_launch.local import server  # only here: `check` and `run` need no web server

        everywhere, regions = capacities(self.capacity or [])
        options = Options(
            capacity=everywhere,
            region_capacity=regions,
            provision=self.provision_seconds,
            grace=self.grace_seconds,
            reducers_as_ps=self.reducers_as_ps,
            retry_user_errors=self.retry_user_errors,
        )
        context = self.context(options)
        server.serve(replace(context, settings=settings.for_local(context.settings)), self.port, console)


def capacities(words: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return how many replicas may run at once, in all and by region; raises FaultError."""
    everywhere, regions = Options.capacity, dict[str, int]()
    for word in words:
        region, _, count = word.rpartition("=")
        if not count.isdecimal() or (not region and int(count) < 1):
            raise FaultError(f'--capacity: "{word}" is no number of replicas; write such as 16, or us-central1=0')
        if region:
            regions[region] = int(count)
        else:
            everywhere = int(count)
    return everywhere, regions


@app.command("kill", help="End a replica at once, as when its memory is exhausted.")
@app.command(
    "preempt", help="Take a SPOT machine away: SIGTERM, the grace time, SIGKILL; then the whole job starts again."
)
def disturb_now(context: typer.Context, job: JobId, replica: ReplicaName) -> None:
    disturb(context, job, replica, 0)


@app.command("late", help="Let a replica's next start come some seconds later, as a machine that is hard to get.")
@app.command("freeze", help="Stop a replica for some seconds, as a machine that hangs.")
def disturb(context: typer.Context, job: JobId, replica: ReplicaName, seconds: Seconds) -> None:
    """Ask the service in the folder of --state-dir to do what the command is called; raises FaultError."""
    from vertex_launch.local.api.store import endpoint_of

    endpoint, action = endpoint_of(context.obj), context.info_name
    if not endpoint:
        raise FaultError(f"{context.obj}: no local Vertex works here; start one with {program.NAME} emulate")
    body = json.dumps({"replica": replica, "seconds": seconds}).encode()
    url = f"{endpoint}/control/{quote(id_of(job), safe='')}/{action}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with DIRECTLY.open(request, timeout=REQUEST_SECONDS):
            console.print(f"{action}: {replica} of {job}")
    except urllib.error.HTTPError as error:
        raise FaultError(json.loads(error.read())["error"]["message"]) from None
    except urllib.error.URLError as error:
        raise FaultError(f"{endpoint}: {error.reason}; is the service still there?") from None
