"""Spell the request of a job as others would send it: a gcloud command, a curl command, or a Python script."""

import json
import pprint
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from vertex_launch.cloud.service import host_of, parent_of
from vertex_launch.cloud.submit import NAMES, Request
from vertex_launch.errors import FaultError
from vertex_launch.job_resource import run_spec
from vertex_launch.settings import Settings

WIDTH = 116
PYTHON = """\
import json

from google.cloud import aiplatform_v1{also}

JOB = {job}

client = aiplatform_v1.JobServiceClient({arguments})
job = aiplatform_v1.{kind}.from_json(json.dumps(JOB))
print(client.create_{field}(parent={parent!r}, {field}=job).name)"""


def gcloud(request: Request, file: Path, ours: Settings, endpoint: str) -> str:
    """The command that sends the same; raises FaultError where gcloud cannot."""
    job = request.resource
    if {} in run_spec(job)["workerPoolSpecs"]:
        raise FaultError(f"{file}: gcloud refuses the empty pool, which the service takes; write --print curl")
    labels = ",".join(f"{key}={value}" for key, value in job["labels"].items())
    words = ["gcloud", "ai", NAMES[request.collection][0], "create"]
    words += [f"--project={ours.project}", f"--region={ours.region}", f"--display-name={job['displayName']}"]
    words += [f"--config={file}", f"--labels={labels}"]
    if account := run_spec(job).get("serviceAccount"):
        words.append(f"--service-account={account}")
    there = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM={endpoint}/ CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true "
    return f"{there if endpoint else ''}{shlex.join(words)}"


def curl(request: Request, file: Path, ours: Settings, endpoint: str) -> str:
    """The command that sends the same, from any shell."""
    address = f"{endpoint or f'https://{host_of(ours)}'}/v1/{parent_of(ours)}/{request.collection}"
    login = "" if endpoint else ' -H "Authorization: Bearer $(gcloud auth print-access-token)"'
    body = json.dumps(request.resource, indent=2)
    return f"curl -X POST{login} -H 'Content-Type: application/json' {address} -d {shlex.quote(body)}"


def python(request: Request, file: Path, ours: Settings, endpoint: str) -> str:
    """The script that sends the same with google-cloud-aiplatform."""
    _, kind, field = NAMES[request.collection]
    options = {"api_endpoint": endpoint or host_of(ours)}
    local = 'transport="rest", credentials=AnonymousCredentials(), ' if endpoint else ""
    return PYTHON.format(
        also="\nfrom google.auth.credentials import AnonymousCredentials" if endpoint else "",
        job=pprint.pformat(dict(request.resource), width=WIDTH, sort_dicts=False),
        arguments=f"{local}client_options={options!r}",
        kind=kind,
        field=field,
        parent=parent_of(ours),
    )


Spell = Callable[[Request, Path, Settings, str], str]
CLIENTS: Mapping[str, Spell] = {"gcloud": gcloud, "curl": curl, "python": python}
