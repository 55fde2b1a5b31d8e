"""Tests that `vertex-launch check` reports only the expected findings for this project's own job files."""

import json
import subprocess
import sys
from pathlib import Path

from tests.training import DEADLINE, PROJECT

JOBS = sorted((PROJECT / "jobs").glob("*.yaml"))
# These findings are the files' subject, as their first lines explain: a skipped pool, and an image that Google may
# remove.
KNOWN = [
    ("evaluator.yaml", "pool-gap", "workerPoolSpecs[2]"),
    ("prebuilt.yaml", "prebuilt-ended", "workerPoolSpecs[0].pythonPackageSpec.executorImageUri"),
]

# NCCL doesn't use reducers on machines with 16 GPUs, but Google's own example has them. Google's image may have another
# version of the framework.
ALLOWED = (("reduction-server.yaml", "reducer-bypassed"), ("prebuilt.yaml", "image-version"))


def test_there_is_nothing_to_find_in_our_own_job_files_but_what_two_of_them_are_about() -> None:
    command = [sys.executable, "-m", "vertex_launch", "check", "--json", *map(str, JOBS)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout
    found = [(Path(one["file"]).name, one["code"], one["place"]) for one in json.loads(done.stdout)]
    known = [one for one in KNOWN if PROJECT / "jobs" / one[0] in JOBS]
    assert [one for one in found if one[:2] not in ALLOWED] == known
