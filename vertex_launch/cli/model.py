"""The command `model`: fetch the model of a job."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.output import console
from vertex_launch.cloud.outputs import fetch_model, model_address
from vertex_launch.plan.formatting import size
from vertex_launch.printable import printable


@dataclass(frozen=True, kw_only=True)
class ModelOptions(SentJobOptions):
    """Copy the model that a job has exported, or that of the best trial of a search, from the bucket to a folder."""

    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A new folder; else NAME-model.")] = None

    def act(self) -> None:
        with self.sent() as (service, job):
            target = self.to or Path(f"{Path(str(job.get('displayName'))).name or 'job'}-model")
            for name, length in fetch_model(job, service, target):
                console.print(f"  {printable(name)}  {size(length)}", markup=False)
        console.print(f"the model of {model_address(job)} is in {target}", markup=False)
