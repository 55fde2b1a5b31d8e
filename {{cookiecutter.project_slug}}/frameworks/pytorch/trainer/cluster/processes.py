"""Starts a replica's processes, and adds each one to the process group and the device mesh.

PyTorch's elastic agent starts one process per GPU. If there are no GPUs, the agent starts the smallest number of
processes that the strategy supports. Ranks are static and follow the order of the replicas in the cluster. The agent
never restarts a process in place. Instead, Vertex AI restarts the replica, and the run resumes from the latest complete
checkpoint.
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

NEIGHBOR_SECONDS = 3.0  # the agent checks its processes ten times a second
# Messages of gloo (in a plain RuntimeError) and of NCCL about a peer that is lost or silent. Other messages may report
# an error in the program, such as sizes that differ between processes, or a GPU that two processes use.
GLOO_LOST = re.compile(
    r"\[\S*/gloo/(transport|rendezvous)/\S+\] |Gloo connectFullMesh failed|Application timeout caused pair closure"
)
NCCL_LOST = re.compile(r"ncclRemoteError|key-value store")


def launch(cluster: Cluster, mesh: Mesh, timeout: float, work: Callable[[], None] | Sequence[str]) -> None:
    """Run `work` in each process of this replica, and wait until all replicas have finished.

    Args:
        work: a picklable function, or Python's command-line arguments for the user's own program.

    Raises:
        ProcessError: if a process failed.
        EndedEarlyError: if a process exited with code 0 before `work` returned.
        PeerError: if this replica can't reach the other replicas.
        TrainerError: if PyTorch is built for GPUs but no GPU is usable.
    """
    count = mesh.size // len(cluster.nodes)
    if torch.backends.cuda.is_built() and not torch.cuda.is_available() and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(str(torch.version.cuda), driver.installed())}")
    _set_defaults(cluster, neighbors=mesh.size if cluster.chief.is_local else count)
    agent = elastic_launch(_launch_config(cluster, count, timeout), run_process if callable(work) else sys.executable)
    children, heartbeat = Children(cluster.name, take_notice=callable(work)), Heartbeat(cluster)
    metrics.configure(children)
    signal.signal(signal.SIGTERM, children.stop)
    try:
        agent(*((cluster.name, work) if callable(work) else work))
    except ChildFailedError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this program is about to exit with an error message
        if children.were_stopped:
            raise ProcessError(f"{cluster.name} was stopped by SIGTERM", -signal.SIGTERM) from None
        raise cause(error, cluster, mesh, heartbeat) from None
    except dist.DistError as error:
        raise PeerError(f"{cluster.name} can't join the other replicas at {cluster.chief.address}: {error}") from None
    except SignalException as error:
        raise ProcessError(f"{cluster.name} was stopped by {error.sigval.name}", -error.sigval) from None


def _set_defaults(cluster: Cluster, neighbors: int) -> None:
    """Set default values for PyTorch environment variables that aren't set.

    `neighbors` is the number of processes on this machine.
    """
    # By default, each process would start one thread per core, even if many processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // neighbors, 1)))
    # By default, gloo would resolve the hostname to an address that might not be reachable.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(cluster.chief))
    # The agent would log its own traceback for each failed process, and a line for SIGTERM. Instead, this program
    # reports which process failed or was stopped, and the process reports the reason.
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)


def cause(error: ChildFailedError, cluster: Cluster, mesh: Mesh, heartbeat: Heartbeat) -> TrainerError:
    """Return the error that a replica reports after one of its processes fails."""
    rank, failure = error.get_first_failure()
    name = cluster.process(rank, mesh.size)
    if failure.exitcode == -signal.SIGABRT and torch.cuda.is_available() and mesh.size > 1:
        loss = heartbeat.loss()
        said = (
            f"{name} was aborted by SIGABRT, because a peer was lost or because of an error in the lines above\n{loss}"
        )
        return PeerError(said, **loss.event)
    if failure.exitcode == LostPeerError.exit_code:
        return heartbeat.loss()
    if failure.exitcode == PeerError.exit_code:
        return PeerError()  # the process has printed the reason
    return ProcessError(f"{name} failed", failure.exitcode)


def interface_to(node: Node) -> str:
    """Return the network interface through which this machine reaches a node.

    If the network interface is unknown, return an empty string.
    """
    if node.is_local:
        return "lo0" if sys.platform == "darwin" else "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((node.host, 9))  # sends nothing: the system only selects an interface
        except OSError:
            return ""
        own = probe.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if own in {each.address for each in addresses}), "")


def _launch_config(cluster: Cluster, count: int, timeout: float) -> LaunchConfig:
    """Return the settings that PyTorch's agent uses to start `count` processes in this replica."""
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
        signals_to_handle="SIGINT,SIGHUP,SIGQUIT",  # `launch` handles SIGTERM
        shutdown_timeout=GRACE_SECONDS,
    )


def _free_port() -> int:
    """Return a free port for the processes of a single replica. A fixed port might already be in use by another run."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


class Children(metrics.MetricHandler):
    """A metrics handler that detects when a process of this replica exits early with code 0.

    Without this handler, the agent would wait forever for a process that exited early.

    The agent calls `emit` each time it checks its processes. A healthy process exits with code 0 only after all
    processes have returned. Source: torch 2.13, elastic/agent/server/api.py, `_invoke_run`.

    Args:
        take_notice: True if the processes save a checkpoint after a preemption notice. `take_notice` is False for the
            user's own program, which the agent stops as torchrun would.
    """

    def __init__(self, replica: str, *, take_notice: bool) -> None:
        self._replica, self._take_notice, self._started = replica, take_notice, set[Any]()
        self.were_stopped = False

    def _processes(self) -> set[Any]:
        """Return all processes that the agent has started, including those that have exited."""
        self._started.update(multiprocessing.active_children())
        return self._started

    def stop(self, *_: object) -> None:
        """Handle SIGTERM. If the processes handle preemption notices, send a notice to each process.

        Otherwise, stop the agent.
        """
        self.were_stopped, processes = True, self._processes()
        if not self._take_notice or not processes:
            raise SignalException("asked to stop", signal.SIGTERM)
        for process in filter(lambda one: one.is_alive(), processes):
            os.kill(process.pid, NOTICE)

    def emit(self, metric_data: metrics.MetricData) -> None:
        if metric_data.name.endswith(".healthy") and any(child.exitcode == 0 for child in self._processes()):
            raise EndedEarlyError(self._replica)


def run_process(replica: str, work: Callable[[], None]) -> None:
    """Run `work` in a process that the agent started. After an error, exit immediately.

    An immediate exit is necessary, because destroying a process group can hang or abort after peers are lost.
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
            said = f"{replica} lost a peer: {loss}; after a restart, training resumes from the last checkpoint"
            say(said, "ERROR", lost_peer="")  # the heartbeat identifies the peer
            code = LostPeerError.exit_code
        else:
            traceback.print_exc()
    sys.stdout.flush()
    if code == LostPeerError.exit_code and int(os.environ["LOCAL_WORLD_SIZE"]) > 1:
        signal.signal(stuck.ASK, signal.SIG_IGN)  # this process doesn't hang
        time.sleep(NEIGHBOR_SECONDS)  # the agent reports the process that exits first, which must be the failed one
    os._exit(code)


def lost_peer(error: Exception) -> str:
    """If the error reports a lost peer, return a one-line description. Otherwise, return an empty string."""
    text = str(error) or type(error).__name__
    of_nccl, of_gloo = isinstance(error, dist.DistBackendError), type(error) is RuntimeError
    is_loss = (of_nccl and NCCL_LOST.search(text)) or (of_gloo and GLOO_LOST.match(text))
    if not is_loss and not isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return ""
    return re.sub(r"^\[\S+\] ", "", text).partition("\n")[0].partition(". This is typically")[0]


class ProcessError(TrainerError):
    """The error that is raised if a process of this replica fails or if the replica is stopped.

    The failed process itself prints the reason for the failure.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        # Python reports signal N as -N, and containers report it as 128 + N.
        self.exit_code = 128 - exit_code if exit_code < 0 else exit_code or 1
        super().__init__(f"{text} (exit code {self.exit_code})")


@contextlib.contextmanager
def join(mesh: Mesh, timeout: float) -> Iterator[World]:
    """Join the process group and create the device mesh. Call this function once in each process that `launch` starts.

    Delete the wrapped model before the block ends. Otherwise, the model's reducer would hold the last reference to the
    process group. The reducer would then hold the GIL while waiting for threads that need it (pytorch/pytorch#56297).
    """
    backend, device = "gloo", torch.device("cpu")
    if torch.cuda.is_available():
        # Use the local rank, because the second machine doesn't have a device cuda:8.
        backend, device = "nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    device_id = device if device.type == "cuda" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=device_id)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size != mesh.size:
        raise TrainerError(
            f"wrong world size: {size} processes joined instead of {mesh.size};"
            " give all machines the same number of GPUs"
        )
    names, sizes = zip(*mesh.sizes.items(), strict=True)
    laid = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    for group in laid.get_all_groups():  # torch 2.13 creates them with its own timeout, up to 30 minutes
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    yield World(rank, size, device, laid)
    gc.collect()
    dist.destroy_process_group()
