"""Run a job with the W&B Launch runner for Vertex AI."""

import asyncio
from types import SimpleNamespace

from google.cloud.aiplatform import jobs
from wandb.sdk.launch.environment.gcp_environment import GcpEnvironment
from wandb.sdk.launch.runner.vertex_runner import launch_vertex_job

jobs._JOB_WAIT_TIME = 0.5
container = {"image_uri": "us-docker.pkg.dev/p/r/train:1", "command": ["python", "-c", "print('launched')"]}
pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}


async def launch() -> None:
    environment = GcpEnvironment(region="us-central1")
    project = SimpleNamespace(name="launched", run_id="run1")
    spec = {"worker_pool_specs": [pool], "staging_bucket": "gs://b"}
    run = await launch_vertex_job(project, spec, {"restart_job_on_worker_restart": False}, environment, False)
    # Its own status is "unknown" for ever from Python 3.11 on, where the text of a state is a number.
    while run._job.state.name in ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        await asyncio.sleep(0.2)
    assert run._job.state.name == "JOB_STATE_SUCCEEDED"


asyncio.run(launch())
