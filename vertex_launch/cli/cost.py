"""The command `cost`: what a job has cost so far."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.following import headline
from vertex_launch.cli.output import console, print_table
from vertex_launch.cloud import jobs
from vertex_launch.cloud.jobs import Cost
from vertex_launch.errors import FaultError
from vertex_launch.plan.formatting import duration, usd


@dataclass(frozen=True, kw_only=True)
class CostOptions(SentJobOptions):
    """Say what a job has cost so far, by list prices and the time of its machines."""

    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False

    def act(self) -> None:
        with self.sent() as (service, job):
            found = jobs.cost(job, service.settings.catalog, datetime.now(UTC))
        if found is None:
            raise FaultError(f"{job['name']}: a price is not known; add yours under [prices] in vertex.toml")
        price = found.per_hour
        if self.json:
            print(json.dumps({"job": job["name"], "usd": found.usd, "hours": found.hours, "per_hour": price.usd}))
            return
        console.print(headline(job, service))
        print_table(table(found))
        console.print(f"{price.certainty}: {price.source}; what is billed may differ", markup=False)


def table(cost: Cost) -> Table:
    """A row for each pool, and their sum."""
    shown = Table("machines", "per hour", "for", "about", box=None, header_style="bold")
    time = duration(3600 * cost.hours)
    for row in cost.rows:
        shown.add_row(str(row), usd(row.usd or 0), time, usd(cost.hours * (row.usd or 0)))
    if len(cost.rows) > 1:
        shown.add_row("in all", usd(cost.per_hour.usd), time, usd(cost.usd))
    return shown
