"""The command `package`: pack a folder for jobs with a pythonPackageSpec."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vertex_launch.cli.options import Bucket, StandIns, state_dir
from vertex_launch.cli.output import console
from vertex_launch.local.run_job import shown
from vertex_launch.package import DIST, build, place
from vertex_launch.settings import require


@dataclass(frozen=True, kw_only=True)
class PackageOptions(StandIns):
    """Pack a folder for a job with a pythonPackageSpec, and say how to send the package to the bucket."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with pyproject.toml.")] = Path()
    bucket: Bucket = ""

    def act(self) -> None:
        settings = self.settings()
        require(settings, "bucket")
        made = build(self.folder, Path(DIST))
        copy = place(made, settings.bucket, state_dir().buckets)
        console.print(f"{shown(made.file)}, and for the local Vertex {shown(copy)}", markup=False)
        console.print(f"send it: gcloud storage cp {shown(made.file)} {made.address(settings.bucket)}", markup=False)
