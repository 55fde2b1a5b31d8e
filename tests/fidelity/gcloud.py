"""gcloud."""

import json
import os
import subprocess
from typing import Any

import yaml

from launcher.tests.vertex import PARENT, Service, custom_job
from tests.fidelity.usages import DOCS, NOTEBOOKS, put, usage

HELP = f"{DOCS}: gcloud reference"


def gcloud(vertex: Service, *words: str) -> Any:
    """Run a command of gcloud with what the service prints for it, and return its JSON."""
    environ = {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{vertex.endpoint}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"{vertex.endpoint}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{vertex.endpoint}/storage/v1/",
        "CLOUDSDK_AI_REGION": "us-central1",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_PROJECT": "p",
        "CLOUDSDK_CONFIG": str(vertex.folder / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
    command = ["gcloud", *words, "--format=json"]
    done = subprocess.run(
        command, env=os.environ | environ, cwd=vertex.folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


@usage(f"{HELP}, ai custom-jobs create --worker-pool-spec", needs="gcloud")
def job_by_flags(vertex: Service) -> None:
    """Create a job from flags."""
    pool = "--worker-pool-spec=machine-type=n1-standard-4,replica-count=1,container-image-uri=image"
    created = gcloud(
        vertex, "ai", "custom-jobs", "create", "--display-name=flags", pool, "--command=true", "--labels=a=b"
    )
    assert vertex.wait(created["name"], "SUCCEEDED")["labels"] == {"a": "b"}


@usage(f"{HELP}, ai custom-jobs create --config", needs="gcloud")
def job_by_file(vertex: Service) -> None:
    """Create a job from a file, and describe it."""
    path = vertex.folder / "job.yaml"
    path.write_text(yaml.safe_dump(custom_job("true")["jobSpec"]))
    created = gcloud(vertex, "ai", "custom-jobs", "create", "--display-name=file", f"--config={path}")
    id = created["name"].rpartition("/")[2]
    assert gcloud(vertex, "ai", "custom-jobs", "describe", id)["displayName"] == "file"


@usage(f"{HELP}, ai operations describe", needs="gcloud")
def operation(vertex: Service) -> None:
    """Describe an operation by its ID and region."""
    schema = "gs://google-cloud-aiplatform/schema/dataset/metadata/text_1.0.0.yaml"
    name = vertex.create({"displayName": "described", "metadataSchemaUri": schema}, "datasets")
    described = gcloud(vertex, "ai", "operations", "describe", name.rpartition("/")[2])
    assert (described["name"], described["done"]) == (name, True)
    assert described["metadata"]["genericMetadata"]["createTime"]


@usage(f"{HELP}, ai custom-jobs list", needs="gcloud")
def jobs_listed(vertex: Service) -> None:
    """List jobs with a filter."""
    name = vertex.create(custom_job("true", name="gcloud-list"))
    found = gcloud(vertex, "ai", "custom-jobs", "list", "--filter=displayName=gcloud-list")
    assert [job["name"] for job in found] == [name]


@usage(f"{HELP}, ai custom-jobs cancel", needs="gcloud")
def job_cancelled(vertex: Service) -> None:
    """Cancel a job."""
    name = vertex.create(custom_job("sleep", "600"))
    gcloud(vertex, "ai", "custom-jobs", "cancel", name.rpartition("/")[2])
    vertex.wait(name, "CANCELLED")


@usage(f"{HELP}, logging read", needs="gcloud")
def log_read(vertex: Service) -> None:
    """Read a job's log."""
    name = vertex.create(custom_job("echo", "trained"))
    vertex.wait(name)
    id = name.rpartition("/")[2]
    (entry,) = gcloud(vertex, "logging", "read", f'resource.labels.job_id="{id}"')
    assert entry["jsonPayload"]["message"] == "trained"


@usage(f"{HELP}, ai custom-jobs create --config, one pool", needs="gcloud")
def pool_as_mapping(vertex: Service) -> None:
    """Create a job from a file with a single pool, which gcloud turns into a list."""
    path = vertex.folder / "mapping.yaml"
    path.write_text(yaml.safe_dump({"workerPoolSpecs": custom_job("true")["jobSpec"]["workerPoolSpecs"][0]}))
    created = gcloud(vertex, "ai", "custom-jobs", "create", "--display-name=mapping", f"--config={path}")
    assert len(created["jobSpec"]["workerPoolSpecs"]) == 1


@usage(f"{HELP}, beta ai custom-jobs create --config", needs="gcloud")
def beta_job(vertex: Service) -> None:
    """Create a job with gcloud beta, which uses v1beta1."""
    path = vertex.folder / "beta.yaml"
    path.write_text(yaml.safe_dump(custom_job("true")["jobSpec"]))
    created = gcloud(vertex, "beta", "ai", "custom-jobs", "create", "--display-name=beta", f"--config={path}")
    assert vertex.wait(created["name"], "SUCCEEDED")["displayName"] == "beta"


@usage(f"{HELP}, ai hp-tuning-jobs create", needs="gcloud")
def tuning(vertex: Service) -> None:
    """Create a tuning job from a file, and list it."""
    rate = {"parameterId": "lr", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}
    study = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "parameters": [rate]}
    path = vertex.folder / "tuning.yaml"
    path.write_text(yaml.safe_dump({"studySpec": study, "trialJobSpec": custom_job("true")["jobSpec"]}))
    flags = ("--display-name=gcloud", "--max-trial-count=1", "--parallel-trial-count=1", f"--config={path}")
    created = gcloud(vertex, "ai", "hp-tuning-jobs", "create", *flags)
    assert created["maxTrialCount"] == 1
    assert created["name"] in [job["name"] for job in gcloud(vertex, "ai", "hp-tuning-jobs", "list")]


@usage(f"{HELP}, ai models upload", needs="gcloud")
def model(vertex: Service) -> None:
    """Upload a model, and list its versions."""
    put("models/gcloud/model.bin", "weights")
    flags = ("--display-name=gcloud", "--container-image-uri=image", "--artifact-uri=gs://b/models/gcloud")
    gcloud(vertex, "ai", "models", "upload", *flags, "--model-id=gcloud")
    (version,) = gcloud(vertex, "ai", "models", "list-version", "gcloud")
    assert version["versionId"] == "1"


@usage(f"{NOTEBOOKS}/tensorboard/tensorboard_custom_training_with_custom_container.ipynb", needs="gcloud")
def tensorboard(vertex: Service) -> None:
    """Create a TensorBoard, and delete it."""
    gcloud(vertex, "ai", "tensorboards", "create", "--display-name=gcloud")
    (found,) = gcloud(vertex, "ai", "tensorboards", "list", "--filter=displayName=gcloud")
    gcloud(vertex, "ai", "tensorboards", "delete", found["name"].rpartition("/")[2])
    assert found["name"].startswith(f"{PARENT}/tensorboards/")


@usage(f"{NOTEBOOKS}/automl/automl-tabular-classification.ipynb", needs="gcloud")
def bucket_created(vertex: Service) -> None:
    """Create a bucket in a region, as 126 notebooks do."""
    gcloud(vertex, "storage", "buckets", "create", "--project=p", "--location=us-central1", "gs://of-gcloud")
    assert gcloud(vertex, "storage", "buckets", "describe", "gs://of-gcloud")["location"].lower() == "us-central1"


@usage(f"{NOTEBOOKS}/automl/automl_image_classification_batch_prediction.ipynb", needs="gcloud")
def file_copied(vertex: Service) -> None:
    """Copy a file to a bucket, list it, and remove it."""
    (vertex.folder / "copied.txt").write_text("content")
    gcloud(vertex, "storage", "cp", "copied.txt", "gs://b/gcloud/copied.txt")
    assert (vertex.state_dir / "gcs/b/gcloud/copied.txt").read_text() == "content"
    gcloud(vertex, "storage", "rm", "--recursive", "gs://b/gcloud")
    assert not (vertex.state_dir / "gcs/b/gcloud").exists()
