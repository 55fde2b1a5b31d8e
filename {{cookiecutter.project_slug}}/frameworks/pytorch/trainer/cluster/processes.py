"""Runs a replica's work in its processes, and adds each process to the process group and the device mesh.

A replica runs one process per GPU. If there are no GPUs, it runs the smallest number of processes that the strategy
supports.
"""

import contextlib
import gc
import os
import pickle
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from trainer.cluster import stuck, supervisor
from trainer.cluster.preemption import NOTICE, StoppedError
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh, World
from trainer.vertex import driver
from trainer.vertex.errors import LostPeerError, TrainerError, no_exit
from trainer.vertex.log import say

NEIGHBOR_SECONDS = 3.0  # in which the supervisor notices that another process has failed
# Messages of gloo (in a plain RuntimeError) and of NCCL about a peer that is lost or silent. Other messages may report
# an error in the program, such as sizes that differ between processes, or a GPU that two processes use.
GLOO_LOST = re.compile(
    r"\[\S*/gloo/(transport|rendezvous)/\S+\] |Gloo connectFullMesh failed|Application timeout caused pair closure"
)
NCCL_LOST = re.compile(r"ncclRemoteError|key-value store")


def launch(cluster: Cluster, mesh: Mesh, work: Callable[[], None]) -> None:
    """Run `work` in each process of this replica. Call `launch` after the roll call, in the replica's first process.

    Args:
        work: a picklable function.

    Raises:
        TrainerError: if PyTorch is built for GPUs but no GPU is usable.
    """
    count, gpus = mesh.size // len(cluster.nodes), torch.cuda.is_available()
    if torch.backends.cuda.is_built() and not gpus and not cluster.chief.is_local:
        raise TrainerError(f"{cluster.name}: {driver.why_no_gpu(str(torch.version.cuda), driver.installed())}")
    signal.signal(NOTICE, signal.SIG_DFL)  # until the training loop handles it; the supervisor releases the lease
    own = partial(run_process, cluster.name, work)
    with rendezvous(cluster) as (host, port):
        os.environ.update({"MASTER_ADDR": host, "MASTER_PORT": str(port)})
        _set_defaults(cluster, neighbors=mesh.size if cluster.chief.is_local else count)
        pickled = pickle.dumps(own) if count > 1 else b""
        supervisor.begin(supervisor.Work(cluster, mesh.size, gpus, {**os.environ}, pickled))
        own()


def _set_defaults(cluster: Cluster, neighbors: int) -> None:
    """Set default values for PyTorch environment variables that aren't set.

    `neighbors` is the number of processes on this machine.
    """
    # By default, each process would start one thread per core, even if many processes share the cores.
    if "OMP_NUM_THREADS" not in os.environ:
        threads = max((os.cpu_count() or 1) // neighbors, 1)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)  # this process has already imported PyTorch, which reads the variable
    # By default, gloo would resolve the hostname to an address that might not be reachable.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(cluster.chief))
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does


@contextlib.contextmanager
def rendezvous(cluster: Cluster) -> Iterator[tuple[str, int]]:
    """Yield the host and port on which the process with rank 0 will listen.

    Several replicas use the chief's address, which is free after the roll call. A single replica reserves a free port,
    because a fixed port might already be in use by another run.
    """
    if len(cluster.nodes) > 1:
        yield cluster.chief.host, cluster.chief.port
        return
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that the process can listen on the port
        reserved.bind(("localhost", 0))
        yield "localhost", reserved.getsockname()[1]


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


def run_process(replica: str, work: Callable[[], None]) -> None:
    """Run `work` in one of the replica's processes. After an error, print it and raise SystemExit."""
    stuck.record()
    try:
        with no_exit(replica):
            return work()
    except StoppedError as error:
        if os.environ["LOCAL_RANK"] == "0":
            say(str(error), "WARNING", **error.event)
        code = error.exit_code
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
        time.sleep(NEIGHBOR_SECONDS)  # the process that exits first is reported, and must be the failed one
    raise SystemExit(code)


def lost_peer(error: Exception) -> str:
    """If the error reports a lost peer, return a one-line description. Otherwise, return an empty string."""
    text = str(error) or type(error).__name__
    of_nccl, of_gloo = isinstance(error, dist.DistBackendError), type(error) is RuntimeError
    is_loss = (of_nccl and NCCL_LOST.search(text)) or (of_gloo and GLOO_LOST.match(text))
    if not is_loss and not isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return ""
    return re.sub(r"^\[\S+\] ", "", text).partition("\n")[0].partition(". This is typically")[0]


@contextlib.contextmanager
def join(mesh: Mesh, timeout: float, store: Any = None) -> Iterator[World]:
    """Join the process group and create the device mesh. Call this function once in the work of each process.

    Delete the wrapped model before the block ends. Otherwise, the model's reducer would hold the last reference to the
    process group. The reducer would then hold the GIL while waiting for threads that need it (pytorch/pytorch#56297).

    Args:
        timeout: the longest duration of a collective, in seconds.
        store: the store with which the processes create the process group. By default, the first process creates one.
    """
    backend, device = "gloo", torch.device("cpu")
    if torch.cuda.is_available():
        # Use the local rank, because the second machine doesn't have a device cuda:8.
        backend, device = "nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    device_id = device if device.type == "cuda" else None
    # A counter names the process groups, and all processes must use the same name. An earlier attempt that failed
    # increased the counter, but maybe not in all processes.
    vars(distributed_c10d)["_group_count"] = 0
    given = {"store": store, "rank": int(os.environ["RANK"]), "world_size": mesh.size} if store else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=device_id, **given)
    names, sizes = zip(*mesh.sizes.items(), strict=True)
    laid = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    for group in laid.get_all_groups():  # torch 2.13 creates them with its own timeout, up to 30 minutes
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    yield World(dist.get_rank(), dist.get_world_size(), device, laid)
    gc.collect()
    dist.destroy_process_group()
