"""Create the search by gcloud, wait for its end, and stream its logs, as the report does."""

import json
import os
import subprocess
import time

ENDPOINT = f"{os.environ['ENDPOINT']}/"
SETTINGS = {
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": ENDPOINT,
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": ENDPOINT,
    "CLOUDSDK_AI_REGION": "us-central1",
    "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
    "CLOUDSDK_CORE_PROJECT": "my-project",
    "CLOUDSDK_CONFIG": os.path.abspath("gcloud"),
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
}


def gcloud(*words):
    """Run a command of hp-tuning-jobs, and return what it prints."""
    done = subprocess.run(
        ["gcloud", "ai", "hp-tuning-jobs", *words], env=os.environ | SETTINGS, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


id = json.loads(gcloud("create", "--config=search.yaml", "--display-name=search", "--format=json"))["name"].split("/")[-1]
while json.loads(gcloud("describe", id, "--format=json"))["state"] not in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"):
    time.sleep(1)
lines = gcloud("stream-logs", id, "--polling-interval=1", "--task-name=workerpool0-0").splitlines()
print(len([line for line in lines if "workerpool0-0" in line]) >= 4 and "each trial has printed a line")
