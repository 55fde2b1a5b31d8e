"""Options shared by all commands that send requests to Vertex AI."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.completion import CompletionContext

from vertex_launch.cli.options import ProjectOptions
from vertex_launch.cloud import jobs
from vertex_launch.cloud.refusals import google_errors
from vertex_launch.cloud.service import PAGE_SIZE, Service, connect, require_local
from vertex_launch.job.job_resource import Resource
from vertex_launch.settings import Settings, for_local, require

MEANING = "The job's ID, name, or job file. A name or a job file selects the newest job with that name"
BRIEF_SECONDS = 3.0  # request timeout for shell completion


def sent_jobs(asked: CompletionContext) -> list[str]:
    """Return recent job names that start with the text typed so far.

    If the service doesn't respond, return an empty list.
    """
    with contextlib.suppress(Exception), CloudOptions().cloud() as service:
        names = (str(job.get("displayName")) for job in jobs.newest(replace(service, seconds=BRIEF_SECONDS), PAGE_SIZE))
        return [name for name in dict.fromkeys(names) if name.startswith(asked.incomplete)]
    return []


NamedJob = Annotated[str, Parameter(help=f"{MEANING}.", completer=sent_jobs)]


@dataclass(frozen=True, kw_only=True)
class CloudOptions(ProjectOptions):
    """The options that select a project and a region.

    If VERTEX_ENDPOINT is the URL of a local Vertex, commands use it instead of Google Cloud.
    """

    def where(self) -> tuple[Settings, str]:
        """Return the settings and the local Vertex's URL. If the command uses Google Cloud, the URL is empty."""
        settings, endpoint = self.settings(), os.environ.get("VERTEX_ENDPOINT", "")
        if endpoint:
            require_local(endpoint)
            settings = for_local(settings)
        require(settings, "project", "region")
        return settings, endpoint.rstrip("/")

    @contextlib.contextmanager
    def cloud(self) -> Iterator[Service]:
        """Yield the service. In the `with` block, convert Google Cloud errors into messages that suggest a fix."""
        settings, endpoint = self.where()
        with google_errors(settings):
            yield connect(settings, endpoint)


@dataclass(frozen=True)
class SentJobOptions(CloudOptions):
    job: Annotated[str | None, Parameter(help=f"{MEANING}. The default is the newest job.", completer=sent_jobs)] = None

    @contextlib.contextmanager
    def sent(self) -> Iterator[tuple[Service, Resource]]:
        """Yield the service and the selected job. Convert Google Cloud errors as the `cloud` method does."""
        with self.cloud() as service:
            yield service, jobs.find(service, self.job)
