#!/usr/bin/env bash
# Expected: CustomJob rejects a container's command that is text, or takes it as one word.
# Happens: It takes each letter as a word: "python" becomes p, y, t, h, o, n. No error appears before the job runs.
# Versions: google-cloud-aiplatform 2.7.0
# Date: 2026-11-28
# Matters: The job waits for its machines and pulls its image, and only then fails because no program is called "p".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout -k 5 300 python3 -m venv "$folder/venv"
timeout -k 5 600 "$folder/venv/bin/pip" install -qq --no-compile google-cloud-aiplatform==2.7.0

cat >"$folder/job.py" <<'EOF'
import sys

from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform

print("google-cloud-aiplatform", aiplatform.__version__)
aiplatform.init(project="a-project", location="us-central1", credentials=AnonymousCredentials())
pool = {
    "machine_spec": {"machine_type": "n1-standard-4"},
    "replica_count": 1,
    "container_spec": {"image_uri": "an-image", "command": "python", "args": "-m trainer"},
}
job = aiplatform.CustomJob(display_name="a-job", worker_pool_specs=[pool], staging_bucket="gs://a-bucket")
container = job.job_spec.worker_pool_specs[0].container_spec
print('command given: "python", to be sent:', list(container.command))
print('args given: "-m trainer", to be sent:', list(container.args))
if list(container.command) != list("python") or list(container.args) != list("-m trainer"):
    sys.exit("Changed: CustomJob no longer takes text as a list of letters.")
EOF
timeout -k 5 300 "$folder/venv/bin/python" -W ignore "$folder/job.py"
