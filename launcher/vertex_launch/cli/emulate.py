"""The `emulate` command, which starts the local Vertex or simulates a replica failure in a running local Vertex."""

import json
import math
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from cyclopts import Group, Parameter
from cyclopts.types import Port
from cyclopts.validators import Number

from vertex_launch import program, settings
from vertex_launch.cli.local_options import LocalOptions
from vertex_launch.cli.output import console
from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import id_of
from vertex_launch.local.running.context import Options

REQUEST_SECONDS = 30
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy can't reach this machine

Action = Literal["preempt", "kill", "freeze", "late"]
ACTIONS = """
- preempt simulates the loss of a SPOT machine: SIGTERM, the grace period, SIGKILL, and a restart of the job.
- kill stops a replica immediately, as if the replica had run out of memory.
- freeze pauses a replica for SECONDS, like a hung machine.
- late delays a replica's next start by SECONDS, as if machines were scarce."""
HOW = Group("Machine behavior")


def _seconds(meaning: str) -> Parameter:
    return Parameter(validator=Number(gte=0), metavar="S", group=HOW, help=f"Seconds {meaning}")


@dataclass(frozen=True)
class EmulateOptions(LocalOptions):
    action: Annotated[Action | None, Parameter(help=ACTIONS, show_choices=False)] = None
    job: Annotated[str, Parameter(help="The ID of the custom job, from the end of its resource name.")] = ""
    replica: Annotated[str, Parameter(help="The replica, such as workerpool1-0.")] = ""
    seconds: Annotated[
        float | None, Parameter(validator=Number(gte=0), help="The duration of a freeze or a delay.")
    ] = None
    _: KW_ONLY
    port: Annotated[Port, Parameter(metavar="N", help="Port on 127.0.0.1; 0 selects a free port.")] = 8911
    capacity: Annotated[
        list[str] | None,
        Parameter(
            metavar="N",
            help="Maximum number of running replicas (default 16). To limit a region, use REGION=N. Can be repeated.",
        ),
    ] = None
    provision_seconds: Annotated[float, _seconds("until a job's machines are ready.")] = 0
    grace_seconds: Annotated[float, _seconds("between SIGTERM and SIGKILL.")] = 5
    reducers_as_ps: Annotated[
        bool, Parameter(negative="--no-reducers-as-ps", help="List reducers as ps in TF_CONFIG.", group=HOW)
    ] = True

    def act(self) -> None:
        if self.action:
            timed = self.action in ("freeze", "late")
            if not self.replica or timed is (self.seconds is None):
                raise FaultError(f"{self.action} requires {'JOB REPLICA SECONDS' if timed else 'only JOB and REPLICA'}")
            disturb(self.state_dir, self.action, self.job, self.replica, self.seconds or 0)
            return
        for name in ("provision_seconds", "grace_seconds"):
            if not math.isfinite(seconds := getattr(self, name)):
                raise FaultError(f"--{name.replace('_', '-')} is {seconds}; use a finite number of seconds")
        from vertex_launch.local import server  # `check` and `run` don't need the web server

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
    """Return the maximum number of replicas that can run simultaneously, both in total and per region.

    Raises FaultError if a `--capacity` value isn't valid.
    """
    everywhere, regions = Options.capacity, dict[str, int]()
    for word in words:
        region, _, count = word.rpartition("=")
        if not count.isdecimal() or (not region and int(count) < 1):
            raise FaultError(f'--capacity: "{word}" is not a valid capacity; use a value such as 16 or us-central1=0')
        if region:
            regions[region] = int(count)
        else:
            everywhere = int(count)
    return everywhere, regions


def disturb(state_dir: Path, action: Action, job: str, replica: str, seconds: float) -> None:
    """Ask the local Vertex whose state is in `state_dir` to simulate a replica failure.

    Raises FaultError if the request fails.
    """
    from vertex_launch.local.api.store import endpoint_of

    endpoint = endpoint_of(state_dir)
    if not endpoint:
        raise FaultError(f"{state_dir}: the local Vertex isn't running; start it with {program.NAME} emulate")
    body = json.dumps({"replica": replica, "seconds": seconds}).encode()
    url = f"{endpoint}/control/{quote(id_of(job), safe='')}/{action}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with DIRECTLY.open(request, timeout=REQUEST_SECONDS):
            console.print(f"{action}: {replica} of {job}")
    except urllib.error.HTTPError as error:
        raise FaultError(json.loads(error.read())["error"]["message"]) from None
    except urllib.error.URLError as error:
        raise FaultError(f"{endpoint}: {error.reason}; check that the local Vertex is still running") from None
