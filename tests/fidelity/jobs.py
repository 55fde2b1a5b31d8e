"""Custom jobs."""

import subprocess
import sys
from typing import Any

import pytest
import requests
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform, storage
from google.cloud.aiplatform.persistent_resource import PersistentResource
from google.cloud.aiplatform_v1 import JobServiceClient, PersistentResourceServiceClient
from google.cloud.aiplatform_v1.types import CustomJob

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Service, script
from tests.fidelity.usages import ACCOUNT, DOCS, NOTEBOOKS, SAMPLES, SNIPPETS, SYSTEM, TRAINER, pool, usage

HELLO = pool("echo", "trained")
SLEEP = pool("sleep", "600")
ADVANCED = f"{DOCS}: Configure compute resources for custom training"


def machines_that_stay(id: str) -> Any:
    pool = {"machine_spec": HELLO["machine_spec"], "replica_count": 1}
    return PersistentResource.create(persistent_resource_id=id, resource_pools=[pool])


def succeeded(job: aiplatform.CustomJob) -> bool:
    return str(job.state.name) == "JOB_STATE_SUCCEEDED"


@usage(f"{NOTEBOOKS}/training/multi_node_ddp_gloo_vertex_training_with_custom_container.ipynb")
def container(vertex: Service) -> None:
    """Run a container as a custom job and wait for its end."""
    job = aiplatform.CustomJob("container", worker_pool_specs=[HELLO], staging_bucket="gs://b")
    job.run(sync=True)
    assert succeeded(job)
    assert vertex.log(job.resource_name) == ["workerpool0-0: trained"]


@usage(f"{SYSTEM}/test_custom_job.py")
def local_script(vertex: Service) -> None:
    """Run a local script in a prebuilt container, with arguments and variables."""
    path = vertex.folder / "task.py"
    path.write_text("import os, sys\nprint('task', os.environ['MODE'], *sys.argv[1:])\n")
    job = aiplatform.CustomJob.from_local_script(
        display_name="local script",
        script_path=str(path),
        container_uri=TRAINER,
        args=["--epochs", "3"],
        environment_variables={"MODE": "fast"},
        requirements=["requests"],
    )
    job.run(enable_web_access=False)
    assert "workerpool0-0: task fast --epochs 3" in vertex.log(job.resource_name)


@usage(f"{DOCS}: Autolog data to an experiment run, in a custom job", absent="mlflow==2.16.0")
def autolog_alone(vertex: Service) -> None:
    """Use autologging in a local script without mlflow in its requirements."""
    path = vertex.folder / "autolog.py"
    path.write_text("print('trained')\n")
    aiplatform.init(experiment="autolog")
    job = aiplatform.CustomJob.from_local_script("autolog", str(path), TRAINER, enable_autolog=True)
    job.submit(experiment="autolog", service_account=ACCOUNT)


@usage(f"{SNIPPETS}/job_service/create_custom_job_sample.py")
def created_by_gapic(vertex: Service) -> None:
    """Create a job with the generated client, with an accelerator as an enum."""
    machine = {"machine_type": "n1-standard-4", "accelerator_type": aiplatform.gapic.AcceleratorType.NVIDIA_TESLA_T4}
    spec = HELLO | {"machine_spec": machine | {"accelerator_count": 1}}
    job = {"display_name": "gapic", "job_spec": {"worker_pool_specs": [spec]}}
    created = gapic(JobServiceClient, vertex).create_custom_job(parent=PARENT, custom_job=job)
    vertex.wait(created.name, "SUCCEEDED")
    assert created.job_spec.worker_pool_specs[0].machine_spec.accelerator_type.name == "NVIDIA_TESLA_T4"


@usage(f"{SNIPPETS}/job_service/get_custom_job_sample.py")
def read_by_gapic(vertex: Service) -> None:
    """Get a job with the generated client and its path helper."""
    client = gapic(JobServiceClient, vertex)
    job = CustomJob(display_name="to get", job_spec={"worker_pool_specs": [HELLO]})
    id = client.create_custom_job(parent=PARENT, custom_job=job).name.rpartition("/")[2]
    name = client.custom_job_path(project="p", location="us-central1", custom_job=id)
    assert client.get_custom_job(name=name).display_name == "to get"


@usage(f"{SNIPPETS}/job_service/cancel_custom_job_sample.py")
def cancelled_by_gapic(vertex: Service) -> None:
    """Cancel a running job with the generated client."""
    client = gapic(JobServiceClient, vertex)
    job = CustomJob(display_name="to cancel", job_spec={"worker_pool_specs": [SLEEP]})
    name = client.create_custom_job(parent=PARENT, custom_job=job).name
    client.cancel_custom_job(name=name)
    assert vertex.wait(name, "CANCELLED")["error"]["code"] == 1


@usage(f"{SNIPPETS}/job_service/delete_custom_job_sample.py")
def deleted_by_gapic(vertex: Service) -> None:
    """Delete a completed job with the generated client, and wait for the operation."""
    client = gapic(JobServiceClient, vertex)
    job = CustomJob(display_name="to delete", job_spec={"worker_pool_specs": [HELLO]})
    name = client.create_custom_job(parent=PARENT, custom_job=job).name
    vertex.wait(name)
    response = client.delete_custom_job(name=name)
    response.result(timeout=60)
    assert response.operation.name
    with pytest.raises(NotFound):
        client.get_custom_job(name=name)


@usage(f"{DOCS}: Create custom training jobs, list")
def listed_in_pages(vertex: Service) -> None:
    """List all jobs with the generated client's pager, two jobs per page."""
    client = gapic(JobServiceClient, vertex)
    for _ in range(3):
        client.create_custom_job(
            parent=PARENT, custom_job={"display_name": "paged", "job_spec": {"worker_pool_specs": [HELLO]}}
        )
    pager = client.list_custom_jobs(request={"parent": PARENT, "filter": 'display_name="paged"', "page_size": 2})
    assert [job.display_name for job in pager] == ["paged"] * 3


@usage(f"{NOTEBOOKS}/tensorboard/tensorboard_profiler_custom_training.ipynb")
def listed_by_name(vertex: Service) -> None:
    """Find a job by its display name with CustomJob.list."""
    job = aiplatform.CustomJob("by name", worker_pool_specs=[HELLO])
    job.submit()
    found = aiplatform.CustomJob.list(filter='display_name="by name"')
    assert [one.resource_name for one in found] == [job.resource_name]


@usage(f"{DOCS}: ListCustomJobs, filter")
def listed_by_state_label_and_time(vertex: Service) -> None:
    """Filter jobs by state, label and creation time, newest first."""
    for name in ("older", "newer"):
        aiplatform.CustomJob(name, worker_pool_specs=[HELLO], labels={"team": "vision"}).run()
    wanted = 'state="JOB_STATE_SUCCEEDED" AND labels.team="vision" AND create_time>"2020-01-01T00:00:00Z"'
    found = aiplatform.CustomJob.list(filter=wanted, order_by="create_time desc")
    assert [job.display_name for job in found] == ["newer", "older"]


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob.get")
def found_by_id(vertex: Service) -> None:
    """Get a job by its ID, and read its state, times and specification."""
    job = aiplatform.CustomJob("by id", worker_pool_specs=[HELLO])
    job.run()
    found = aiplatform.CustomJob.get(job.name)
    assert found.end_time >= found.start_time >= found.create_time
    assert found.job_spec.worker_pool_specs[0].replica_count == 1
    assert found.to_dict()["state"] == "JOB_STATE_SUCCEEDED"


@usage(f"{NOTEBOOKS}/training/get_started_with_vertex_distributed_training.ipynb")
def chief_and_workers(vertex: Service) -> None:
    """Run a chief and two workers that read TF_CONFIG."""
    show = script(
        "import json, os; task = json.loads(os.environ['TF_CONFIG'])['task']; print(task['type'], task['index'])"
    )
    job = aiplatform.CustomJob("two pools", worker_pool_specs=[pool(*show), pool(*show, count=2)])
    job.run()
    assert "workerpool0-0: chief 0" in vertex.log(job.resource_name)


@usage(f"{DOCS}: Distributed training, parameter servers and evaluators")
def parameter_servers(vertex: Service) -> None:
    """Run pools of a chief, workers, parameter servers and an evaluator."""
    show = "import json, os; print(sorted(json.loads(os.environ['CLUSTER_SPEC'])['cluster']))"
    specs = [pool(*script(show)), *(pool("true") for _ in range(3))]
    job = aiplatform.CustomJob("four pools", worker_pool_specs=specs)
    job.run()
    pools = [f"workerpool{i}" for i in range(4)]
    assert f"workerpool0-0: {pools}" in vertex.log(job.resource_name)


@usage(f"{NOTEBOOKS}/reduction_server/pytorch_distributed_training_reduction_server.ipynb")
def reduction_server(vertex: Service) -> None:
    """Run GPU workers and a pool of reducers with Google's image."""
    gpu = {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_V100", "accelerator_count": 1}
    reducers = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    specs = [pool("true") | {"machine_spec": gpu}, pool("true", count=2) | {"machine_spec": gpu}]
    specs.append(pool(count=1, machine="n1-highcpu-16") | {"container_spec": {"image_uri": reducers}})
    job = aiplatform.CustomJob("reducers", worker_pool_specs=specs)
    job.run()
    assert succeeded(job)


@usage(f"{DOCS}: Create custom training jobs, environment variables")
def variables(vertex: Service) -> None:
    """Pass environment variables in the container's specification."""
    env = [{"name": "LEARNING_RATE", "value": "0.1"}]
    container = {"image_uri": "image", "command": ["sh", "-c", "echo $LEARNING_RATE"], "env": env}
    job = aiplatform.CustomJob("variables", worker_pool_specs=[HELLO | {"container_spec": container}])
    job.run()
    assert vertex.log(job.resource_name) == ["workerpool0-0: 0.1"]


@usage(f"{DOCS}: Training code requirements, environment variables for special Cloud Storage directories")
def output_folders(vertex: Service) -> None:
    """Set an output folder, which contains the model, checkpoint and log folders."""
    show = "echo $AIP_MODEL_DIR $AIP_CHECKPOINT_DIR $AIP_TENSORBOARD_LOG_DIR"
    job = aiplatform.CustomJob("folders", worker_pool_specs=[pool("sh", "-c", show)], base_output_dir="gs://b/out")
    job.run()
    folders = " ".join(f"gs://b/out/{name}/" for name in ("model", "checkpoints", "logs"))
    assert vertex.log(job.resource_name) == [f"workerpool0-0: {folders}"]


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob, staging_bucket")
def default_output_folder(vertex: Service) -> None:
    """Let the SDK choose an output folder in the staging bucket."""
    job = aiplatform.CustomJob("default folder", worker_pool_specs=[HELLO])
    assert job.job_spec.base_output_directory.output_uri_prefix.startswith("gs://b/aiplatform-custom-job-")
    job.run()
    assert succeeded(job)


@usage(f"{DOCS}: Use a custom service account")
def service_account(vertex: Service) -> None:
    """Set the service account and the network of a job."""
    job = aiplatform.CustomJob("account", worker_pool_specs=[HELLO])
    job.run(service_account=ACCOUNT, network="projects/12345/global/networks/default")
    assert job.job_spec.service_account == ACCOUNT
    assert job.network == "projects/12345/global/networks/default"


@usage(f"{SAMPLES}/create_custom_job_psci_sample.py")
def private_service_connect(vertex: Service) -> None:
    """Run a job with a Private Service Connect interface."""
    peering = {"domain": "p.internal.", "target_project": "p", "target_network": "default"}
    job = aiplatform.CustomJob("psc", worker_pool_specs=[HELLO])
    job.run(psc_interface_config={"network_attachment": "attachment", "dns_peering_configs": [peering]})
    assert job.job_spec.psc_interface_config.network_attachment == "attachment"


@usage(f"{DOCS}: Use customer-managed encryption keys")
def encryption_key(vertex: Service) -> None:
    """Encrypt a job with a customer-managed key."""
    key = "projects/p/locations/us-central1/keyRings/ring/cryptoKeys/key"
    job = aiplatform.CustomJob("encrypted", worker_pool_specs=[HELLO], encryption_spec_key_name=key)
    job.run()
    assert job.encryption_spec.kms_key_name == key


@usage(f"{DOCS}: Customer-managed encryption keys", absent="is in europe-west4")
def foreign_key(vertex: Service) -> None:
    """Encrypt a job with a key of another region."""
    key = "projects/p/locations/europe-west4/keyRings/ring/cryptoKeys/key"
    aiplatform.CustomJob("key", worker_pool_specs=[HELLO], encryption_spec_key_name=key).submit()


@usage(f"{DOCS}: Use a private IP for custom training, reserved ranges")
def reserved_ranges(vertex: Service) -> None:
    """Use IP addresses from reserved ranges."""
    spec = {"worker_pool_specs": [HELLO], "reserved_ip_ranges": ["vertex-range"]}
    created = gapic(JobServiceClient, vertex).create_custom_job(
        parent=PARENT,
        custom_job={"display_name": "ranges", "job_spec": spec | {"network": "projects/12345/global/networks/default"}},
    )
    assert list(created.job_spec.reserved_ip_ranges) == ["vertex-range"]


@usage(f"{DOCS}: Use Spot VMs with training")
def spot(vertex: Service) -> None:
    """Run a job on Spot VMs."""
    job = aiplatform.CustomJob("spot", worker_pool_specs=[HELLO])
    job.run(scheduling_strategy=aiplatform.compat.types.custom_job.Scheduling.Strategy.SPOT)
    assert job.job_spec.scheduling.strategy.name == "SPOT"
    assert succeeded(job)


@usage(f"{DOCS}: Schedule training jobs based on resource availability")
def flex_start(vertex: Service) -> None:
    """Run a job with Dynamic Workload Scheduler, which waits for GPUs."""
    gpu = {"machine_type": "a2-highgpu-1g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 1}
    job = aiplatform.CustomJob("flex start", worker_pool_specs=[HELLO | {"machine_spec": gpu}])
    strategy = aiplatform.compat.types.custom_job.Scheduling.Strategy.FLEX_START
    job.run(timeout=3600, max_wait_duration=1800, scheduling_strategy=strategy)
    assert job.job_spec.scheduling.max_wait_duration.total_seconds() == 1800
    assert succeeded(job)


@usage(f"{DOCS}: Use reservations with training")
def reservation(vertex: Service) -> None:
    """Consume a specific reservation of GPUs."""
    name = "projects/p/zones/us-central1-a/reservations/gpus"
    affinity = {
        "reservation_affinity_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [name],
    }
    gpu = {"machine_type": "a2-highgpu-1g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 1}
    job = aiplatform.CustomJob(
        "reserved", worker_pool_specs=[HELLO | {"machine_spec": gpu | {"reservation_affinity": affinity}}]
    )
    job.run()
    assert list(job.job_spec.worker_pool_specs[0].machine_spec.reservation_affinity.values) == [name]


@usage(f"{DOCS}: CustomJobSpec, scheduling")
def time_limit(vertex: Service) -> None:
    """Set a job timeout, and restart the job when a worker restarts."""
    job = aiplatform.CustomJob("limited", worker_pool_specs=[HELLO])
    job.run(timeout=600, restart_job_on_worker_restart=True)
    scheduling = job.job_spec.scheduling
    assert (scheduling.timeout.total_seconds(), scheduling.restart_job_on_worker_restart) == (600, True)


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob.run, a failed job")
def failure(vertex: Service) -> None:
    """Get a RuntimeError with the error of a failed job, without retries."""
    job = aiplatform.CustomJob("fails", worker_pool_specs=[pool("sh", "-c", "exit 3")])
    with pytest.raises(RuntimeError, match="non-zero status of 3"):
        job.run(disable_retries=True)
    assert job.state.name == "JOB_STATE_FAILED"
    assert job.error.message


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob.run, sync=False")
def in_the_background(vertex: Service) -> None:
    """Start a job without waiting, then wait for its resource and its end."""
    job = aiplatform.CustomJob("later", worker_pool_specs=[HELLO])
    job.run(sync=False)
    job.wait_for_resource_creation()
    assert job.resource_name.startswith(f"{PARENT}/customJobs/")
    job.wait()
    assert succeeded(job)


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob.submit")
def submitted(vertex: Service) -> None:
    """Submit a job, look at its state, and wait for its completion later."""
    job = aiplatform.CustomJob("submitted", worker_pool_specs=[HELLO])
    job.submit()
    assert not job.done() or succeeded(job)
    aiplatform.CustomJob.get(job.resource_name).wait_for_completion()
    assert succeeded(job)


@usage(f"{DOCS}: google.cloud.aiplatform.CustomJob.cancel")
def cancelled(vertex: Service) -> None:
    """Cancel a submitted job and delete it."""
    job = aiplatform.CustomJob("cancelled", worker_pool_specs=[SLEEP])
    job.submit()
    job.cancel()
    vertex.wait(job.resource_name, "CANCELLED")
    job.delete()
    assert aiplatform.CustomJob.list(filter='display_name="cancelled"') == []


@usage(f"{NOTEBOOKS}/training/pytorch_gcs_data_training.ipynb")
def package(vertex: Service) -> None:
    """Run a module of a Python package in a bucket."""
    source = vertex.folder / "packaged"
    (source / "trainer").mkdir(parents=True)
    (source / "trainer/task.py").write_text("import sys; print('package', *sys.argv[1:])\n")
    (source / "trainer/__init__.py").touch()
    (source / "setup.py").write_text("from setuptools import setup; setup(name='trainer', packages=['trainer'])")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--formats=gztar"], cwd=source, check=True, capture_output=True
    )
    (archive,) = (source / "dist").iterdir()
    storage.Client(project="p").bucket("b").blob("trainer.tar.gz").upload_from_filename(archive)
    spec = {"executor_image_uri": TRAINER, "package_uris": ["gs://b/trainer.tar.gz"], "python_module": "trainer.task"}
    specs = [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": 1,
            "python_package_spec": spec | {"args": ["--steps=1"]},
        }
    ]
    job = aiplatform.CustomJob("package", worker_pool_specs=specs)
    job.run()
    assert "workerpool0-0: package --steps=1" in vertex.log(job.resource_name)


@usage(ADVANCED)
def boot_disk(vertex: Service) -> None:
    """Request a larger boot disk of another type."""
    job = aiplatform.CustomJob(
        "disk", worker_pool_specs=[HELLO | {"disk_spec": {"boot_disk_type": "pd-standard", "boot_disk_size_gb": 200}}]
    )
    job.run()
    assert job.job_spec.worker_pool_specs[0].disk_spec.boot_disk_size_gb == 200


@usage(f"{NOTEBOOKS}/training/tpuv5e_gemma_peft_finetuning_and_serving.ipynb")
def tpu(vertex: Service) -> None:
    """Run a job on a TPU slice with a topology."""
    tpus = {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"}
    job = aiplatform.CustomJob("tpu", worker_pool_specs=[HELLO | {"machine_spec": tpus}])
    job.run()
    assert job.job_spec.worker_pool_specs[0].machine_spec.tpu_topology == "2x2"


@usage(f"{DOCS}: Mount an NFS share for custom training")
def nfs(vertex: Service) -> None:
    """Mount an NFS share in two jobs."""
    mount = {"server": "10.0.0.2", "path": "/share", "mount_point": "/mnt/nfs/data"}
    network = "projects/12345/global/networks/default"
    for command in ("echo kept > /mnt/nfs/data/file", "cat /mnt/nfs/data/file"):
        job = aiplatform.CustomJob("nfs", worker_pool_specs=[pool("sh", "-c", command) | {"nfs_mounts": [mount]}])
        job.run(network=network)
    assert vertex.log(job.resource_name) == ["workerpool0-0: kept"]


@usage(f"{DOCS}: CustomJob, labels")
def labels(vertex: Service) -> None:
    """Label a job, in addition to the labels that init sets for all jobs."""
    aiplatform.init(project="p")
    job = aiplatform.CustomJob("labeled", worker_pool_specs=[HELLO], labels={"team": "text", "env": "dev"})
    job.submit()
    assert job.labels == {"team": "text", "env": "dev"}


@usage(f"{DOCS}: Create custom training jobs, a wrong request")
def wrong_request(vertex: Service) -> None:
    """Get an error with the invalid field for a wrong machine type."""
    job = aiplatform.CustomJob("wrong", worker_pool_specs=[pool("true", machine="n1-standard-3")])
    with pytest.raises(BadRequest, match=r"workerPoolSpecs\[0\].machineSpec.machineType"):
        job.run()


@usage(f"{NOTEBOOKS}/training/xgboost_data_parallel_training_on_cpu_using_dask.ipynb")
def scheduler_and_workers(vertex: Service) -> None:
    """Find the first replica of pool 0 in CLUSTER_SPEC from every worker."""
    find = "import json, os; print(json.loads(os.environ['CLUSTER_SPEC'])['cluster']['workerpool0'][0])"
    job = aiplatform.CustomJob("scheduler", worker_pool_specs=[pool("sleep", "1"), pool(*script(find), count=2)])
    job.run()
    addresses = {line.partition(": ")[2] for line in vertex.log(job.resource_name)}
    assert len(addresses) == 1


@usage(f"{SAMPLES}/create_custom_job_on_persistent_resource_sample.py")
def persistent_resource(vertex: Service) -> None:
    """Run a job on a persistent resource."""
    machines_that_stay("cluster")
    aiplatform.CustomJob("persistent", worker_pool_specs=[HELLO], persistent_resource_id="cluster").run()


@usage(f"{DOCS}: Get information about a persistent resource")
def persistent_resource_described(vertex: Service) -> None:
    """List persistent resources, and read the machines of a persistent resource."""
    machines_that_stay("described")
    assert "described" in [resource.name for resource in PersistentResource.list()]
    found = gapic(PersistentResourceServiceClient, vertex).get_persistent_resource(
        name=f"{PARENT}/persistentResources/described"
    )
    assert (found.state.name, found.resource_pools[0].replica_count) == ("RUNNING", 1)


@usage(f"{DOCS}: Reboot a persistent resource")
def persistent_resource_rebooted(vertex: Service) -> None:
    """Reboot a persistent resource on which no job runs."""
    machines_that_stay("rebooted").reboot()


@usage(f"{DOCS}: Delete a persistent resource")
def persistent_resource_deleted(vertex: Service) -> None:
    """Delete a persistent resource."""
    machines_that_stay("deleted").delete()
    assert "deleted" not in [resource.name for resource in PersistentResource.list()]


@usage(f"{NOTEBOOKS}/training/xgboost_data_parallel_training_on_cpu_using_dask.ipynb")
def web_access(vertex: Service) -> None:
    """Enable interactive shells, and open the URL of a shell while the job runs."""
    job = aiplatform.CustomJob("shell", worker_pool_specs=[SLEEP, SLEEP])
    job.submit(enable_web_access=True)
    vertex.wait(job.resource_name, "RUNNING")
    uris = dict(job.web_access_uris)
    page = requests.get(uris["workerpool1-0"], timeout=60)
    page.raise_for_status()
    job.cancel()
    assert "WebSocket" in page.text
    vertex.wait(job.resource_name)
    assert not job.web_access_uris


@usage(f"{DOCS}: CustomJobSpec, enableDashboardAccess", absent="enableDashboardAccess")
def dashboard(vertex: Service) -> None:
    """Request a dashboard of the chief."""
    job = {"display_name": "dashboard", "job_spec": {"worker_pool_specs": [HELLO], "enable_dashboard_access": True}}
    gapic(JobServiceClient, vertex).create_custom_job(parent=PARENT, custom_job=job)
