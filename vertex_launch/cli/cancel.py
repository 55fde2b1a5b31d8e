"""The command `cancel`: stop a job."""

from dataclasses import dataclass
from typing import Annotated

import typer

from vertex_launch.cli.cloud_options import CloudOptions, NamedJob
from vertex_launch.cli.following import again, headline
from vertex_launch.cli.output import console, interrupted
from vertex_launch.cloud import jobs
from vertex_launch.cloud.refusals import google_errors
from vertex_launch.job_resource import ENDED, id_of, moment, state
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import clock


@dataclass(frozen=True, kw_only=True)
class CancelOptions(CloudOptions):
    job: NamedJob
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False


def cancel(click: typer.Context, wanted: CancelOptions) -> None:
    """Stop a job; its checkpoints stay, and a job sent again with the same output folder resumes from them."""
    ours, service = wanted.cloud()
    told = "nothing was stopped" if wanted.yes else "nothing was stopped; --yes stops without a question"
    with google_errors(ours), signals_as_exceptions():
        with interrupted(told):
            job = jobs.running(service, wanted.job)
            console.print(headline(job, service, ours), soft_wrap=True)
            console.print(f"{job['name']}, created {clock(moment(job, 'createTime'))}", markup=False)
            if state(job) in ENDED:
                console.print("it has ended already; nothing was done")
                return
            if not (wanted.yes or typer.confirm("Stop it?")):
                raise typer.Exit(1)
        with interrupted(f"whether it was stopped is not known; see: {again(ours, 'status', id_of(job['name']))}"):
            service.cancel(job["name"])
    follow = again(ours, "logs", id_of(job["name"]), "--follow")
    console.print(f"asked to stop; see it end with: {follow}", markup=False)
