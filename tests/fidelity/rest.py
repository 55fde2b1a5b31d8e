"""REST, as curl and clients of other languages use it."""

import json

import pytest
import requests

from launcher.tests.vertex import PARENT, Json, Service, custom_job, script
from tests.fidelity.usages import DOCS, SERVING, rest, usage

V1, BETA = f"v1/{PARENT}", f"v1beta1/{PARENT}"
JOB = custom_job("echo", "trained")
NODE = "googleapis/nodejs, google-cloud-aiplatform: samples"
JAVA = "googleapis/java-aiplatform: samples/snippets"
DOTNET = "googleapis/google-cloud-dotnet: Google.Cloud.AIPlatform.V1"


def error(answer: requests.Response) -> Json:
    body: Json = answer.json()["error"]
    return body


@usage(f"{DOCS}: Create custom training jobs, curl")
def job(vertex: Service) -> None:
    """Create a custom job with the request in the documentation, and get it."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1},
        "replicaCount": 1,
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
        "containerSpec": {"imageUri": "image", "command": ["true"], "args": []},
    }
    spec = {"workerPoolSpecs": [pool], "scheduling": {"timeout": "600s"}}
    created = rest(vertex, "POST", f"{V1}/customJobs", {"displayName": "curl", "jobSpec": spec, "labels": {"a": "b"}})
    vertex.wait(created["name"], "SUCCEEDED")
    assert rest(vertex, "GET", f"v1/{created['name']}")["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] == "1"


@usage(f"{DOCS}: Create custom training jobs, Python package, curl")
def package_job(vertex: Service) -> None:
    """Create a job with a Python package that doesn't exist in the bucket."""
    package = {"executorImageUri": "image", "packageUris": ["gs://b/none.tar.gz"], "pythonModule": "task"}
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1, "pythonPackageSpec": package}
    body = {"displayName": "package", "jobSpec": {"workerPoolSpecs": [pool]}}
    name = rest(vertex, "POST", f"{V1}/customJobs", body)["name"]
    assert "gs://b/none.tar.gz" in vertex.wait(name, "FAILED")["error"]["message"]


@usage(f"{DOCS}: Method customJobs.list")
def jobs_listed(vertex: Service) -> None:
    """List jobs with a filter, an order, a page size and a field mask."""
    for name in ("rest-1", "rest-2"):
        rest(vertex, "POST", f"{V1}/customJobs", JOB | {"displayName": name, "labels": {"kind": "listed"}})
    query = {"filter": "labels.kind=listed", "orderBy": "displayName", "pageSize": "1", "readMask": "displayName"}
    first = rest(vertex, "GET", f"{V1}/customJobs", **query)
    assert first["customJobs"] == [{"displayName": "rest-1"}]
    second = rest(vertex, "GET", f"{V1}/customJobs", **query, pageToken=first["nextPageToken"])
    assert second == {"customJobs": [{"displayName": "rest-2"}]}


@usage(f"{DOCS}: Method customJobs.cancel")
def job_cancelled(vertex: Service) -> None:
    """Cancel a job with an empty body."""
    name = rest(vertex, "POST", f"{V1}/customJobs", custom_job("sleep", "600"))["name"]
    assert rest(vertex, "POST", f"v1/{name}:cancel", {}) == {}
    vertex.wait(name, "CANCELLED")


@usage(f"{DOCS}: Method customJobs.delete")
def job_deleted(vertex: Service) -> None:
    """Delete a job, and poll the operation until it is done."""
    name = rest(vertex, "POST", f"{V1}/customJobs", JOB)["name"]
    vertex.wait(name)
    operation = rest(vertex, "DELETE", f"v1/{name}")
    assert rest(vertex, "GET", f"v1/{operation['name']}")["done"]


@usage(f"{DOCS}: Hyperparameter tuning, curl")
def tuning(vertex: Service) -> None:
    """Create a tuning job with the request in the documentation."""
    report = "import hypertune; hypertune.HyperTune().report_hyperparameter_tuning_metric('loss', 1.0)"
    metrics = [{"metricId": "loss", "goal": "MINIMIZE"}]
    rate = {"parameterId": "lr", "scaleType": "UNIT_LOG_SCALE", "doubleValueSpec": {"minValue": 0.01, "maxValue": 1}}
    body = {"displayName": "curl", "maxTrialCount": 1, "parallelTrialCount": 1}
    body |= {
        "studySpec": {"metrics": metrics, "parameters": [rate]},
        "trialJobSpec": custom_job(*script(report))["jobSpec"],
    }
    name = rest(vertex, "POST", f"{V1}/hyperparameterTuningJobs", body)["name"]
    (trial,) = vertex.wait(name, "SUCCEEDED")["trials"]
    assert trial["finalMeasurement"]["metrics"] == [{"metricId": "loss", "value": 1.0}]
    assert trial["measurements"] == [trial["finalMeasurement"]]
    assert float(trial["finalMeasurement"]["elapsedDuration"].removesuffix("s")) > 0


@usage(f"{DOCS}: Create training pipelines, curl")
def pipeline(vertex: Service) -> None:
    """Create a training pipeline with the request in the documentation."""
    task = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
    body = {"displayName": "curl", "trainingTaskDefinition": task, "trainingTaskInputs": JOB["jobSpec"]}
    name = rest(vertex, "POST", f"{V1}/trainingPipelines", body)["name"]
    assert vertex.wait(name, "SUCCEEDED")["trainingTaskMetadata"]["backingCustomJob"].startswith(PARENT)


@usage(f"{DOCS}: Create a dataset, curl")
def dataset(vertex: Service) -> None:
    """Create a dataset, which returns an operation."""
    schema = "gs://google-cloud-aiplatform/schema/dataset/metadata/image_1.0.0.yaml"
    operation = rest(vertex, "POST", f"{V1}/datasets", {"displayName": "curl", "metadataSchemaUri": schema})
    assert operation["done"]
    assert operation["response"]["name"].startswith(f"{PARENT}/datasets/")


@usage(f"{DOCS}: Import models, curl")
def model(vertex: Service) -> None:
    """Upload a model with the request in the documentation."""
    body = {"model": {"displayName": "curl", "containerSpec": {"imageUri": SERVING}}}
    operation = rest(vertex, "POST", f"{V1}/models:upload", body)
    assert operation["response"]["model"].startswith(f"{PARENT}/models/")


@usage(f"{DOCS}: Method customJobs.create, v1beta1")
def beta(vertex: Service) -> None:
    """Create a job with v1beta1, as gcloud beta does."""
    name = rest(vertex, "POST", f"{BETA}/customJobs", JOB)["name"]
    assert rest(vertex, "GET", f"v1beta1/{name}")["displayName"] == "job"


@usage(f"{DOCS}: MachineSpec, v1beta1", absent="exists only in v1beta1")
def beta_driver(vertex: Service) -> None:
    """Request a version of the GPU driver, which only v1beta1 supports."""
    wanted = json.loads(json.dumps(JOB))
    wanted["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["minGpuDriverVersion"] = "535.104.06"
    rest(vertex, "POST", f"{BETA}/customJobs", wanted)


@usage(f"{DOCS}: API errors")
def wrong_field(vertex: Service) -> None:
    """Get an error with the place of a misspelled field."""
    body = {"displayName": "wrong", "jobSpec": {"workerPoolSpec": []}}
    answer = requests.post(f"{vertex.endpoint}/{V1}/customJobs", json=body, timeout=60)
    assert (answer.status_code, error(answer)["status"]) == (400, "INVALID_ARGUMENT")
    assert error(answer)["details"][0]["@type"] == "type.googleapis.com/google.rpc.BadRequest"


@usage(f"{DOCS}: API errors")
def unknown_resource(vertex: Service) -> None:
    """Get NOT_FOUND for an unknown job."""
    answer = requests.get(f"{vertex.endpoint}/{V1}/customJobs/1", timeout=60)
    assert (answer.status_code, error(answer)["status"]) == (404, "NOT_FOUND")


@usage(f"{DOCS}: ProtoJSON Format, field names")
def snake_case(vertex: Service) -> None:
    """Use snake_case keys and nulls in a job, as protobuf's JSON format permits."""
    container = {"image_uri": "image", "command": ["true"]}
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": "1", "container_spec": container}
    body = {"display_name": "snake", "job_spec": {"worker_pool_specs": [pool], "network": None}}
    assert rest(vertex, "POST", f"{V1}/customJobs", body)["displayName"] == "snake"


@usage(f"{DOCS}: System parameters, fields")
def some_fields(vertex: Service) -> None:
    """Request selected fields of a response."""
    name = rest(vertex, "POST", f"{V1}/customJobs", JOB)["name"]
    assert rest(vertex, "GET", f"v1/{name}", fields="name,displayName") == {"name": name, "displayName": "job"}


@usage(f"{DOCS}: System parameters, prettyPrint")
def other_parameters(vertex: Service) -> None:
    """Send the system parameters that all Google APIs support."""
    system = {"prettyPrint": "false", "alt": "json", "$.xgafv": "2", "quotaUser": "me"}
    name = rest(vertex, "POST", f"{V1}/customJobs", JOB, **system)["name"]
    assert name.startswith(f"{PARENT}/customJobs/")


@usage(f"{NODE}/create-custom-job.js")
def node(vertex: Service) -> None:
    """Create a job as Node's client does, with enums as numbers."""
    created = rest(vertex, "POST", f"{V1}/customJobs", JOB, **{"$alt": "json;enum-encoding=int"})
    assert created["state"] in (1, "JOB_STATE_QUEUED", 2, "JOB_STATE_PENDING")


@usage(f"{JAVA}/CreateCustomJobSample.java")
def java(vertex: Service) -> None:
    """Create a job as Java's HTTP client does: enums as numbers, numbers as text."""
    machine = {"machineType": "n1-standard-4", "acceleratorType": 5, "acceleratorCount": 1}
    pool = {"machineSpec": machine, "replicaCount": "1", "containerSpec": {"imageUri": "image", "command": ["true"]}}
    body = {"displayName": "java", "jobSpec": {"workerPoolSpecs": [pool]}}
    name = rest(vertex, "POST", f"{V1}/customJobs", body, **{"$alt": "json;enum-encoding=int"})["name"]
    spec = rest(vertex, "GET", f"v1/{name}")["jobSpec"]["workerPoolSpecs"][0]
    assert spec["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_T4"


@usage(f"{DOTNET}/JobServiceClient")
def dotnet(vertex: Service) -> None:
    """Create a job as C#'s REST client does, with the charset UTF-8."""
    headers = {"Content-Type": "application/json; charset=utf-8", "x-goog-api-client": "gl-dotnet/8.0 rest/4.8"}
    text = json.dumps(JOB | {"displayName": "dotnet"}, indent=2)
    answer = requests.post(f"{vertex.endpoint}/{V1}/customJobs", data=text, headers=headers, timeout=60)
    assert answer.json()["displayName"] == "dotnet"


@usage(f"{DOCS}: Method operations.list, wait and cancel")
def operations(vertex: Service) -> None:
    """List, wait for and cancel long-running operations."""
    board = rest(vertex, "POST", f"{V1}/tensorboards", {"displayName": "operation"})
    assert board["name"] in [one["name"] for one in rest(vertex, "GET", f"{V1}/operations")["operations"]]
    assert rest(vertex, "POST", f"v1/{board['name']}:wait", {})["done"]
    assert rest(vertex, "POST", f"v1/{board['name']}:cancel", {}) == {}


@usage(f"{DOCS}: Method locations.list")
def locations(vertex: Service) -> None:
    """List the locations of a project, and get one location."""
    assert rest(vertex, "GET", f"v1/{PARENT}")["locationId"] == "us-central1"
    assert rest(vertex, "GET", "v1/projects/p/locations")["locations"]


@usage(f"{DOCS}: Authenticate, an access token")
def token(vertex: Service) -> None:
    """Send a token, which the local Vertex doesn't check."""
    headers = {"Authorization": "Bearer token", "x-goog-user-project": "p"}
    answer = requests.get(f"{vertex.endpoint}/{V1}/customJobs", headers=headers, timeout=60)
    assert answer.status_code == 200


@usage(f"{DOCS}: ListCustomJobs, a wrong filter")
def wrong_filter(vertex: Service) -> None:
    """Get an error for a filter without a field."""
    with pytest.raises(requests.HTTPError, match="400"):
        rest(vertex, "GET", f"{V1}/customJobs", filter="color=red")
