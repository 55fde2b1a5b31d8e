"""The doctor on a healthy machine and on sick ones: real processes, with an environment made for each."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.marks import ONCE
from tests.training import DEADLINE, FLAGS, PROJECT, SETTINGS, job
from vertex_launch.local.running.hosts import free_addresses

BEGINS_WITH_THE_DOCTOR = ["bash", "-c", 'python -m trainer.doctor && exec python -m trainer.task "$@"', "bash"]
STATES = ("ok", "skipped", "warning", "error")
FOUR_GPUS = 'mount -t tmpfs none /dev && mkdir /dev/shm && for i in 0 1 2 3; do :>/dev/nvidia$i; done && exec "$0" "$@"'
SMALL_DISKS = 'mount -t tmpfs -o size=1m none /dev/shm && mount -t tmpfs -o ro none "$0" && exec "$@"'
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")


class Yesterday(BaseHTTPRequestHandler):
    """A metadata server whose clock is that of a day long ago."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(0)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def yesterday() -> Iterator[str]:
    """Address of that server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Yesterday) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def of_job(*addresses: str, rank: int = 0, gpus: int = 0, is_text: bool = False) -> dict[str, str]:
    """Variables of a replica whose machines have these addresses and so many GPUs; nobody tells it the time.

    Args:
        is_text: whether the job is a text, and its keys have underscores.
    """
    chief, *workers = addresses
    machines = [{"machineSpec": {"acceleratorCount": gpus}} if gpus else {}] * 2
    underscored = [{"machine_spec": {"accelerator_count": gpus}}] * 2
    spec = {
        "cluster": {"workerpool0": [chief], "workerpool1": workers},
        "task": {"type": f"workerpool{min(rank, 1)}", "index": max(rank - 1, 0)},
        "job": json.dumps({"worker_pool_specs": underscored}) if is_text else {"workerPoolSpecs": machines},
    }
    return {"CLUSTER_SPEC": json.dumps(spec), "GCE_METADATA_HOST": "127.0.0.1:1"}


def look(folder: Path, env: dict[str, str], *before: str) -> tuple[int, list[str]]:
    """Exit code and lines of the doctor, in a folder, which has the outputs."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "trainer.doctor"],
        cwd=folder,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(PROJECT), **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stderr == ""
    return done.returncode, [json.loads(line)["message"] for line in done.stdout.splitlines()]


def faults(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("error: ")]


def test_without_a_job_the_doctor_says_what_it_can_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, lines = look(tmp_path, {})
    assert (code, [*tmp_path.iterdir()]) == (0, [])
    assert "skipped: variables, because this isn't a job (CLUSTER_SPEC isn't set)" in lines
    assert "skipped: names and ports, because workerpool0-0 doesn't connect to other replicas" in lines
    assert any(line.startswith(("ok: disk: .: writes ", "warning: disk: .: writes ")) for line in lines)
    assert all(line.startswith(STATES) for line in lines)


def test_a_name_without_address_is_a_fault_of_its_own_replica_and_a_warning_to_others(tmp_path: Path) -> None:
    addresses = (*free_addresses(1), "no-such-host.invalid:2222")
    code, lines = look(tmp_path, of_job(*addresses))
    assert (code, faults(lines)) == (0, [])
    who = "workerpool1-0 has no IP address at no-such-host.invalid:2222"
    assert f"warning: peers: {who}; if the machine hasn't started yet, the roll call waits for it" in lines
    code, lines = look(tmp_path, of_job(*addresses, rank=1))
    own = "error: names: no-such-host.invalid, this replica, has no IP address; "
    assert (code, faults(lines)) == (1, [f"{own}check CLUSTER_SPEC and this machine's /etc/hosts"])


def test_a_port_that_another_program_has_is_a_fault_of_the_chief(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, (fault,) = (done := look(tmp_path, of_job(address, *free_addresses(1))))[0], faults(done[1])
    assert code == 1
    taken_by = f"rollcall: can't listen on {address}, the address of workerpool0-0: Address already in use"
    assert fault == f"error: ports: {taken_by}; stop the program that uses the port, or start the job again"


def test_fewer_gpus_than_the_job_pays_for_are_a_fault(tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    code, lines = look(tmp_path, of_job(*free_addresses(2), gpus=8) | hidden)
    assert code == 1
    assert faults(lines)[0].startswith("error: GPUs: the job's machineSpec has 8, but only 0 of ")
    for laptop in ({"GCS_MOUNT": str(tmp_path)}, {}):
        code, lines = look(tmp_path, of_job(*free_addresses(2), gpus=8 if laptop else 0) | hidden | laptop)
        assert code == 0
        assert any(line.startswith("skipped: GPUs, because this machine has none") for line in lines)


def test_a_clock_that_is_off_is_a_warning(tmp_path: Path, yesterday: str) -> None:
    code, lines = look(tmp_path, of_job(*free_addresses(2)) | {"GCE_METADATA_HOST": yesterday})
    (line,) = (line for line in lines if "clock: " in line)
    assert code == 0
    assert line.startswith("warning: clock: ")
    assert line.endswith(
        " s ahead of the metadata server's clock; credentials might be rejected; start the job again to get another"
        " machine"
    )


@as_root
def test_small_shared_memory_and_a_mount_that_is_read_only_are_told(tmp_path: Path) -> None:
    bucket = tmp_path / "mount/b"
    bucket.mkdir(parents=True)
    disks = ("unshare", "--mount", "sh", "-c", SMALL_DISKS, str(bucket))
    if subprocess.run([*disks, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    env = {"GCS_MOUNT": str(tmp_path / "mount"), "AIP_CHECKPOINT_DIR": "gs://b/run", "CUDA_VISIBLE_DEVICES": ""}
    code, lines = look(tmp_path, env, *disks)
    cure = "choose an output folder on a disk that isn't read-only"
    fault = f"error: checkpoints: {bucket}/run can't be written (Read-only file system: {bucket}); {cure}"
    assert (code, faults(lines)) == (1, [fault])
    small = "warning: shared memory: /dev/shm has 1 MiB free; --data-processes might need 48 MiB; give the container"
    assert any(line.startswith(small) for line in lines)


@as_root
def test_gpus_that_a_variable_hides_are_counted(tmp_path: Path) -> None:
    gpus = ("unshare", "--mount", "sh", "-c", FOUR_GPUS)
    if subprocess.run([*gpus, "ls", "/dev/shm"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    env = of_job(*free_addresses(2), gpus=4, is_text=True)
    for shown, code in ({}, 0), ({"CUDA_VISIBLE_DEVICES": "0,1"}, 1):
        told, lines = look(tmp_path, env | shown, *gpus)
        hidden = "the job's machineSpec has 4, but only 2 of 4 are usable; leave CUDA_VISIBLE_DEVICES unset"
        assert (told, faults(lines)) == (code, [f"error: GPUs: {hidden}"] if shown else [])
        assert ("ok: GPUs: 4 usable" in lines) != bool(shown)


@as_root
def test_a_driver_that_is_older_than_the_cuda_of_the_image_needs_is_a_fault(tmp_path: Path) -> None:
    for name, version in ("nvidia_cuda_runtime", "13.0.96"), ("nvidia_nccl", "2.29.7"):
        wheel = tmp_path / f"{name}-{version}.dist-info"
        wheel.mkdir()
        (wheel / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    proc = ("unshare", "--mount", "sh", "-c", 'mount --bind driver /proc/driver && exec "$0" "$@"')
    if subprocess.run([*proc, "true"], cwd=tmp_path, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a folder")
    kernel = tmp_path / "driver/nvidia/version"
    kernel.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
    (fault,) = faults(look(tmp_path, {}, *proc)[1])
    why = (
        "this image is made for GPUs (CUDA 13.0.96, which requires driver 580 or newer): the driver is 535.104.05; use"
    )
    assert fault.startswith(f"error: driver: no usable GPU, but {why} an image with an older CUDA version")
    kernel.write_text(kernel.read_text().replace("535.104.05", "580.65.06"))
    assert "ok: driver 580.65.06, CUDA 13.0.96, NCCL 2.29.7" in look(tmp_path, {}, *proc)[1]


@pytest.mark.proof
def test_each_replica_of_a_job_whose_command_begins_with_the_doctor_looks_and_then_trains(tmp_path: Path) -> None:
    looked = job(2)
    for pool in looked["workerPoolSpecs"]:
        pool["containerSpec"]["command"] = BEGINS_WITH_THE_DOCTOR
    (tmp_path / "vertex.toml").write_text(SETTINGS)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(looked))
    done = subprocess.run(
        [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--", *FLAGS, "--steps", "2", "--warmup", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Job succeeded" in done.stdout
    for log in (tmp_path / ".vertex/jobs").glob("*/workerpool[01]-0.log"):
        lines = [json.loads(line)["message"] for line in log.read_text().splitlines() if line.startswith("{")]
        found = [line for line in lines if line.startswith(tuple(f"{state}: " for state in STATES))]
        assert lines[: len(found)] == found
        assert any(line.startswith("ok: ports: ") for line in found)
        assert faults(found) == []


@ONCE
def test_a_fault_ends_a_replica_before_it_trains(tmp_path: Path) -> None:
    env = of_job("no-such-host.invalid:2222", *free_addresses(1))
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m trainer.doctor && exec {sys.executable} -m trainer.task"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1
    assert "error: names: no-such-host.invalid, this replica, has no IP address" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr
