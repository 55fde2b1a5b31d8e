"""The processes of a replica, and the process group and device mesh that they join.

Each replica runs one process per GPU, or one on the CPU, started by torch's elastic agent with static
ranks from the cluster. The agent never restarts a process in place: Vertex restarts the replica, and the
run resumes from its last whole checkpoint.
"""

import contextlib
import gc
import logging
import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.metrics import api as metrics
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainer.cluster import stuck
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.preemption import GRACE_SECONDS, NOTICE, StoppedError
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh, World
from trainer.vertex import driver
from trainer.vertex.errors import EndedEarlyError, LostPeerError, PeerError, TrainerError, no_exit
from trainer.vertex.log import say

NEIGHBOUR_SECONDS = 3.0  # the agent looks at its processes ten times a second
# How gloo, as a plain RuntimeError, and NCCL say that a peer is gone or silent. What else either says may be a fault
# of the program: sizes that differ between processes, or a GPU that two of them use.
GLOO_LOST = re.compile(
    r"\[\S*/gloo/(transport|rendezvous)/\S+\] |Gloo connectFullMesh failed|Application timeout caused pair closure"
)
NCCL_LOST = re.compile(r"ncclRemoteError|key-value store")


def launch(cluster: Cluster, mesh: Mesh, timeout: float, work: Callable[[], None] | Sequence[str]) -> None:
    """Run `work` in this replica's share of the mesh's processes; return when all replicas have finished.

    Args:
        work: a function that can be pickled, or the arguments with which this Python runs a program of the user's own.

    Raises:
        ProcessError: a process failed; the text says which and how.
        EndedEarlyError: a process ended with code 0 before the function returned.
        PeerError: the others cannot be met.
        TrainerError: no GPU is usable.
    """
    count = mesh.size // len(cluster.nodes)
    if torch.backends.cuda.is_built() and not torch.cuda.is_available() and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(str(torch.version.cuda), driver.installed())}")
    _set_defaults(cluster, neighbours=mesh.size if cluster.chief.is_local else count)
    agent = elastic_launch(_launch_config(cluster, count, timeout), run_process if callable(work) else sys.executable)
    children, heartbeat = Children(cluster.name, take_notice=callable(work)), Heartbeat(cluster)
    metrics.configure(children)
    signal.signal(signal.SIGTERM, children.stop)
    try:
        agent(*((cluster.name, work) if callable(work) else work))
    except ChildFailedError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this program is about to end, and says why
        if children.were_stopped:
            raise ProcessError(f"{cluster.name} was stopped by SIGTERM", -signal.SIGTERM) from None
        raise cause(error, cluster, mesh, heartbeat) from None
    except dist.DistError as error:
        raise PeerError(f"{cluster.name} cannot meet the others at {cluster.chief.address}: {error}") from None
    except SignalException as error:
        raise ProcessError(f"{cluster.name} was stopped by {error.sigval.name}", -error.sigval) from None


def _set_defaults(cluster: Cluster, neighbours: int) -> None:
    """Set what torch reads, where it is not set; `neighbours` processes share this machine."""
    # By default each process would have a thread for every core, also where many processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // neighbours, 1)))
    # Gloo would ask for the address of the host's name, which need not lead anywhere.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(cluster.chief))
    # The agent would log its own traceback for each failed process, and a line for SIGTERM; we say who failed or was
    # stopped, the process why.
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)


def cause(error: ChildFailedError, cluster: Cluster, mesh: Mesh, heartbeat: Heartbeat) -> TrainerError:
    """Return the error of a replica of which a process has failed."""
    rank, failure = error.get_first_failure()
    name = cluster.process(rank, mesh.size)
    if failure.exitcode == -signal.SIGABRT and torch.cuda.is_available() and mesh.size > 1:
        loss = heartbeat.loss()
        said = f"{name} was aborted, as NCCL does when a peer is gone; if none is, the lines above say why\n{loss}"
        return PeerError(said, **loss.event)
    if failure.exitcode == LostPeerError.exit_code:
        return heartbeat.loss()
    if failure.exitcode == PeerError.exit_code:
        return PeerError()  # the process has said why
    return ProcessError(f"{name} failed", failure.exitcode)


def interface_to(node: Node) -> str:
    """Name of the network interface by which this machine reaches another one; empty where the system does not tell."""
    if node.is_local:
        return "lo0" if sys.platform == "darwin" else "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((node.host, 9))  # which sends nothing: the system only chooses an interface
        except OSError:
            return ""
        own = probe.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if own in {each.address for each in addresses}), "")


def _launch_config(cluster: Cluster, count: int, timeout: float) -> LaunchConfig:
    """Return torchrun's settings for `count` processes in this replica."""
    return LaunchConfig(
        min_nodes=len(cluster.nodes),
        max_nodes=len(cluster.nodes),
        nproc_per_node=count,
        run_id="training",
        rdzv_backend="static",
        rdzv_endpoint=cluster.chief.address if len(cluster.nodes) > 1 else f"localhost:{_free_port()}",
        rdzv_configs={"rank": cluster.rank, "timeout": math.ceil(timeout)},
        local_addr=cluster.nodes[cluster.rank].host,
        max_restarts=0,
        signals_to_handle="SIGINT,SIGHUP,SIGQUIT",  # SIGTERM is ours
        shutdown_timeout=GRACE_SECONDS,
    )


def _free_port() -> int:
    """Return a port for the processes of a single replica: another run beside it may have any fixed one."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


class Children(metrics.MetricHandler):
    """The processes of this replica: looks for one that ended with code 0, for which torch's agent would wait for ever.

    The agent calls it after each look at its processes; a healthy one ends with 0 when all have returned, never before.
    Source: torch 2.13, elastic/agent/server/api.py, `_invoke_run`.

    Args:
        take_notice: whether they save their step when a notice comes; a program of the user's own gets what it would
            get from torchrun.
    """

    def __init__(self, replica: str, *, take_notice: bool) -> None:
        self._replica, self._take_notice, self._started = replica, take_notice, set[Any]()
        self.were_stopped = False

    def _processes(self) -> set[Any]:
        """All that the agent has started, also those that have ended."""
        self._started.update(multiprocessing.active_children())
        return self._started

    def stop(self, *_: object) -> None:
        """Pass SIGTERM on, as a notice to those that take one."""
        self.were_stopped, processes = True, self._processes()
        if not self._take_notice or not processes:
            raise SignalException("told to end", signal.SIGTERM)
        for process in filter(lambda one: one.is_alive(), processes):
            os.kill(process.pid, NOTICE)

    def emit(self, metric_data: metrics.MetricData) -> None:
        if metric_data.name.endswith(".healthy") and any(child.exitcode == 0 for child in self._processes()):
            raise EndedEarlyError(self._replica)


def run_process(replica: str, work: Callable[[], None]) -> None:
    """Do the work in a process that the agent has started; after an error end the process at once.

    Tearing down a process group whose peers are gone can hang or abort; exiting cannot.
    """
    stuck.record()
    try:
        with no_exit(replica):
            return work()
    except StoppedError as error:
        if os.environ["LOCAL_RANK"] == "0":
            say(str(error), "WARNING", **error.event)
        os._exit(error.exit_code)
    except TrainerError as error:
        say(str(error), "ERROR", **error.event)
        code = error.exit_code
    except Exception as error:
        code = TrainerError.exit_code
        if loss := lost_peer(error):
            said = f"{replica} lost a peer: {loss}; the next start resumes from the last checkpoint"
            say(said, "ERROR", lost_peer="")  # the heartbeat knows which
            code = LostPeerError.exit_code
        else:
            traceback.print_exc()
    sys.stdout.flush()
    if code == LostPeerError.exit_code and int(os.environ["LOCAL_WORLD_SIZE"]) > 1:
        signal.signal(stuck.ASK, signal.SIG_IGN)  # it does not hang
        time.sleep(NEIGHBOUR_SECONDS)  # the agent reports the first to end: that must be a neighbour, if it was the one
    os._exit(code)


def lost_peer(error: Exception) -> str:
    """Say in one line which peer is gone or silent by this error; empty for every other error."""
    text = str(error) or type(error).__name__
    of_nccl, of_gloo = isinstance(error, dist.DistBackendError), type(error) is RuntimeError
    is_loss = (of_nccl and NCCL_LOST.search(text)) or (of_gloo and GLOO_LOST.match(text))
    if not is_loss and not isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return ""
    return re.sub(r"^\[\S+\] ", "", text).partition("\n")[0].partition(". This is typically")[0]


class ProcessError(TrainerError):
    """A process of this replica failed, its own output has said why; or the replica was stopped."""

    def __init__(self, text: str, exit_code: int) -> None:
        # Python reports signal N as -N, containers as 128 + N.
        self.exit_code = 128 - exit_code if exit_code < 0 else exit_code or 1
        super().__init__(f"{text} (exit code {self.exit_code})")


@contextlib.contextmanager
def join(mesh: Mesh, timeout: float) -> Iterator[World]:
    """Join the process group, once, in a process that `launch` started, and lay the processes out as in `mesh`.

    The wrapped model must be gone when the block ends. Its reducer would own the group's last reference and
    wait, with Python's lock held, for threads of the group that need this lock (pytorch/pytorch#56297).
    """
    backend, device = "gloo", torch.device("cpu")
    if torch.cuda.is_available():
        # The local rank: on the second machine there is no cuda:8.
        backend, device = "nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    device_id = device if device.type == "cuda" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=device_id)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size != mesh.size:
        raise TrainerError(f"{size} processes have joined, not {mesh.size}; give all machines the same number of GPUs")
    names, sizes = zip(*mesh.sizes.items(), strict=True)
    laid = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    for group in laid.get_all_groups():  # torch 2.13 makes them with its own timeout, of up to 30 minutes
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    yield World(rank, size, device, laid)
    gc.collect()
    dist.destroy_process_group()
