"""python -m trainer.doctor: look at a replica's machine before the training, and say a line for each thing.

A line begins with ok, warning, fault or `not looked at`; a fault has a cure, and exit code 1. The doctor needs no
framework, no GPU and no job.
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

Findings: TypeAlias = Iterator[tuple[str, str]]  # a state, and a sentence about one thing

OK, SKIPPED, WARNING, FAULT = "ok", "not looked at", "warning", "fault"
ANSWER_SECONDS = 1.0  # of a peer, and of the metadata server
METADATA, CLOCK_SECONDS = "169.254.169.254", 10  # Source: Compute Engine documentation, "About VM metadata", 2026
# MiB free: docker gives 64, and several GPUs want 1 GiB. Source: NCCL documentation, "Troubleshooting".
SHARED_MEMORY, LEAST_MIB, GPUS_MIB = Path("/dev/shm"), 48, 1024
PROBE_MB, SLOW_MB = 16, 10  # written for a test; per second, below which a checkpoint of 1 GB takes minutes
NO_ADDRESS, RESTART = "has no address", "start the job again, for another machine"


@dataclass(frozen=True)
class Replica:
    """Machines, outputs and variables of a replica, known before its machine is looked at."""

    cluster: Cluster
    storage: Storage
    environ: Mapping[str, str]

    @property
    def gpus(self) -> int:
        """GPUs of this machine that CUDA_VISIBLE_DEVICES does not hide."""
        listed = self.environ.get("CUDA_VISIBLE_DEVICES")
        shown = [word for word in (listed or "").split(",") if word.strip() not in ("", "-1")]
        return _devices() if listed is None else min(_devices(), len(shown))

    @property
    def gpus_wanted(self) -> int:
        """acceleratorCount of this machine, by the job in CLUSTER_SPEC; 0 where that does not tell, and on a laptop."""
        with contextlib.suppress(LookupError, TypeError, ValueError):
            job = json.loads(self.environ["CLUSTER_SPEC"])["job"]
            # Nobody documents whether this is a text, and whether it has workerPoolSpecs or worker_pool_specs.
            text = job if isinstance(job, str) else json.dumps(job)
            pools = json.loads(text.replace("_", "").lower())["workerpoolspecs"]
            wanted = pools[int(self.cluster.name[len("workerpool")])]["machinespec"]["acceleratorcount"]
            return 0 if self.storage.emulated else int(wanted)
        return 0


def run(environ: Mapping[str, str]) -> None:
    """Look, and say all that was found, faults last. Raises TrainerError for faults."""
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
        yield SKIPPED, "variables, this is no job: CLUSTER_SPEC is not set"
    elif missing:
        yield WARNING, f"variables: no {missing}: outputs end with this machine; add baseOutputDirectory to the job"
    else:
        job = replica.environ.get("CLOUD_ML_JOB_ID") or "without CLOUD_ML_JOB_ID"
        yield OK, f"variables: {replica.cluster.name} of job {job}, with {', '.join(FOLDERS.values())}"


def network(replica: Replica) -> Findings:
    nodes = (*replica.cluster.nodes, *replica.cluster.servers)
    own = next((node for node in nodes if node.name == replica.cluster.name), None)
    if own is None or len(nodes) == 1:
        return (yield SKIPPED, f"names and ports, {replica.cluster.name} meets no other replica")
    with ThreadPoolExecutor(256) as pool:
        lost = {node: why for node, why in zip(nodes, pool.map(_why_lost, nodes), strict=True) if why}
    if own_lost := lost.pop(own, "") == NO_ADDRESS:
        yield FAULT, f"names: {own.host}, this replica, {NO_ADDRESS}; look at CLUSTER_SPEC and at /etc/hosts here"
    if lost:
        who = ", ".join(f"{node.name} {why} at {node.address}" for node, why in lost.items())
        yield WARNING, f"peers: {who}; if the machine is still to come, the roll call waits for it"
    elif not own_lost:
        yield OK, f"names and peers: {len(nodes)} of {len(nodes)} have an address and answer"
    try:
        rollcall.listen(own).close()
        yield OK, f"ports: {own.address} is free"
    except rollcall.RollcallError as error:  # not every framework has workers listen
        state = FAULT if own == replica.cluster.chief else WARNING
        yield state, f"ports: {error}; end the program that has it, or start the job again"


def _why_lost(node: Node) -> str:
    """Return why a machine cannot be reached. One that is there refuses where nobody listens yet."""
    try:
        socket.create_connection((node.host, node.port), ANSWER_SECONDS).close()
    except (socket.gaierror, UnicodeError):
        return NO_ADDRESS
    except OSError as error:
        return "" if isinstance(error, ConnectionError) else "does not answer"
    return ""


def clock(replica: Replica) -> Findings:
    if replica.storage.emulated or "CLUSTER_SPEC" not in replica.environ:
        return (yield SKIPPED, "clock, this is no machine of Vertex AI")
    host = replica.environ.get("GCE_METADATA_HOST") or METADATA
    try:
        with contextlib.closing(http.client.HTTPConnection(host, timeout=ANSWER_SECONDS)) as connection:
            connection.request("HEAD", "/")
            told = parsedate_to_datetime(connection.getresponse().headers["Date"] or "").timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError):
        return (yield SKIPPED, f"clock, no metadata server tells the time at {host}")
    ahead = round(time.time() - told)  # the header has whole seconds
    text = f"clock: ahead of the metadata server's by {ahead} s"
    yield _rated(text, abs(ahead) <= CLOCK_SECONDS, f"logins may be refused: {RESTART}")


def shared_memory(replica: Replica) -> Findings:
    if not SHARED_MEMORY.exists():
        return (yield SKIPPED, f"shared memory, this machine has no {SHARED_MEMORY}")
    free = shutil.disk_usage(SHARED_MEMORY).free >> 20
    user, needed = ("several GPUs", GPUS_MIB) if replica.gpus > 1 else ("--data-processes", LEAST_MIB)
    cure = f"{user} may need {needed}: give the container more (docker --shm-size)"
    yield _rated(f"shared memory: {SHARED_MEMORY} has {free} MiB free", free >= needed, cure)


def gpus(replica: Replica) -> Findings:
    usable, wanted, there = replica.gpus, replica.gpus_wanted, _devices()
    if usable < wanted:
        cure = "leave CUDA_VISIBLE_DEVICES unset" if there >= wanted else RESTART
        yield FAULT, f"GPUs: the job's machineSpec has {wanted}, and usable here are {usable} of {there}; {cure}"
    else:
        none = f"GPUs, this machine has none{' that CUDA_VISIBLE_DEVICES shows' if there else ''}"
        yield (OK, f"GPUs: {usable} usable") if usable else (SKIPPED, none)


def cuda(_: Replica) -> Findings:
    installed, version = driver.installed(), driver.wheel("nvidia-cuda-runtime")
    if not installed:
        yield SKIPPED, "driver, this machine has none"
    elif not version:  # as in some of Google's images, which have CUDA without wheels
        yield WARNING, f"driver: {installed}, and no wheel of CUDA; build the image with it, or training may be on CPUs"
    elif driver.is_too_old(installed, version):
        yield FAULT, f"driver: {driver.why_no_gpu(version, installed)}"
    else:
        yield OK, driver.versions(version, driver.wheel("nvidia-nccl") or "unknown")


def plug_in(replica: Replica) -> Findings:
    if not replica.cluster.servers or not replica.gpus:
        return (yield SKIPPED, "NCCL's plug-in, there are no reducers or no GPUs")
    why = reducers.verdict() or ("; ".join(nccl.ALGO_FORCED) if "NCCL_ALGO" in replica.environ else "")
    yield (WARNING, f"reducers: {why}") if why else (OK, "reducers: nothing is known that keeps NCCL from them")


def outputs(replica: Replica) -> Findings:
    try:
        folders = writable.require_writable(replica.storage, writable.CHIEF)
        for folder in {folder.stat().st_dev: folder for folder in folders}.values():  # one on each disk or mount
            yield _speed(folder)
    except TrainerError as error:
        yield from ((FAULT, line) for line in str(error).splitlines())


def _speed(folder: Path) -> tuple[str, str]:
    """Write a file, read it, as that is a right of its own, and delete it; a mounted bucket uploads it at fsync."""
    with writable.writing(folder), tempfile.NamedTemporaryFile(prefix=writable.PROBE, dir=folder) as file:
        began = time.monotonic()
        file.write(bytes(PROBE_MB * 10**6))
        os.fsync(file.fileno())
        rate = PROBE_MB / (time.monotonic() - began)
        Path(file.name).read_bytes()
    cure = "each checkpoint will be waited for: take a bucket in the job's region"
    return _rated(f"disk: {folder}: writes {rate:.0f} MB/s", rate >= SLOW_MB, cure)


def _rated(text: str, is_well: bool, cure: str) -> tuple[str, str]:
    return (OK, text) if is_well else (WARNING, f"{text}; {cure}")


def _devices() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


CHECKS = (variables, network, clock, shared_memory, gpus, cuda, plug_in, outputs)


if __name__ == "__main__":
    sys.exit(exit_code(run, os.environ))
