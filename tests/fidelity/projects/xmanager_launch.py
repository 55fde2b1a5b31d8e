"""Launch a job with xmanager's client, wait for it, and create a TensorBoard."""

import asyncio
import os

os.environ["GOOGLE_CLOUD_BUCKET_NAME"] = "b"

from absl import flags
from google.cloud.aiplatform import jobs
from xmanager import xm, xm_local
from xmanager.cloud import auth, vertex
from xmanager.xm_local import executables

flags.FLAGS(["xmanager"])  # as its launcher does
auth.get_service_account = lambda: "xmanager@p.iam.gserviceaccount.com"  # it would create one, by IAM
jobs._JOB_WAIT_TIME = 0.5
client = vertex.Client("p")


def launched(name: str) -> str:
    image = executables.GoogleContainerRegistryImage(
        name=name, image_path="us-docker.pkg.dev/p/r/train:1", args=xm.SequentialArgs(), env_vars={}
    )
    executor = xm_local.Vertex(requirements=xm.JobRequirements(cpu=4, ram=15 * xm.GiB))
    return client.launch(name, [xm.Job(executable=image, executor=executor)])


first = launched("waits")
asyncio.run(client.wait_for_job(first))
assert client.get_state(first).name == "JOB_STATE_SUCCEEDED"
board = asyncio.run(client.get_or_create_tensorboard("board"))
assert asyncio.run(client.get_or_create_tensorboard("board")) == board
