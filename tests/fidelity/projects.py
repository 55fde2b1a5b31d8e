"""Usages of other projects' clients, each in an environment of its own: python -m tests.fidelity.projects.

A script runs as a custom job, in whose replica the clients need no setting: they reach the local Vertex by their
default transport, as the account of the job.
"""

import ast
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.tests.vertex import custom_job, service
from tests.conftest import ROOT, kept_folder
from tests.fidelity.environments import environment

FOLDER = ROOT / "tests/fidelity/projects"
RECORD = ROOT / "tests/fidelity/projects.json"
SDK = "google-cloud-aiplatform==2.7.0"
SECONDS = 600.0  # for each script
ENTRY_POINT = '[commands]\n"us-docker.pkg.dev/p/r/train:1" = ["true"]\n'  # for a client that sends no command


@dataclass(frozen=True)
class Project:
    """A script, the packages that it needs, and where its calls are from."""

    script: str
    source: str
    packages: tuple[str, ...]

    @property
    def name(self) -> str:
        docstring = ast.get_docstring(ast.parse((FOLDER / self.script).read_text(encoding="utf-8"))) or ""
        return docstring.removesuffix(".")


PROJECTS = (
    Project(
        "airflow_hooks.py",
        "apache-airflow-providers-google 22.8.0: hooks/vertex_ai, and its system tests",
        ("apache-airflow==3.3.2", "apache-airflow-providers-google==22.8.0", SDK),
    ),
    Project("polars_files.py", "polars 2.1.0: Cloud storage", ("polars==2.1.0",)),
    Project(
        "prefect_worker.py", "prefect-gcp 0.6.22: workers/vertex.py", ("prefect==3.9.1", "prefect-gcp==0.6.22", SDK)
    ),
    Project("tensorstore_arrays.py", "tensorstore 0.1.86: gcs key-value store", ("tensorstore==0.1.86",)),
    Project("wandb_launch.py", "wandb 0.31.0: sdk/launch/runner/vertex_runner.py", ("wandb[launch]==0.31.0", SDK)),
    Project("xmanager_launch.py", "xmanager 0.8.5: cloud/vertex.py", ("xmanager==0.8.5.post1", SDK)),
    Project(
        "zenml_step.py",
        "zenml 0.98.0: integrations/gcp/step_operators/vertex_step_operator.py",
        ("zenml==0.98.0", "gcsfs==2026.10.1", "kfp==2.17.3", "google-cloud-storage", SDK),
    ),
)


def verdicts(folder: Path) -> dict[str, str]:
    """Run all scripts by a service in this folder; returns their verdicts by their names."""
    found = {}
    for project in PROJECTS:
        python = environment(kept_folder(f"project-{project.script.removesuffix('.py')}", folder), project.packages)
        with service(folder, "--grace-seconds", "0.5", settings=ENTRY_POINT) as vertex:
            name = vertex.create(custom_job(str(python), str(FOLDER / project.script)))
            ended = vertex.wait(name, seconds=SECONDS)
            works = ended["state"] == "JOB_STATE_SUCCEEDED"
            found[project.script] = "works" if works else f"fails: {vertex.log(name)[-2:]}"
    return found


def recorded() -> Mapping[str, str]:
    """Return the verdicts of the last run that was kept."""
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RECORD.write_text(f"{json.dumps(verdicts(Path(folder)), indent=2)}\n", encoding="utf-8")
