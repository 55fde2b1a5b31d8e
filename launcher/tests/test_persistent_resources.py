"""Persistent resources, by Google's own clients."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform.preview.persistent_resource import PersistentResource
from google.cloud.aiplatform_v1 import PersistentResourceServiceClient as Client
from google.cloud.aiplatform_v1.types import MachineSpec, ResourcePool

from launcher.tests.running import DEADLINE, eventually
from launcher.tests.sdk import gapic, prepare
from launcher.tests.vertex import PARENT, Json, Service, custom_job, service

T4 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}
PLAIN = {"machineType": "n1-standard-8"}
SLEEP = ("sleep", "600")
RESOURCES = f"/v1/{PARENT}/persistentResources"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--capacity", "4", "--grace-seconds", "0.2") as running:
        yield running


@pytest.fixture
def client(vertex: Service) -> Client:
    return gapic(Client, vertex)


def created(vertex: Service, id: str, *pools: Json) -> str:
    """The name of a new resource, by default of one pool with two machines."""
    body = {"resourcePools": [*pools] or [{"machineSpec": PLAIN, "replicaCount": 2}]}
    status, answer = vertex.call("POST", f"{RESOURCES}?persistentResourceId={id}", body)
    assert status == 200, answer
    return f"{PARENT}/persistentResources/{id}"


def job(vertex: Service, id: str, *command: str, workers: int = 0) -> str:
    return vertex.create(custom_job(*(command or SLEEP), workers=workers, persistentResourceId=id))


def used(vertex: Service, name: str) -> list[tuple[str, str]]:
    """For each pool, its machines and how many of them run jobs."""
    pools = vertex.get(name)["resourcePools"]
    return [(pool["replicaCount"], pool.get("usedReplicaCount", "0")) for pool in pools]


def cancelled(vertex: Service, *names: str) -> None:
    for name in names:
        vertex.call("POST", f"/v1/{name}:cancel", {})
        vertex.wait(name, "CANCELLED")


def test_the_sdk_creates_lists_and_deletes_one_and_runs_a_job_on_it(
    vertex: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(vertex, monkeypatch)
    pool = {"machine_spec": {"machine_type": "n1-standard-8"}, "replica_count": 1}
    ours = PersistentResource.create(persistent_resource_id="sdk", resource_pools=[pool], labels={"team": "a"})
    assert (ours.resource_name, ours.state.name) == (f"{PARENT}/persistentResources/sdk", "RUNNING")
    pools: list[Any] = [{**pool, "container_spec": {"image_uri": "image", "command": ["true"]}}]
    aiplatform.CustomJob("job", worker_pool_specs=pools, persistent_resource_id="sdk").run()
    assert [one.name for one in PersistentResource.list() if one.labels == {"team": "a"}] == ["sdk"]
    ours.delete()
    with pytest.raises(NotFound):
        PersistentResource("sdk")


def test_a_second_job_waits_for_the_machines_of_the_first_while_others_start(vertex: Service) -> None:
    name = created(vertex, "queue")
    first, second = job(vertex, "queue", workers=1), job(vertex, "queue")
    vertex.wait(first, "RUNNING")
    assert used(vertex, name) == [("2", "2")]
    beside = vertex.create(custom_job("true"))
    vertex.wait(beside, "SUCCEEDED")
    assert vertex.get(second)["state"] == "JOB_STATE_QUEUED"
    cancelled(vertex, first)
    vertex.wait(second, "RUNNING")
    assert used(vertex, name) == [("2", "1")]
    cancelled(vertex, second)


def test_its_jobs_start_although_the_service_waits_for_machines_elsewhere(tmp_path_factory: Any) -> None:
    with service(tmp_path_factory.mktemp("slow"), "--provision-seconds", "600") as slow:
        created(slow, "there")
        slow.wait(job(slow, "there", "true"), "SUCCEEDED")


@pytest.mark.parametrize(
    ("machine", "workers", "message"),
    [
        (T4, 0, "needs 1 x n1-standard-8 with 1 x NVIDIA_TESLA_T4 (pd-ssd), but"),
        (PLAIN, 2, "needs 3 x n1-standard-8 (pd-ssd), but"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(vertex: Service, machine: Json, workers: int, message: str) -> None:
    id = f"small-{workers}"
    created(vertex, id)
    body = custom_job("true", workers=workers, persistentResourceId=id)
    body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = machine
    status, refused = vertex.call("POST", f"/v1/{PARENT}/customJobs", body)
    assert status == 400
    assert message in refused["error"]["message"]
    assert "use at most 2 x n1-standard-8 (pd-ssd)" in refused["error"]["message"]


def test_an_unknown_one_is_refused(vertex: Service) -> None:
    body = custom_job("true", persistentResourceId="none")
    status, refused = vertex.call("POST", f"/v1/{PARENT}/customJobs", body)
    assert status == 400
    assert "persistentResources/none doesn't exist locally; create the resource first" in refused["error"]["message"]


def test_a_pool_that_grows_takes_the_job_that_waits(vertex: Service, client: Client) -> None:
    name = created(vertex, "grows", {"machineSpec": PLAIN, "replicaCount": 1})
    first, second = job(vertex, "grows"), job(vertex, "grows")
    vertex.wait(first, "RUNNING")
    resource = client.get_persistent_resource(name=name)
    resource.resource_pools[0].replica_count = 2
    update = {"persistent_resource": resource, "update_mask": {"paths": ["resource_pools"]}}
    client.update_persistent_resource(update).result(timeout=DEADLINE)
    vertex.wait(second, "RUNNING")
    cancelled(vertex, first, second)


def test_a_pool_that_scales_takes_as_many_jobs_as_its_most(vertex: Service) -> None:
    scaling = {"minReplicaCount": 1, "maxReplicaCount": 2}
    name = created(vertex, "scales", {"machineSpec": PLAIN, "autoscalingSpec": scaling})
    assert used(vertex, name) == [("1", "0")]
    jobs = [job(vertex, "scales") for _ in range(2)]
    for running in jobs:
        vertex.wait(running, "RUNNING")
    assert used(vertex, name) == [("2", "2")]
    cancelled(vertex, *jobs)


def test_it_reboots_only_while_no_job_runs_there(vertex: Service, client: Client) -> None:
    name = created(vertex, "reboots")
    running = job(vertex, "reboots")
    vertex.wait(running, "RUNNING")
    with pytest.raises(BadRequest, match=r"a job is running on .*/reboots; cancel the job, or wait until it ends"):
        client.reboot_persistent_resource(name=name)
    cancelled(vertex, running)
    assert client.reboot_persistent_resource(name=name).result(timeout=DEADLINE).name == name


def test_its_end_is_the_end_of_its_jobs(vertex: Service, client: Client) -> None:
    name = created(vertex, "ends")
    jobs = [job(vertex, "ends", workers=1) for _ in range(2)]
    client.delete_persistent_resource(name=name).result(timeout=DEADLINE)
    assert eventually(lambda: {vertex.get(one)["state"] for one in jobs} == {"JOB_STATE_CANCELLED"})


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"machine_spec": {"machine_type": "n1-standard-9"}}, r"resourcePools\[0\].machineSpec.machineType"),
        ({"replica_count": 0}, r"resourcePools\[0\].replicaCount: is 0; use a number from 1 to 1000"),
        (
            {"autoscaling_spec": {"min_replica_count": 3, "max_replica_count": 2}},
            "autoscalingSpec: the range 3 to 2 isn't",
        ),
    ],
)
def test_machines_that_cannot_be_are_refused(client: Client, pool: Json, message: str) -> None:
    machine = MachineSpec(machine_type="n1-standard-8")
    pools = [ResourcePool({"machine_spec": machine, "replica_count": 1, **pool})]
    with pytest.raises(BadRequest, match=message):
        client.create_persistent_resource(
            {"parent": PARENT, "persistent_resource": {"resource_pools": pools}, "persistent_resource_id": "wrong"}
        )


def test_its_machines_stay_what_they_are(vertex: Service, client: Client) -> None:
    resource = client.get_persistent_resource(name=created(vertex, "stays"))
    resource.resource_pools[0].machine_spec.machine_type = "n1-standard-16"
    with pytest.raises(
        BadRequest, match="can't be changed; change only labels, displayName, and the replica counts of pools"
    ):
        client.update_persistent_resource(
            {"persistent_resource": resource, "update_mask": {"paths": ["resource_pools"]}}
        )


@pytest.mark.proof
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_creates_describes_reboots_and_deletes_one(vertex: Service) -> None:
    def gcloud(*words: str) -> Any:
        environ = os.environ | {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{vertex.endpoint}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": "p",
            "CLOUDSDK_CONFIG": str(vertex.folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        }
        command = ["gcloud", "ai", "persistent-resources", *words, "--region=us-central1", "--format=json"]
        done = subprocess.run(command, env=environ, cwd=vertex.folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    gcloud(
        "create", "--persistent-resource-id=gcloud", "--resource-pool-spec=replica-count=1,machine-type=n1-standard-8"
    )
    assert gcloud("describe", "gcloud")["resourcePools"][0]["machineSpec"] == PLAIN
    assert f"{PARENT}/persistentResources/gcloud" in [one["name"] for one in gcloud("list")]
    gcloud("reboot", "gcloud")
    gcloud("delete", "gcloud")
    assert vertex.call("GET", f"{RESOURCES}/gcloud")[0] == 404
