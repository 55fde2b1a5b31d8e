"""The command `submit`: show what will be sent to Vertex AI, ask, and send it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from google.api_core.exceptions import ServerError

from vertex_launch import labels
from vertex_launch.check import Examined
from vertex_launch.cli.cloud_options import CloudOptions
from vertex_launch.cli.following import command, detached, follow_to_end
from vertex_launch.cli.options import JobFile, SettingsOptions
from vertex_launch.cli.output import approved, console, errors, interrupted, report
from vertex_launch.cloud import preflight, revision
from vertex_launch.cloud import submit as cloud
from vertex_launch.cloud.logs import Log
from vertex_launch.cloud.preflight import Preflight
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.job_resource import id_of
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.spec import Job, TuningJob


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(CloudOptions, SettingsOptions):
    """Send a job to Vertex AI; shows what will be sent, and asks."""

    job: JobFile
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before sending.")] = False
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A label of the job, which reaches the bill; can be repeated."),
    ] = None
    print: Annotated[
        Literal["gcloud", "curl", "python"] | None,
        typer.Option(help="Send nothing; print what sends the same."),
    ] = None
    follow: Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", help="Print its log until it ends; on a terminal that is the default."),
    ] = None

    def act(self) -> None:
        loaded = approved(self.job, self.settings())
        code = revision.labels(Path())
        own = {**labels.typed(self.label or []), **code}
        if self.print:
            settings, endpoint = self.where()
            request = cloud.request(loaded, settings, own)
            console.print(cloud.CLIENTS[self.print](request, self.job, settings, endpoint), markup=False)
            return
        with self.cloud() as service:
            if service.endpoint:
                console.print(f"to the local Vertex at {service.endpoint}, not to Google Cloud", markup=False)
            with interrupted("nothing was sent" if self.yes else "nothing was sent; --yes sends without a question"):
                checks = preflight.look(loaded, service, code.get("git-revision", ""))
                request = cloud.request(loaded, service.settings, own, checks.images)
                examined = shown(loaded, request, checks, service)
                if not (examined.passes(strict=False) and (self.yes or typer.confirm("Send it?"))):
                    raise typer.Exit(1)
            with signals_as_exceptions():
                name = send(request, service)
        console.print(f"sent: {name}\n{service.page(name)}", markup=False)
        if sys.stdout.isatty() if self.follow is None else self.follow:
            raise typer.Exit(follow_to_end(service, name, Log(service)))
        console.print(f"follow it with: {command(service, 'logs', id_of(name), '--follow')}", markup=False)


def shown(job: Job | TuningJob, request: cloud.Request, checks: Preflight, service: Service) -> Examined:
    """Print the request, with the labels that find its job should the answer be lost, and the findings against it."""
    console.print(cloud.summary(job, service.settings, checks), markup=False)
    labels = ", ".join(f"{key}={value}" for key, value in sorted(request.resource["labels"].items()))
    console.print(f"  labels   {labels}", markup=False)
    report(examined := Examined(job.path, job, checks.findings))
    return examined


def send(request: cloud.Request, service: Service) -> str:
    """Return the name of the job; where no answer came, print what became of the request."""

    def outcome() -> str:
        return cloud.whereabouts(request, service, lambda name: detached(service, name))

    try:
        return cloud.submit(request, service, lambda message: errors.print(message, markup=False))
    except KeyboardInterrupt:
        errors.print("interrupted before the answer came; looking for the job")
        errors.print(outcome(), markup=False)
        raise typer.Exit(130) from None
    except (ServerError, NoAnswerError):
        errors.print(outcome(), markup=False)
        raise
