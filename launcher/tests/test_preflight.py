"""What is looked at only where Google is meant: images and quotas. A server here answers as their two services do."""

import hashlib
import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from launcher.tests.servers import Replying, ToLocal, serving
from vertex_launch.cloud.preflight import Preflight, look
from vertex_launch.cloud.service import Service
from vertex_launch.cloud.submit import request, summary
from vertex_launch.job.spec import Job, parse
from vertex_launch.settings import Settings

REPOSITORY = "us-central1-docker.pkg.dev/p/training"
NAME = f"{REPOSITORY}/trainer:1"
REDUCER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
OURS = Settings("p", "us-central1", "b", NAME)
REVISION = "0123456789ab"
QUOTAS = "/v1/projects/p/locations/global/services/aiplatform.googleapis.com/quotaInfos"


def job(image: str = NAME, evaluator: str = "") -> Job:
    pools: list[dict[str, Any]] = [
        {
            "machineSpec": {
                "machineType": "n1-standard-16",
                "acceleratorType": "NVIDIA_TESLA_V100",
                "acceleratorCount": 2,
            },
            "replicaCount": count,
            "containerSpec": {"imageUri": image, "command": ["true"]},
        }
        for count in (1, 3)
    ]
    reducers = {
        "machineSpec": {"machineType": "n1-highcpu-16"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": REDUCER},
    }
    scores = [{**pools[0], "containerSpec": {"imageUri": evaluator}}] if evaluator else []
    text = json.dumps({"workerPoolSpecs": [*pools, reducers, *scores]}, indent=1)
    return Job(Path("run.yaml"), "run", parse(text, "run.yaml"))


class Google(ThreadingHTTPServer):
    """Answers with what lies at a path, a status in place of it; 404 where nothing does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.there: dict[str, bytes | int] = {}
        self.asked: list[str] = []

    def put(self, path: str, content: Any) -> str:
        """The content's digest."""
        data = json.dumps(content).encode()
        self.there[path] = data
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def push(self, labels: dict[str, str] | None) -> str:
        """An image as `docker push` sends one today, an index; returns its digest."""
        repository = "/v2/p/training/trainer"
        config = self.put("config", {"config": {"Labels": labels}})
        self.there[f"{repository}/blobs/{config}"] = self.there.pop("config")
        manifest = self.put("manifest", {"config": {"digest": config}, "layers": []})
        self.there[f"{repository}/manifests/{manifest}"] = self.there.pop("manifest")
        attestation = {"digest": "sha256:0", "platform": {"architecture": "unknown", "os": "unknown"}}
        own = {"digest": manifest, "platform": {"architecture": "amd64", "os": "linux"}}
        return self.put(f"{repository}/manifests/1", {"manifests": [attestation, own]})


class Answer(Replying):
    """One request."""

    server: Google

    def respond(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        found = self.server.there.get(path, 404)
        self.reply(*((200, found) if isinstance(found, bytes) else (found, {"error": {"message": "no"}})))


@pytest.fixture
def google() -> Iterator[Google]:
    with serving(server := Google()):
        yield server


@pytest.fixture
def service(google: Google) -> Service:
    session = AuthorizedSession(AnonymousCredentials())
    session.mount("https://", ToLocal(f"http://127.0.0.1:{google.server_port}"))
    return Service(OURS, "", session)


def told(found: Preflight) -> list[str]:
    return [f"{one.severity}: {one}" for one in found.findings]


def test_a_job_gets_the_image_that_its_tag_means_now(google: Google, service: Service) -> None:
    digest = google.push({"org.opencontainers.image.revision": REVISION})
    found = look(job(), service, REVISION)
    assert told(found) == []
    sent = request(job(), OURS, {}, found.images).resource
    used = [pool["containerSpec"]["imageUri"] for pool in sent["jobSpec"]["workerPoolSpecs"]]
    assert used == [f"{REPOSITORY}/trainer@{digest}"] * 2 + [REDUCER]
    assert sent["labels"]["image-digest"] == digest.removeprefix("sha256:")[:12]
    assert f"  image    {NAME} is now {digest[:19]}, built from revision {REVISION}" in summary(job(), OURS, found)
    assert not [path for path in google.asked if "restricted" in path]  # which only jobs may read


def test_an_image_whose_nccl_cannot_use_the_reducers_is_told(google: Google, service: Service) -> None:
    said = (
        "NCCL can't find the plug-in libnccl-net.so: reducers would be idle but billed; install google-reduction-server"
    )
    google.push({"reducers": said})
    assert told(look(job(), service)) == [f"warning: workerPoolSpecs[0].containerSpec.imageUri: {said}"]
    google.push({"reducers": "NCCL can load the plug-in of the reducers, net v6, CollNet v6"})
    assert told(look(job(), service)) == []


def test_an_evaluator_needs_no_plug_in_for_the_reducers(google: Google, service: Service) -> None:
    google.push({"reducers": "NCCL isn't installed: reducers would be idle but billed; use an image with CUDA"})
    elsewhere = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
    found = look(job(elsewhere, evaluator=NAME), service)
    assert (told(found), [image.name for image in found.images]) == ([], [NAME])


def test_an_image_by_its_digest_stays_as_it_is(google: Google, service: Service) -> None:
    digest = google.push(None)
    google.there[f"/v2/p/training/trainer/manifests/{digest}"] = google.there["/v2/p/training/trainer/manifests/1"]
    pinned = f"{REPOSITORY}/trainer@{digest}"
    (image,) = look(job(pinned), service).images
    assert (image.pinned, image.revision) == (pinned, "")


def test_an_image_that_is_not_there_is_no_job_to_send(google: Google, service: Service) -> None:
    found = look(job(), service)
    place = "workerPoolSpecs[0].containerSpec.imageUri"
    assert told(found) == [f"error: {place}: the image {NAME} doesn't exist; build and push the image, or fix its name"]


def test_an_image_that_may_not_be_looked_at_is_a_warning(google: Google, service: Service) -> None:
    google.there["/v2/p/training/trainer/manifests/1"] = 403
    (warning,) = told(look(job(), service))
    assert warning.startswith("warning: workerPoolSpecs[0].containerSpec.imageUri: you can't read the image (403")
    assert warning.endswith("reading an image requires roles/artifactregistry.reader")


@pytest.mark.parametrize("built", ["ffffffffffff", "ffffffffffff-dirty"])
def test_an_image_of_other_code_is_told(google: Google, service: Service, built: str) -> None:
    google.push({"org.opencontainers.image.revision": built})
    (warning,) = told(look(job(), service, REVISION))
    assert f"was built from revision ffffffffffff, but this folder is at {REVISION}; to use this folder's" in warning


@pytest.mark.parametrize("built", [REVISION, f"{REVISION}-dirty", ""])
def test_an_image_of_this_code_or_of_unknown_code_is_not(google: Google, service: Service, built: str) -> None:
    google.push({"org.opencontainers.image.revision": built})
    assert told(look(job(), service, REVISION)) == []
    google.push({"org.opencontainers.image.revision": "ffffffffffff"})
    assert told(look(job(), service)) == []  # outside of git


def infos(limit: str) -> dict[str, Any]:
    """As the API documents a quota: one limit for a region, one for all others."""
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_v100_gpus"
    here = {
        "dimensions": {"region": "us-central1"},
        "details": {"value": limit},
        "applicableLocations": ["us-central1"],
    }
    rest = {"details": {"value": "0"}, "applicableLocations": ["us-east1", "us-west1"]}
    return {
        "quotaInfos": [
            {"metric": "other", "dimensionsInfos": [rest]},
            {"metric": metric, "dimensionsInfos": [rest, here]},
        ]
    }


def test_a_quota_below_the_need_is_told(google: Google, service: Service) -> None:
    google.push(None)
    google.put(QUOTAS, infos("4"))
    (warning,) = told(look(job(), service))
    assert warning == (
        "warning: workerPoolSpecs: the job needs 8 of aiplatform.googleapis.com/custom_model_training_nvidia_v100_gpus"
        " in us-central1, but the quota is 4; use a different region or a smaller job, or request more quota:"
        " gcloud beta quotas preferences create --service=aiplatform.googleapis.com --project=p --quota-id="
        '"$(gcloud beta quotas info list --service=aiplatform.googleapis.com --project=p'
        " --filter=metric=aiplatform.googleapis.com/custom_model_training_nvidia_v100_gpus --format='value(quotaId)')\""
        " --preferred-value=8 --dimensions=region=us-central1"
    )
    google.put(QUOTAS, infos("8"))
    assert told(look(job(), service)) == []
    google.there[QUOTAS] = 403  # the API is not switched on, or you may not look
    assert told(look(job(), service)) == []
