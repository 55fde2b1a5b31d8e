"""The options of commands that speak with Vertex AI."""

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

MEANING = "Its number, its name or its job file, which mean the newest of that name"
BRIEF_SECONDS = 3.0  # for an answer while somebody waits behind TAB


def sent_jobs(asked: CompletionContext) -> list[str]:
    """Return the names of the newest jobs that begin so, for the shell; none where the service does not answer."""
    with contextlib.suppress(Exception), CloudOptions().cloud() as service:
        names = (str(job.get("displayName")) for job in jobs.newest(replace(service, seconds=BRIEF_SECONDS), PAGE_SIZE))
        return [name for name in dict.fromkeys(names) if name.startswith(asked.incomplete)]
    return []


NamedJob = Annotated[str, Parameter(help=f"{MEANING}.", completer=sent_jobs)]


@dataclass(frozen=True, kw_only=True)
class CloudOptions(ProjectOptions):
    """Which project and region; VERTEX_ENDPOINT may name a local Vertex in place of Google's."""

    def where(self) -> tuple[Settings, str]:
        """Return the settings, with project and region, and the address of the local Vertex, "" for Google's."""
        settings, endpoint = self.settings(), os.environ.get("VERTEX_ENDPOINT", "")
        if endpoint:
            require_local(endpoint)
            settings = for_local(settings)
        require(settings, "project", "region")
        return settings, endpoint.rstrip("/")

    @contextlib.contextmanager
    def cloud(self) -> Iterator[Service]:
        """Yield the service, for a block in which a refusal of Google's becomes a sentence with its cure."""
        settings, endpoint = self.where()
        with google_errors(settings):
            yield connect(settings, endpoint)


@dataclass(frozen=True)
class SentJobOptions(CloudOptions):
    job: Annotated[str | None, Parameter(help=f"{MEANING}; without it the newest of all.", completer=sent_jobs)] = None

    @contextlib.contextmanager
    def sent(self) -> Iterator[tuple[Service, Resource]]:
        """Yield the service and the named job; a refusal in the block becomes a sentence, as in `cloud`."""
        with self.cloud() as service:
            yield service, jobs.find(service, self.job)
