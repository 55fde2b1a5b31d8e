"""`submit --or --regions --wait` on the local Vertex: the next job where one finds no machines, never two at once."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.tests.running import SOURCE, eventually, job
from launcher.tests.test_run import launch
from launcher.tests.vertex import Service, service

EVERYWHERE = ("us-central1", "us-east1")
SCRIPT = ["python", "-c", "print('trained')"]


@pytest.fixture
def vertex(tmp_path: Path) -> Any:
    """A local Vertex without machines in us-central1, and jobs of two kinds of machines in its folder."""
    with service(tmp_path, "--capacity", "us-central1=0", "--grace-seconds", "0") as running:
        write(
            tmp_path,
            "large",
            {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1},
        )
        write(
            tmp_path, "small", {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
        )
        yield running


def write(folder: Path, name: str, machine: dict[str, Any]) -> None:
    document = job(command=SCRIPT) | {"scheduling": {"timeout": "600s"}}
    document["workerPoolSpecs"][0]["machineSpec"] = machine
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))


def words(vertex: Service, *flags: str) -> dict[str, Any]:
    """The command line of `submit --yes`, and where it runs, as keywords of a process."""
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "VERTEX_ENDPOINT": vertex.endpoint, "COLUMNS": "300"}
    args = [sys.executable, "-m", "vertex_launch", "submit", "--yes", *flags]
    return {"args": args, "cwd": vertex.folder, "env": environ, "stdin": subprocess.DEVNULL, "text": True}


def submit(vertex: Service, *flags: str) -> tuple[int, str]:
    """The exit code, and what is said."""
    done = subprocess.run(**words(vertex, *flags), capture_output=True, timeout=240)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def jobs(vertex: Service) -> list[tuple[str, str, str]]:
    """Region, name and state of all jobs, in the order of their creation."""
    everywhere = [
        one
        for region in EVERYWHERE
        for one in vertex.call("GET", f"/v1/projects/p/locations/{region}/customJobs")[1].get("customJobs", [])
    ]
    ordered = sorted(everywhere, key=lambda one: str(one["createTime"]))
    return [(one["name"].split("/")[3], one["displayName"], one["state"].removeprefix("JOB_STATE_")) for one in ordered]


def test_a_job_that_finds_no_machines_is_cancelled_before_the_next_region_gets_it(vertex: Service) -> None:
    code, said = submit(vertex, "large.yaml", "--regions", "us-central1,us-east1", "--wait", "20s", "--follow")
    assert code == 0, said
    assert [(region, name, state) for region, name, state in jobs(vertex)] == [
        ("us-central1", "large", "CANCELLED"),
        ("us-east1", "large", "SUCCEEDED"),
    ]
    first, second = (vertex.get(name) for name in re.findall(r"^sent: (\S+)", said, re.MULTILINE))
    assert first["endTime"] <= second["createTime"]  # never two at once
    assert "large.yaml in us-central1: the job hasn't started after 20 s; its state is CANCELLED" in said
    assert re.search(r"sending large\.yaml in us-east1: \$[\d.]+ per hour", said)
    assert "trained" in said


def test_other_machines_are_tried_after_all_regions_of_the_first(vertex: Service) -> None:
    flags = ("--or", "small.yaml", "--regions", "us-central1", "--wait", "1s", "--no-follow")
    code, said = submit(vertex, "large.yaml", *flags)
    assert code == 4, said
    assert jobs(vertex) == [("us-central1", "large", "CANCELLED"), ("us-central1", "small", "CANCELLED")]
    assert "no job has started, and none is still waiting" in said


def test_a_job_that_is_not_followed_is_found_again_in_its_region(vertex: Service) -> None:
    code, said = submit(vertex, "large.yaml", "--regions", "us-east1", "--no-follow")
    assert code == 0, said
    assert re.search(r"follow it with: \S.* logs \d+ --follow --region us-east1\n", said)


def test_nothing_is_sent_where_one_of_the_places_cannot_have_the_job(vertex: Service) -> None:
    code, said = submit(vertex, "large.yaml", "--regions", "us-east1,us-west2", "--wait", "1s")
    assert code == 1
    assert "us-west2" in said
    assert jobs(vertex) == []


def test_ctrl_c_leaves_the_job_that_waits_and_sends_no_other(vertex: Service, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as output:
        keywords = words(vertex, "large.yaml", "--regions", "us-central1,us-east1", "--wait", "1h")
        process = subprocess.Popen(**keywords, stdout=output, stderr=output, start_new_session=True)
    assert eventually(lambda: "sent: " in said.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "no other job will be submitted" in said.read_text()
    assert "stop it with: " in said.read_text()
    assert jobs(vertex) == [("us-central1", "large", "QUEUED")]


@pytest.mark.parametrize("wait", ["20", "soon", "-1m"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, wait: str) -> None:
    done = launch(tmp_path, "submit", "large.yaml", "--wait", wait)
    assert done.returncode == 2
    assert "use a value such as 90s, 20m, or 1.5h" in done.stderr


def test_a_capacity_that_is_none_is_refused(tmp_path: Path) -> None:
    done = launch(tmp_path, "emulate", "--capacity", "us-central1=many")
    assert done.returncode == 1
    assert (
        '--capacity: "us-central1=many" is not a valid capacity; use a value such as 16 or us-central1=0' in done.stderr
    )
