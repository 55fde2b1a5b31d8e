"""What the clients in cases/ share: the SDK, pointed to the service under test."""

import os

from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform as a
from google.cloud.aiplatform import jobs, training_jobs

jobs._JOB_WAIT_TIME = training_jobs._JOB_WAIT_TIME = 0.5
a.init(
    project="my-project",
    location="us-central1",
    staging_bucket="gs://my-bucket",
    api_endpoint=os.environ["ENDPOINT"],
    api_transport="rest",
    credentials=AnonymousCredentials(),
)
