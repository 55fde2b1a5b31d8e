"""Cluster -> processes, and their process group and device mesh.

Each replica runs one process per GPU, or one on the CPU, started by torch's elastic agent with static
ranks from the cluster. The agent never restarts a process in place: Vertex restarts the replica, and the
run resumes from its last whole checkpoint.
"""

import contextlib
import fcntl
import gc
import logging
import math
import os
import re
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.tensor import DTensor

from trainer import driver, reducers
from trainer.cluster import Cluster, Node
from trainer.errors import PeerError, TrainerError
from trainer.meshes import Mesh
from trainer.telemetry import say

SIOCGIFADDR = 0x8915
NEIGHBOUR_SECONDS = 3.0  # the agent looks at its processes ten times a second
# How gloo, as a plain RuntimeError, and NCCL say that a peer is gone or silent. What else either says may be a fault
# of the program: sizes that differ between processes, or a GPU that two of them use.
GLOO_LOST = re.compile(r"\[\S*/gloo/(transport|rendezvous)/\S+\] |Gloo connectFullMesh failed")
NCCL_LOST = re.compile(r"ncclRemoteError|key-value store")
Totals = dict[str, Tensor]  # sums over samples: of the loss, of each metric, and "samples", their number


def add(totals: Totals, more: Totals) -> None:
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


@dataclass(frozen=True)
class World:
    """All processes of the run, how they lie in the mesh, and which of them this one is."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None = None  # None for a process without a process group
    reducers: int = 0  # that NCCL may come to use
    group: dist.ProcessGroup | None = None  # of its collectives; None: the default, which only one thread may use

    def apart(self, timeout: float) -> "World":
        """The same processes, for another thread: the collectives of two threads must not mix.

        Every process must call it.

        Args:
            timeout: of a collective, in seconds.
        """
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        return replace(self, device=torch.device("cpu"), group=group)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """Shares into which the global batch is divided."""
        return self._size("replicate") * self._size("shard")

    @property
    def data_rank(self) -> int:
        """Which of the shares is this process's; the last dimension of the mesh may have it in common."""
        return self.rank // (self.size // self.data_size)

    @property
    def stages(self) -> int:
        return self._size("stage")

    @property
    def stage(self) -> int:
        return self.rank % self.stages

    def copies(self, tensor: Tensor) -> int:
        """Processes that hold the same as this one of a parameter or its gradient."""
        pieces = self.stages
        if isinstance(tensor, DTensor):
            cut = [not placement.is_replicate() for placement in tensor.placements]
            pieces *= math.prod(size for size, is_cut in zip(tensor.device_mesh.shape, cut, strict=True) if is_cut)
        return self.size // pieces

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Of the mesh, outermost first."""
        return (self.mesh and self.mesh.mesh_dim_names) or ()

    def along(self, *dimensions: str) -> DeviceMesh:
        """The part of the mesh that this process shares along these dimensions."""
        assert self.mesh is not None, "a process without a process group has nobody to share with"
        return self.mesh[dimensions]

    def _size(self, dimension: str) -> int:
        return self.along(dimension).size() if dimension in self.dimensions else 1

    def __str__(self) -> str:
        """`16 x NVIDIA A100-SXM4-40GB (driver 580.65.06, CUDA 13.0, NCCL 2.29.3)`"""
        if self.device.type != "cuda":
            return f"{self.size} x CPU"
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        return f"{self.size} x {self.device_name} ({driver.versions(str(torch.version.cuda), nccl)})"

    @property
    def device_name(self) -> str:
        """`NVIDIA A100-SXM4-40GB`"""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on each of them. Every process must call it."""
        dist.all_reduce(values, group=self.group)
        return values

    def means(self, totals: Totals) -> dict[str, float]:
        """Each sum of all processes, divided by their samples. Every process must call it, with or without sums."""
        of_each = self.gather({name: float(value) for name, value in totals.items()})
        names = dict.fromkeys(name for one in of_each for name in one)
        sums = {name: sum(one.get(name, 0.0) for one in of_each) for name in names}
        samples = sums.pop("samples")
        return {name: value / samples for name, value in sums.items()}

    def gather(self, value: Any) -> list[Any]:
        """What each process has, on each of them, by rank. Every process must call it."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def mark(self) -> Callable[[], float]:
        """What it returns tells for how many seconds the device has been done with what it has to do until now."""
        if self.device.type != "cuda":
            return lambda: math.inf
        done = torch.cuda.Event(enable_timing=True)
        done.record()

        def idle() -> float:
            if not done.query():
                return 0.0
            now = torch.cuda.Event(enable_timing=True)
            now.record()
            now.synchronize()  # at once: nothing is before it
            return float(done.elapsed_time(now)) / 1000

        return idle

    @property
    def memory(self) -> dict[str, float]:
        """The most that a GPU had in use."""
        if self.device.type != "cuda":
            return {}
        return {"memory_bytes": float(torch.cuda.max_memory_allocated(self.device))}

    def settle_reducers(self, *, required: bool) -> dict[str, float]:
        """What `reducers.settle` returns, once the device has nothing left to do. Every process must call it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

        def add(number: int) -> int:
            return int(self.sum(torch.tensor(float(number), device=self.device)))

        here = {"rank": self.rank, "ranks": self.size, "gpus": torch.cuda.device_count()}
        return reducers.settle(self.reducers, os.environ, add, **here, required=required)

    def wait(self) -> None:
        """Return when every process is here."""
        dist.barrier(self.group)


def launch(cluster: Cluster, mesh: Mesh, timeout: float, main: Callable[..., None], *args: Any) -> None:
    """Run `main(*args)` in this replica's share of the mesh's processes; return when all replicas have finished.

    Raises:
        ProcessError: a process failed; the text says which and how.
        PeerError: the others cannot be met.
        TrainerError: no GPU is usable.
    """
    count = mesh.size // len(cluster.nodes)
    # By default each process would have a thread for every core, also where many processes share the cores.
    neighbours = mesh.size if cluster.chief.is_local else count
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // neighbours, 1)))
    # Gloo would ask for the address of the host's name, which need not lead anywhere.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(cluster.chief))
    if torch.backends.cuda.is_built() and not torch.cuda.is_available() and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(str(torch.version.cuda), driver.installed())}")
    # The agent would log its own traceback for each failed process, and a line for SIGTERM; we say who failed or was
    # stopped, the process why.
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        elastic_launch(_launch_config(cluster, count, timeout), _process)(cluster.name, main, args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == -signal.SIGABRT and torch.cuda.is_available() and mesh.size > 1:
            told = f"process {rank} of {cluster.name} was aborted, as NCCL does when a peer is gone"
            raise PeerError(f"{told}; if none is, the lines above say why") from None
        raise ProcessError(f"process {rank} of {cluster.name} failed", failure.exitcode) from None
    except dist.DistError as error:
        raise PeerError(f"{cluster.name} cannot meet the others at {cluster.chief.address}: {error}") from None
    except SignalException as error:
        raise ProcessError(f"{cluster.name} was stopped by {error.sigval.name}", -error.sigval) from None


def interface_to(node: Node) -> str:
    """The network interface by which this machine reaches another one; empty where the system does not tell."""
    if node.is_local:
        return "lo0" if sys.platform == "darwin" else "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((node.host, 9))  # which sends nothing: the system only chooses the way
        except OSError:
            return ""
        own = socket.inet_aton(way.getsockname()[0])
        return next((name for _, name in socket.if_nameindex() if address_of(name, way) == own), "")


def address_of(interface: str, any_socket: socket.socket) -> bytes:
    """The IPv4 address of an interface; empty if it has none, or the system is not Linux.

    Source: netdevice(7).
    """
    try:
        asked = struct.pack("256s", interface.encode())
        return fcntl.ioctl(any_socket, SIOCGIFADDR, asked)[20:24]
    except OSError:
        return b""


def _launch_config(cluster: Cluster, count: int, timeout: float) -> LaunchConfig:
    """For so many processes in this replica."""
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
        shutdown_timeout=5,
    )


def _free_port() -> int:
    """For the processes of a single replica: another run beside it may have any port that is always the same."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def _process(replica: str, main: Callable[..., None], args: tuple[Any, ...]) -> None:
    """What the agent starts: `main`, or after an error the end of the process, at once.

    Tearing down a process group whose peers are gone can hang or abort; exiting cannot.
    """
    try:
        return main(*args)
    except TrainerError as error:
        say(str(error), "ERROR")
        code = error.exit_code
    except Exception as error:
        code = TrainerError.exit_code
        if loss := lost_peer(error):
            say(f"{replica} lost a peer: {loss}; the next start resumes from the last checkpoint", "ERROR")
            code = PeerError.exit_code
        else:
            traceback.print_exc()
    sys.stdout.flush()
    if code == PeerError.exit_code and int(os.environ["LOCAL_WORLD_SIZE"]) > 1:
        time.sleep(NEIGHBOUR_SECONDS)  # the agent reports the first to end: that must be a neighbour, if it was the one
    os._exit(code)


def lost_peer(error: Exception) -> str:
    """What the error says of a peer that is gone or silent, in one line; empty for every other error."""
    text = str(error) or type(error).__name__
    is_loss = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
    if isinstance(error, dist.DistBackendError):
        is_loss = bool(NCCL_LOST.search(text))
    elif type(error) is RuntimeError:
        is_loss = bool(GLOO_LOST.match(text))
    first = re.sub(r"^\[\S+\] ", "", text).partition("\n")[0]
    return first.partition(". This is typically")[0] if is_loss else ""


class ProcessError(TrainerError):
    """A process of this replica failed, its own output has said why; or the replica was stopped."""

    def __init__(self, text: str, exit_code: int) -> None:
        # Minus a signal's number, as Python reports it, becomes 128 plus it, as containers do.
        self.exit_code = 128 - exit_code if exit_code < 0 else exit_code or 1
        super().__init__(f"{text} (exit code {self.exit_code})")


@contextlib.contextmanager
def join(mesh: Mesh, timeout: float, reducer_count: int = 0) -> Iterator[World]:
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
    yield World(rank, size, device, init_device_mesh(device.type, sizes, mesh_dim_names=names), reducer_count)
    gc.collect()
    dist.destroy_process_group()
