"""Run a ZenML step as its operator for Vertex AI sends it, with an encryption key that isn't set."""

import time

from google.cloud import aiplatform
from zenml.config.resource_settings import ResourceSettings
from zenml.enums import ExecutionStatus
from zenml.integrations.gcp.utils import build_job_request, convert_job_state
from zenml.integrations.gcp.vertex_custom_job_parameters import VertexCustomJobParameters

client = aiplatform.gapic.JobServiceClient(client_options={"api_endpoint": "us-central1-aiplatform.googleapis.com"})
request = build_job_request(
    display_name="run-step",
    image="us-docker.pkg.dev/p/r/zenml:1",
    entrypoint_command=["python", "-c", "print('step')"],
    custom_job_settings=VertexCustomJobParameters(),
    resource_settings=ResourceSettings(),
    environment={"STEP": "1"},
    labels={"source": "zenml"},
    encryption_spec_key_name=None,
    service_account=None,
    network=None,
)
job = client.create_custom_job(parent="projects/p/locations/us-central1", custom_job=request)
while not (status := convert_job_state(client.get_custom_job(name=job.name).state)).is_finished:
    time.sleep(0.2)
assert status == ExecutionStatus.COMPLETED, client.get_custom_job(name=job.name).error
