"""Run a flow with Prefect's worker for Vertex AI, and cancel a flow without a failure."""

import asyncio
import logging

from google.api_core.client_options import ClientOptions
from prefect_gcp.credentials import GcpCredentials
from prefect_gcp.workers.vertex import VertexAIWorker, VertexAIWorkerJobConfiguration

ENDPOINT = "us-central1-aiplatform.googleapis.com"
SECONDS = 0.2
MACHINE = {"machine_type": "n1-standard-4"}
DISK = {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100}
# Its own would send the lines to a server of Prefect.
VertexAIWorker.get_flow_run_logger = lambda worker, flow_run: logging.getLogger("worker")


class Errors(logging.Handler):
    """Keeps what the worker logs as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def configured(name: str, *command: str) -> VertexAIWorkerJobConfiguration:
    container = {"image_uri": "us-docker.pkg.dev/p/r/flow:1", "command": [*command], "args": []}
    pool = {"container_spec": container, "machine_spec": MACHINE, "replica_count": 1, "disk_spec": DISK}
    spec = {"maximum_run_time_hours": 1, "worker_pool_specs": [pool], "service_account_name": None}
    return VertexAIWorkerJobConfiguration(
        name=name,
        region="us-central1",
        credentials=GcpCredentials(project="p"),
        job_spec=spec,
        job_watch_poll_interval=SECONDS,
    )


async def flows() -> None:
    errors = Errors()
    logging.getLogger("worker").addHandler(errors)
    worker = VertexAIWorker("pool")
    assert (await worker.run(None, configured("flow", "python", "-c", "print('flow')"))).status_code == 0
    slow = configured("slow", "sleep", "600")
    running = asyncio.create_task(worker.run(None, slow))
    client = slow.credentials.get_job_service_async_client(ClientOptions(api_endpoint=ENDPOINT))
    parent = "projects/p/locations/us-central1"
    while not (
        found := [
            job
            async for job in await client.list_custom_jobs(parent=parent)
            if job.state.name == "JOB_STATE_RUNNING" and job.display_name.startswith("slow")
        ]
    ):
        await asyncio.sleep(SECONDS)
    await client.cancel_custom_job(name=found[0].name)
    assert (await running).status_code == 1
    assert errors.messages == []


asyncio.run(flows())
