"""What `check` finds in this project's own job files: nothing but what two of them are about."""

import json
import subprocess
import sys
from pathlib import Path

from tests.training import DEADLINE, PROJECT
from vertex_launch import catalog

JOBS = sorted((PROJECT / "jobs").glob("*.yaml"))
PREBUILT = PROJECT / "jobs/prebuilt.yaml"
IMAGE = "workerPoolSpecs[0].pythonPackageSpec.executorImageUri"
# Their subject, and said in their first lines: a pool that is skipped, and an image that Google may remove.
KNOWN = [
    ("evaluator.yaml", "pool-gap", "workerPoolSpecs[2]"),
    ("prebuilt.yaml", "prebuilt-ended", IMAGE),
]


def check(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vertex_launch", "check", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)


def test_there_is_nothing_to_find_in_our_own_job_files_but_what_two_of_them_are_about() -> None:
    done = check("--json", *map(str, JOBS))
    assert done.returncode == 0, done.stdout
    found = [(Path(one["file"]).name, one["code"], one["place"]) for one in json.loads(done.stdout)]
    # NCCL passes reducers by on machines with 16 GPUs; Google's own example has them.
    assert [one for one in found if one[1] != "reducer-bypassed"] == KNOWN


def test_a_prebuilt_image_past_its_end_is_told_with_the_date() -> None:
    said = check("jobs/prebuilt.yaml").stderr
    (image,) = (name for name in catalog.standard().prebuilt_images if f"/{name}:" in PREBUILT.read_text())
    end = catalog.standard().prebuilt_images[image]
    assert f"warning: {IMAGE}: the end of its availability was {end}; build an image of your own" in said
