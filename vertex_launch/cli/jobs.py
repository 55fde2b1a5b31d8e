"""The command `jobs`: what was sent, and how it stands."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from vertex_launch.catalog import Catalog
from vertex_launch.cli.cloud_options import CloudOptions
from vertex_launch.cli.output import console, print_table
from vertex_launch.cloud import jobs as cloud
from vertex_launch.job_resource import KINDS, Resource, collection_of, id_of, moment, state, style
from vertex_launch.plan.formatting import duration, usd
from vertex_launch.printable import printable

State = Literal["QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED", "EXPIRED"]


@dataclass(frozen=True, kw_only=True)
class JobsOptions(CloudOptions):
    """List the newest jobs, searches and training pipelines: how each stands, and what it has cost."""

    state: Annotated[State | None, typer.Option(help="Only those in this state.", case_sensitive=False)] = None
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many, the newest first.")] = 20
    json: Annotated[bool, typer.Option("--json", help="The resources themselves, as a list.")] = False

    def act(self) -> None:
        with self.cloud() as service:
            found = cloud.newest(service, self.limit, self.state or "")
        if self.json:
            print(json.dumps(found, indent=2))
        elif found:
            print_table(table(found, service.settings.catalog))
        else:
            console.print(f"{service.place} has no {f'{self.state} ' if self.state else ''}job", markup=False)


def table(found: list[Resource], catalog: Catalog) -> Table:
    """One row for each job."""
    now = datetime.now(UTC)
    number, stands = (Column(name, no_wrap=True, min_width=width) for name, width in (("job", 19), ("state", 9)))
    shown = Table(number, "name", stands, "created", "waited", "ran", "about", box=None, header_style="bold")
    for job in found:
        cost, created = cloud.cost(job, catalog, now), moment(job, "createTime")
        kind = "" if collection_of(job["name"]) == "customJobs" else f" ({KINDS[collection_of(job['name'])]})"
        shown.add_row(
            id_of(job["name"]),
            Text(printable(str(job.get("displayName", ""))) + kind),
            Text(state(job), style=style(job)),
            f"{created.astimezone():%Y-%m-%d %H:%M}" if created else "",
            duration(cloud.waited(job, now)),
            duration(cloud.ran(job, now)) if job.get("startTime") else "",
            usd(cost.usd) if cost else "?",
        )
    return shown
