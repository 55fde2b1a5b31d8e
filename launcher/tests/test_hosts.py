"""Replicas are different hosts, as in the service: by name, by address, and by their mounts."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.tests.running import SETTINGS, SOURCE, ends_together, job
from vertex_launch.errors import FaultError
from vertex_launch.job.spec import Job, parse
from vertex_launch.job.state_dir import StateDir
from vertex_launch.local.running import hosts, nfs
from vertex_launch.local.running.namespaces import Isolation, isolation

TELL = """
import json, os, socket
spec = json.loads(os.environ["CLUSTER_SPEC"])
everyone = [address.partition(":")[0] for pool in spec["cluster"].values() for address in pool]
own = spec["cluster"][spec["task"]["type"]][spec["task"]["index"]].partition(":")[0]
names = [own, socket.gethostname(), socket.getfqdn(), os.environ["HOSTNAME"]]
print("told", json.dumps([names, [socket.gethostbyname(name) for name in everyone], os.environ["MASTER_ADDR"]]))
"""

Project = Callable[..., str]  # pools -> what the run of their job says


@pytest.fixture
def run(tmp_path: Path) -> Project:
    """A function that runs a job of these pools to its end, and returns all that is said."""
    if not isolation(tmp_path / ".vertex/gcs").hosts:
        pytest.skip("this system gives processes no host names of their own")
    (tmp_path / "vertex.toml").write_text(SETTINGS)

    def run(*pools: dict[str, Any], code: int = 0) -> str:
        document = {"workerPoolSpecs": list(pools), "network": "projects/1/global/networks/n"}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "vertex_launch", "run", "job.yaml"]
        environ = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def pool(script: str, count: int = 1, **more: Any) -> dict[str, Any]:
    (described,) = job(command=["python", "-c", script])["workerPoolSpecs"]
    return {**described, "replicaCount": count, **more}


def test_each_replica_is_a_host_whose_name_all_the_others_resolve(run: Project) -> None:
    here = socket.gethostname()
    script = TELL + ends_together(3)
    told = [
        json.loads(line.partition(" told ")[2])
        for line in run(pool(script), pool(script, 2)).splitlines()
        if line.startswith("[") and " told " in line
    ]
    own = {names[0] for names, _, _ in told}
    assert len(told) == len(own) == 3
    assert all({*names} == {names[0]} for names, _, _ in told)  # of CLUSTER_SPEC, the system, and HOSTNAME
    (addresses,) = {tuple(addresses) for _, addresses, _ in told}
    assert len({*addresses}) == 3
    assert all(address.startswith("127.") for address in addresses)
    (chief,) = {chief for *_, chief in told}
    assert chief.startswith("cmle-training-workerpool0-")
    assert chief.endswith("-0")
    assert socket.gethostname() == here


def test_without_names_replicas_share_an_address_and_have_a_port_each() -> None:
    machines = hosts.of_job(of(pool(""), pool("", 2)), "1", named=False)
    assert {host.name for host in machines.values()} == {"127.0.0.1"}
    assert len({host.port for host in machines.values()}) == 3


def test_two_jobs_have_hosts_of_different_names_and_ports() -> None:
    spec = of(pool(""), pool("", 300))
    one, two = (hosts.of_job(spec, job_id, named=True) for job_id in ("1", "2"))
    for part in ("name", "port", "ip"):
        assert len({getattr(host, part) for host in one.values()}) == 301
    assert not {host.address for host in one.values()} & {host.address for host in two.values()}
    assert one[1, 299].name.endswith("-299")


def test_replicas_reach_each_other_past_the_proxy_of_the_shell() -> None:
    machines = hosts.of_job(of(pool("")), "1", named=True).values()
    (name,) = (host.name for host in machines)
    assert hosts.off_the_proxy({"PATH": "/bin"}, machines) == {}
    past = hosts.off_the_proxy({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".corp"}, machines)
    assert (
        past["NO_PROXY"]
        == past["no_proxy"]
        == f".corp,localhost,127.0.0.1,127.0.0.0/8,metadata.google.internal,metadata,{name}"
    )


MOUNT = {"server": "10.0.0.2", "path": "/share", "mountPoint": "weights"}


@pytest.mark.parametrize("point", ["weights", "/mnt/nfs/weights"])
def test_an_nfs_mount_is_a_folder_that_its_pool_alone_sees_and_that_stays(
    tmp_path: Path, run: Project, point: str
) -> None:
    see = "import os, sys; print('sees', os.path.isdir('/mnt/nfs/weights'))"
    use = (
        "from pathlib import Path; file = Path('/mnt/nfs/weights/x'); print('was', file.exists()); file.write_text('1')"
    )
    mounted = pool(f"{see}; {use}", nfsMounts=[MOUNT | {"mountPoint": point}])
    assert "sees True" in (first := run(mounted, pool(see)))
    assert "was False" in first
    assert "sees False" in first
    assert (tmp_path / ".vertex/nfs/10.0.0.2/share/x").read_text() == "1"
    assert "was True" in run(mounted)
    assert not Path("/mnt/nfs/weights").exists()


def test_an_nfs_mount_stays_in_the_folder_of_its_server(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match=r'nfsMounts: a path contains "\.\."; remove it'):
        nfs.folders(of(pool("", nfsMounts=[MOUNT | {"path": "/../../x"}])), StateDir(tmp_path))
    assert not any(tmp_path.iterdir())


def test_an_nfs_mount_is_refused_where_processes_can_have_none() -> None:
    with pytest.raises(FaultError, match="processes can't mount folders on this system; run the job with --containers"):
        nfs.require_mounts(of(pool("", nfsMounts=[MOUNT])), Isolation())


def of(*pools: dict[str, Any]) -> Job:
    return Job("job.yaml", "job", parse(json.dumps({"workerPoolSpecs": list(pools)}), "job.yaml"))
