"""The command `submit`: show what will be sent to Vertex AI, ask, and send it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from google.api_core.exceptions import ServerError

from vertex_launch import settings
from vertex_launch.check import Examined
from vertex_launch.cli.cloud_options import CloudOptions
from vertex_launch.cli.following import again, detached, follow_to_end
from vertex_launch.cli.options import JobFile, SettingsOptions
from vertex_launch.cli.output import approved, console, errors, interrupted, report
from vertex_launch.cloud import preflight, revision, spelled
from vertex_launch.cloud import submit as cloud
from vertex_launch.cloud.logs import Log
from vertex_launch.cloud.preflight import Preflight
from vertex_launch.cloud.refusals import google_errors
from vertex_launch.cloud.service import NoAnswerError, Service, parent_of
from vertex_launch.job_resource import id_of
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, TuningJob


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(CloudOptions, SettingsOptions):
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


def submit(click: typer.Context, wanted: SubmitOptions) -> None:
    """Send a job to Vertex AI; shows what will be sent, and asks."""
    loaded = approved(wanted.job, wanted.settings())
    code = revision.labels(Path())
    labels = {**settings.typed_labels(wanted.label or ()), **code}
    if wanted.print:
        ours, endpoint = wanted.where()
        request, parent = cloud.request(loaded, ours, labels), parent_of(ours)
        console.print(spelled.CLIENTS[wanted.print](request, wanted.job, parent, endpoint), markup=False)
        return
    ours, service = wanted.cloud()
    if service.endpoint:
        console.print(f"to the local Vertex at {service.endpoint}, not to Google Cloud", markup=False)
    with interrupted("nothing was sent" if wanted.yes else "nothing was sent; --yes sends without a question"):
        with google_errors(ours):
            found = preflight.look(loaded, service, ours, code.get("git-revision", ""))
        request = cloud.request(loaded, ours, labels, found.images)
        examined = shown(loaded, request, found, ours)
        agreed = examined.passes(strict=False) and (wanted.yes or typer.confirm("Send it?"))
    if not agreed:
        raise typer.Exit(1)
    with google_errors(ours), signals_as_exceptions():
        name = send(request, service, ours)
    console.print(f"sent: {name}\n{service.page(name)}", markup=False)
    if follows(wanted.follow):
        raise typer.Exit(follow_to_end(service, ours, name, Log(service)))
    console.print(f"follow it with: {again(ours, 'logs', id_of(name), '--follow')}", markup=False)


def shown(job: Job | TuningJob, request: cloud.Request, found: Preflight, ours: Settings) -> Examined:
    """Print what will be sent, and what speaks against it."""
    console.print(cloud.summary(job, ours, found), markup=False)
    console.print(f"  labels   {described(request)}", markup=False)
    report(examined := Examined(job.path, job, found.findings))
    return examined


def described(request: cloud.Request) -> str:
    """The job's labels; one of them finds it, should the answer be lost."""
    return ", ".join(f"{key}={value}" for key, value in sorted(request.resource["labels"].items()))


def follows(asked: bool | None) -> bool:
    """Whether the job is followed: as asked, else where a person looks."""
    return sys.stdout.isatty() if asked is None else asked


def send(request: cloud.Request, service: Service, ours: Settings) -> str:
    """The name of the job; where no answer came, what became of the request is printed."""

    def came_of_it() -> str:
        return cloud.whereabouts(request, service, lambda name: detached(service, ours, name))

    try:
        return cloud.submit(request, service, lambda said: errors.print(said, markup=False))
    except KeyboardInterrupt:
        errors.print("interrupted before the answer came; looking for the job")
        errors.print(came_of_it(), markup=False)
        raise typer.Exit(130) from None
    except (ServerError, NoAnswerError):
        errors.print(came_of_it(), markup=False)
        raise
