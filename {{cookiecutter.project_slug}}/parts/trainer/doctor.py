"""Checks a replica's machine before training, and prints one line per check (python -m trainer.doctor).

Each line begins with `ok`, `skipped`, `warning`, or `error`. Each error also suggests a fix. If there is an error, the
exit code is 1. The doctor doesn't require a framework, a GPU, or a job.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeAlias

from trainer.cluster import rollcall, spec
from trainer.cluster.spec import Cluster, Node
from trainer.vertex import driver, nccl, reducers, storage, writable
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import exit_code, say
from trainer.vertex.storage import FOLDERS, Storage

Findings: TypeAlias = Iterator[tuple[str, str]]  # a state, and a sentence about one check

OK, SKIPPED, WARNING, FAULT = "ok", "skipped", "warning", "error"
ANSWER_SECONDS = 1.0  # timeout for a peer and for the metadata server
METADATA, CLOCK_SECONDS = "169.254.169.254", 10  # Source: Compute Engine documentation, "About VM metadata", 2026
# Free MiB: docker provides 64, and several GPUs need 1 GiB. Source: NCCL documentation, "Troubleshooting".
SHARED_MEMORY, LEAST_MIB, GPUS_MIB = Path("/dev/shm"), 48, 1024
PROBE_MB, SLOW_MB = 16, 10  # size of the test file; MB/s, below which a checkpoint of 1 GB takes minutes
NO_ADDRESS, RESTART = "has no IP address", "start the job again to get another machine"


@dataclass(frozen=True)
class Replica:
    """A replica's cluster, outputs, and environment variables, which are known before the machine is checked."""

    cluster: Cluster
    storage: Storage
    environ: Mapping[str, str]

    @property
    def gpus(self) -> int:
        """The number of GPUs on this machine that CUDA_VISIBLE_DEVICES doesn't hide."""
        listed = self.environ.get("CUDA_VISIBLE_DEVICES")
        shown = [word for word in (listed or "").split(",") if word.strip() not in ("", "-1")]
        return _devices() if listed is None else min(_devices(), len(shown))

    @property
    def gpus_wanted(self) -> int:
        """The machine's acceleratorCount in CLUSTER_SPEC.

        In the local Vertex, or if the count isn't set, the value is 0.
        """
        with contextlib.suppress(LookupError, TypeError, ValueError):
            job = json.loads(self.environ["CLUSTER_SPEC"])["job"]
            # It isn't documented whether this is a string, and whether it has workerPoolSpecs or worker_pool_specs.
            text = job if isinstance(job, str) else json.dumps(job)
            pools = json.loads(text.replace("_", "").lower())["workerpoolspecs"]
            wanted = pools[int(self.cluster.name[len("workerpool")])]["machinespec"]["acceleratorcount"]
            return 0 if self.storage.emulated else int(wanted)
        return 0


def run(environ: Mapping[str, str]) -> None:
    """Run all checks and print the findings.

    Raises TrainerError if any check finds an error. The TrainerError contains all errors.
    """
    replica = Replica(spec.from_env(environ), storage.from_env(environ), environ)
    found = [pair for check in CHECKS for pair in check(replica)]
    for state, text in found:
        if state != FAULT:
            say(f"{state}: {text}", "WARNING" if state == WARNING else "INFO")
    if faults := [f"{state}: {text}" for state, text in found if state == FAULT]:
        raise TrainerError("\n".join(faults))


def variables(replica: Replica) -> Findings:
    missing = ", ".join(name for name in FOLDERS.values() if not replica.environ.get(name))
    if "CLUSTER_SPEC" not in replica.environ:
        yield SKIPPED, "variables, because this isn't a job (CLUSTER_SPEC isn't set)"
    elif missing:
        yield (
            WARNING,
            f"variables: the job doesn't set {missing}, so outputs are lost with the machine; set baseOutputDirectory",
        )
    else:
        job = replica.environ.get("CLOUD_ML_JOB_ID") or "without CLOUD_ML_JOB_ID"
        yield OK, f"variables: {replica.cluster.name} of job {job}, with {', '.join(FOLDERS.values())}"


def network(replica: Replica) -> Findings:
    nodes = (*replica.cluster.nodes, *replica.cluster.servers)
    own = next((node for node in nodes if node.name == replica.cluster.name), None)
    if own is None or len(nodes) == 1:
        return (yield SKIPPED, f"names and ports, because {replica.cluster.name} doesn't connect to other replicas")
    with ThreadPoolExecutor(256) as pool:
        lost = {node: why for node, why in zip(nodes, pool.map(_why_lost, nodes), strict=True) if why}
    if own_lost := lost.pop(own, "") == NO_ADDRESS:
        yield FAULT, f"names: {own.host}, this replica, {NO_ADDRESS}; check CLUSTER_SPEC and this machine's /etc/hosts"
    if lost:
        who = ", ".join(f"{node.name} {why} at {node.address}" for node, why in lost.items())
        yield WARNING, f"peers: {who}; if the machine hasn't started yet, the roll call waits for it"
    elif not own_lost:
        yield OK, f"names and peers: {len(nodes)} of {len(nodes)} have an IP address and respond"
    try:
        rollcall.listen(own).close()
        yield OK, f"ports: {own.address} is free"
    except rollcall.RollcallError as error:  # not every framework has workers listen
        state = FAULT if own == replica.cluster.chief else WARNING
        yield state, f"ports: {error}; stop the program that uses the port, or start the job again"


def _why_lost(node: Node) -> str:
    """Return why a machine is unreachable. If the machine accepts or refuses a connection, return an empty string."""
    try:
        socket.create_connection((node.host, node.port), ANSWER_SECONDS).close()
    except (socket.gaierror, UnicodeError):
        return NO_ADDRESS
    except OSError as error:
        return "" if isinstance(error, ConnectionError) else "does not respond"
    return ""


def clock(replica: Replica) -> Findings:
    if replica.storage.emulated or "CLUSTER_SPEC" not in replica.environ:
        return (yield SKIPPED, "clock, because this isn't a Vertex AI machine")
    host = replica.environ.get("GCE_METADATA_HOST") or METADATA
    try:
        with contextlib.closing(http.client.HTTPConnection(host, timeout=ANSWER_SECONDS)) as connection:
            connection.request("HEAD", "/")
            told = parsedate_to_datetime(connection.getresponse().headers["Date"] or "").timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError):
        return (yield SKIPPED, f"clock, because the metadata server at {host} doesn't return the time")
    ahead = round(time.time() - told)  # the header has whole seconds
    text = f"clock: {ahead} s ahead of the metadata server's clock"
    yield _rated(text, abs(ahead) <= CLOCK_SECONDS, f"credentials might be rejected; {RESTART}")


def shared_memory(replica: Replica) -> Findings:
    if not SHARED_MEMORY.exists():
        return (yield SKIPPED, f"shared memory, because this machine doesn't have {SHARED_MEMORY}")
    free = shutil.disk_usage(SHARED_MEMORY).free >> 20
    user, needed = ("several GPUs", GPUS_MIB) if replica.gpus > 1 else ("--data-processes", LEAST_MIB)
    cure = f"{user} might need {needed} MiB; give the container more shared memory (docker --shm-size)"
    yield _rated(f"shared memory: {SHARED_MEMORY} has {free} MiB free", free >= needed, cure)


def gpus(replica: Replica) -> Findings:
    usable, wanted, there = replica.gpus, replica.gpus_wanted, _devices()
    if usable < wanted:
        cure = "leave CUDA_VISIBLE_DEVICES unset" if there >= wanted else RESTART
        yield FAULT, f"GPUs: the job's machineSpec has {wanted}, but only {usable} of {there} are usable; {cure}"
    else:
        none = f"GPUs, because this machine has none{' that CUDA_VISIBLE_DEVICES lists' if there else ''}"
        yield (OK, f"GPUs: {usable} usable") if usable else (SKIPPED, none)


def cuda(_: Replica) -> Findings:
    installed, version = driver.installed(), driver.wheel("nvidia-cuda-runtime")
    if not installed:
        yield SKIPPED, "driver, because this machine has none"
    elif not version:  # some of Google's images contain CUDA without wheels
        yield WARNING, f"driver: {installed}, but the image lacks a CUDA wheel, so training might use CPUs; install one"
    elif driver.is_too_old(installed, version):
        yield FAULT, f"driver: {driver.why_no_gpu(version, installed)}"
    else:
        yield OK, driver.versions(version, driver.wheel("nvidia-nccl") or "unknown")


def plug_in(replica: Replica) -> Findings:
    if not replica.cluster.servers or not replica.gpus:
        return (yield SKIPPED, "NCCL's plug-in, because the job lacks reducers or this machine lacks GPUs")
    why = reducers.verdict() or ("; ".join(nccl.ALGO_FORCED) if "NCCL_ALGO" in replica.environ else "")
    yield ((WARNING, f"reducers: {why}") if why else (OK, "reducers: no known problem prevents NCCL from using them"))


def outputs(replica: Replica) -> Findings:
    try:
        folders = writable.require_writable(replica.storage, writable.CHIEF)
        for folder in {folder.stat().st_dev: folder for folder in folders}.values():  # one on each disk or mount
            yield _speed(folder)
    except TrainerError as error:
        yield from ((FAULT, line) for line in str(error).splitlines())


def _speed(folder: Path) -> tuple[str, str]:
    """Write, read, and delete a file, and return a finding about the write speed.

    The function also reads the file, because reading requires a separate permission. A mounted bucket uploads the file
    when fsync is called.
    """
    with writable.writing(folder), tempfile.NamedTemporaryFile(prefix=writable.PROBE, dir=folder) as file:
        began = time.monotonic()
        file.write(bytes(PROBE_MB * 10**6))
        os.fsync(file.fileno())
        rate = PROBE_MB / (time.monotonic() - began)
        Path(file.name).read_bytes()
    cure = "each checkpoint will delay training; use a bucket in the job's region"
    return _rated(f"disk: {folder}: writes {rate:.0f} MB/s", rate >= SLOW_MB, cure)


def _rated(text: str, is_well: bool, cure: str) -> tuple[str, str]:
    return (OK, text) if is_well else (WARNING, f"{text}; {cure}")


def _devices() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


CHECKS = (variables, network, clock, shared_memory, gpus, cuda, plug_in, outputs)


if __name__ == "__main__":
    sys.exit(exit_code(run, os.environ))
