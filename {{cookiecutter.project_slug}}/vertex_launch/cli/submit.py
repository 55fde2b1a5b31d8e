"""The command `submit`: show what will be sent to Vertex AI, ask, and send it."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from vertex_launch import settings
from vertex_launch import submit as cloud
from vertex_launch.cli.options import JobFile, SettingsOptions, app_of
from vertex_launch.cli.output import approved, console, errors
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.refusals import google_errors


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(SettingsOptions):
    job: JobFile
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before sending.")] = False


def submit(click: typer.Context, wanted: SubmitOptions) -> None:
    """Send a job to Vertex AI; shows what will be sent, and asks."""
    ours = wanted.settings()
    endpoint = os.environ.get("VERTEX_ENDPOINT", "")  # a service on this machine in place of Google's
    if endpoint:
        cloud.require_local(endpoint)
    else:
        settings.require(ours, "project", "region")
    loaded = approved(wanted.job, ours)
    with google_errors(ours):
        client = cloud.client(ours, endpoint)
    if endpoint:
        ours = settings.for_local(ours)
        console.print(f"to the local Vertex at {endpoint}, not to Google Cloud", markup=False)
    request = cloud.request(loaded, ours)
    console.print(cloud.summary(loaded, ours), markup=False)
    console.print(f"  label    {cloud.label(request)}, to find the job by if its answer is lost", markup=False)
    if not (wanted.yes or typer.confirm("Send it?")):
        raise typer.Exit(1)
    with google_errors(ours), signals_as_exceptions():
        try:
            name = cloud.submit(request, client, lambda said: errors.print(said, markup=False))
        except KeyboardInterrupt:
            errors.print("interrupted before the answer came; looking for the job")
            errors.print(cloud.whereabouts(request, client, endpoint), markup=False)
            raise typer.Exit(130) from None
    console.print(f"sent: {name}\n{cloud.page(name, endpoint)}", markup=False)


app = app_of(submit)
