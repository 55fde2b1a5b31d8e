"""The `model` and `tensorboard` commands, which read the files that a job wrote to its bucket."""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import Port
from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError

from vertex_launch.cli.cloud_options import SentJobOptions
from vertex_launch.cli.options import state_dir
from vertex_launch.cli.output import console
from vertex_launch.cloud.outputs import copy_curves, fetch_model, model_address
from vertex_launch.cloud.service import NoAnswerError
from vertex_launch.errors import FaultError, not_installed
from vertex_launch.job.job_resource import ENDED, id_of, state
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import size
from vertex_launch.untrusted.printable import printable

SECONDS = 10.0  # between two reads of the bucket
PASSING = (GoogleAPIError, GoogleAuthError, NoAnswerError, OSError)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(SentJobOptions):
    to: Annotated[Path | None, Parameter(metavar="FOLDER", help="The folder to create. The default is NAME-model.")] = (
        None
    )

    def act(self) -> None:
        with self.sent() as (service, job):
            target = self.to or Path(f"{Path(str(job.get('displayName'))).name or 'job'}-model")
            for name, length in fetch_model(job, service, target):
                console.print(f"  {printable(name)}  {size(length)}")
        console.print(f"the model from {model_address(job)} is in {target}")


@dataclass(frozen=True, kw_only=True)
class TensorboardOptions(SentJobOptions):
    port: Annotated[Port, Parameter(help="Port of the TensorBoard page; 0 selects a free port.")] = 6006

    def act(self) -> None:
        if missing := [*not_installed("tensorboard", "the command tensorboard")]:
            raise FaultError(*missing)
        with self.sent() as (service, job):
            folder = state_dir().folder / "curves" / (id := id_of(job["name"]))
            if not copy_curves(job, service, folder):
                fault = f"is {state(job)} and has no curves{'' if state(job) in ENDED else ' yet'}"
                raise FaultError(f"job {id} {fault}; trainers must write TensorBoard logs to AIP_TENSORBOARD_LOG_DIR")
        console.print(f"the logs of {job.get('displayName')} are in {folder}; press Ctrl-C to stop TensorBoard")
        page = ("--logdir", str(folder), "--host", "127.0.0.1", "--port", str(self.port))
        command = (sys.executable, "-m", "tensorboard.main", *page)
        with contextlib.suppress(KeyboardInterrupt), signals_as_exceptions(), subprocess.Popen(command) as shown:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        raise SystemExit(shown.wait(SECONDS))
                    with contextlib.suppress(*PASSING):  # the next attempt may succeed
                        copy_curves(job, service, folder)
            finally:
                shown.terminate()
