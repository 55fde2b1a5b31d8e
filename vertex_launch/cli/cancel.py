"""The command `cancel`: stop a job."""

from dataclasses import dataclass
from typing import Annotated

import typer

from vertex_launch.cli.cloud_options import CloudOptions, NamedJob
from vertex_launch.cli.following import again, headline
from vertex_launch.cli.output import console, interrupted
from vertex_launch.cloud import jobs
from vertex_launch.job_resource import ENDED, id_of, moment, state
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import clock


@dataclass(frozen=True, kw_only=True)
class CancelOptions(CloudOptions):
    """Stop a job; its checkpoints stay, and a job sent again with the same output folder resumes from them."""

    job: NamedJob
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False

    def act(self) -> None:
        told = "nothing was stopped" if self.yes else "nothing was stopped; --yes stops without a question"
        with self.cloud() as service, signals_as_exceptions():
            with interrupted(told):
                job = jobs.running(service, self.job)
                name, id = job["name"], id_of(job["name"])
                console.print(headline(job, service))
                console.print(f"{name}, created {clock(moment(job, 'createTime'))}", markup=False)
                if state(job) in ENDED:
                    console.print("it has ended already; nothing was done")
                    return
                if not (self.yes or typer.confirm("Stop it?")):
                    raise typer.Exit(1)
            with interrupted(f"whether it was stopped is not known; see: {again(service, 'status', id)}"):
                service.cancel(name)
        console.print(f"asked to stop; see it end with: {again(service, 'logs', id, '--follow')}", markup=False)
