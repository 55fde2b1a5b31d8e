"""Start Ray on each machine, and run a training script on the chief: python start_ray.py SCRIPT ARGS.

If a peer was lost, this script exits with code 75.
"""

import os
import re
import runpy
import subprocess
import sys
import time
import traceback

import ray
from ray import train

HEAD = f"{os.environ['MASTER_ADDR']}:6379"
LOST = re.compile("/gloo/|ncclRemoteError|key-value store|The actor .*(died|dead|unavailable)")


def start(*words: str) -> int:
    """Start Ray with this machine's hostname, so that Ray doesn't guess an address."""
    name = f"--node-ip-address={os.environ['HOSTNAME']}"
    return subprocess.run(["ray", "start", name, "--disable-usage-stats", *words]).returncode


def run_script(argv: list[str]) -> None:
    """Run the training script. Ray Train waits for the other machines."""
    start("--head", "--port=6379")
    ray.init(address=HEAD)
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except train.TrainingFailedError as error:
        traceback.print_exc()
        failures = getattr(error, "worker_failures", {0: error}).values()
        sys.exit(75 if all(LOST.search(str(failure)) for failure in failures) else 1)


if os.environ["RANK"] == "0":
    run_script(sys.argv[1:])
else:
    while start(f"--address={HEAD}", "--block"):
        time.sleep(5)  # until the chief is here
