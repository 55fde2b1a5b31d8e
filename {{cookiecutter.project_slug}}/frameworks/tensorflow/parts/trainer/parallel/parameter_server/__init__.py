"""Servers hold the model; workers fetch it and send gradients, each at its own pace, and the chief coordinates.

Workers take no step together. Each fetches the variables, computes the gradient of its part of a global batch and
sends it to the servers, which update their variables at once; meanwhile the others do the same. So nobody waits for
the slowest, and a worker that is lost only slows the run down: its part is given to another one, and when Vertex has
started it again it takes part again. What a lost parameter server held is gone: the chief then ends the run with an
error, and the next one resumes from the checkpoint. After the last step the chief needs nobody: it scores and exports
from its own copy of the state.

A step of W workers is W updates, each of a W-th of the global batch at a W-th of the learning rate. So as many steps
read as many samples and go about as far as if all updated together; they are not the same numbers every time.

The chief reads the data and sends it with the work: servers of TensorFlow run no Python, and the order of the samples
stays that of every other strategy. Its network has to carry them: 32 Gbps are 6,600 images of
224 x 224 x 3 a second, in float32.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cluster.devices import compute_in, usable_gpus
from trainer.cluster.preemption import GRACE_SECONDS, NOTICE
from trainer.cluster.processes import LOSSES
from trainer.cluster.program import stop
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.data import Batch
from trainer.parallel.parameter_server import served
from trainer.parallel.parameter_server.heartbeat import Heartbeats, answer
from trainer.parallel.parameter_server.served import ServedWorld, Team, worker_devices
from trainer.parallel.strategy import Loop, Strategy, StrategyFlags
from trainer.step.state import State
from trainer.step.totals import Totals
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say

MIN_SHARD_BYTES = 32 * 1024  # splits the matrices of every size of the model, and leaves biases and the like whole
LAST_WORDS_SECONDS = 3.0


class ParameterServer(Strategy):
    computes = False

    def lay_out(self, config: StrategyFlags, cluster: Cluster, shards: Path) -> Mesh:
        if config.require_reducers:
            raise TrainerError("--require-reducers, and pool 2 holds parameter servers; leave the flag out")
        if config.profile:
            raise TrainerError("--profile traces the chief, which computes nothing with --strategy parameter_server")
        if not cluster.servers or len(cluster.nodes) < 2:
            raise TrainerError(
                "--strategy parameter_server needs workers in pool 1 and parameter servers in pool 2, all with this"
                " command; jobs/parameter-server.yaml has both"
            )
        return Mesh({"replicate": len(cluster.nodes) - 1})

    def servers(self, cluster: Cluster) -> tuple[Node, ...]:
        """Return the parameter servers, which take part and do not train."""
        return cluster.servers

    def reads_data(self, cluster: Cluster) -> bool:
        return cluster.is_chief

    @contextlib.contextmanager
    def join(self, config: StrategyFlags, cluster: Cluster, mesh: Mesh) -> Iterator[World | None]:
        """Coordinate the others as the chief, and serve it as any other replica.

        Raises PeerError where another replica does not start or is lost, TrainerError where its work fails.
        """
        if not cluster.is_chief:
            serve(cluster, config.collective_timeout)
            yield None
            return
        tf.get_logger().setLevel(logging.CRITICAL)  # it reports a lost worker in ten lines, the heartbeats in one
        with Heartbeats(cluster, config.collective_timeout, give_up) as heartbeats, heartbeats_first():
            heartbeats.wait_for_all()
            with heartbeats.patience():
                servers = connected(cluster)
            compute_in(config.precision, gpus=())
            sizes = {**mesh.sizes, "device": len(worker_devices())}
            yield ServedWorld(mesh=Mesh(sizes), servers=servers, heartbeats=heartbeats)

    def describe(self, job: Job, world: World) -> str:
        """`3 workers of 8 GPUs, parameter_server: 2 servers`"""
        kind, servers = worker_devices()[0].partition(":")[0], plural(len(job.cluster.servers), "server")
        workers = f"{plural(world.mesh.data_size, 'worker')} of {plural(world.mesh.sizes['device'], kind)}"
        return f"{workers}, {self.name}: {servers}"

    def wrap(self, loop: Loop, state: State, world: World) -> Team:
        assert isinstance(world, ServedWorld)
        with world.heartbeats.patience():
            return Team(self, loop, state, world)

    def forward_backward(self, config: Config, net: Any, batch: Batch, world: World) -> tuple[Totals, list[tf.Tensor]]:
        return served.forward_backward(config, net, batch)


def serve(cluster: Cluster, timeout: float) -> None:
    """Be a worker or a parameter server, which does what the chief says, until the chief has finished."""
    if cluster.trains:
        usable_gpus(cluster)
    job, nodes = ("worker", cluster.nodes[1:]) if cluster.trains else ("ps", cluster.servers)
    options = tf.compat.v1.ConfigProto()
    options.gpu_options.allow_growth = True
    # A server with fewer threads than peers that wait for it can come to a standstill.
    options.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(cluster.nodes) + 1)
    index = [node.name for node in nodes].index(cluster.name)
    _server = tf.distribute.Server(addresses(cluster), job_name=job, task_index=index, protocol="grpc", config=options)
    told = threading.Event()
    signal.signal(NOTICE, partial(stay, told))
    try:
        answer(cluster, timeout, told)
    except PeerError:
        if told.is_set():
            stop()
        raise


def stay(told: threading.Event, *_: object) -> None:
    """Serve on for most of the grace time, as the chief saves what a parameter server holds."""
    told.set()
    threading.Timer(GRACE_SECONDS - LAST_WORDS_SECONDS, stop).start()


def addresses(cluster: Cluster) -> tf.train.ClusterSpec:
    """Addresses of the workers and the parameter servers, without the chief, who calls and is never called."""
    return tf.train.ClusterSpec(
        {"worker": [node.address for node in cluster.nodes[1:]], "ps": [node.address for node in cluster.servers]}
    )


def connected(cluster: Cluster, tries: int = 3) -> tf.distribute.ParameterServerStrategy:
    """Return TensorFlow's part of the chief, with a port of its own.

    It looks for a free port and binds it a little later; meanwhile another process may have taken it.
    """
    sizes = tf.distribute.experimental.partitioners.MinSizePartitioner(MIN_SHARD_BYTES, len(cluster.servers))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(addresses(cluster), rpc_layer="grpc")
    try:
        return tf.distribute.ParameterServerStrategy(resolver, sizes)
    except tf.errors.UnknownError:
        if tries == 1:
            raise
        return connected(cluster, tries - 1)


def give_up(why: str, lost: str) -> None:
    """End at once: TensorFlow would go on waiting."""
    say(f"{why}; the next run resumes from the last checkpoint", "ERROR", lost_peer=lost)
    os._exit(PeerError.exit_code)


@contextlib.contextmanager
def heartbeats_first() -> Iterator[None]:
    """Let the heartbeats, which know who is lost, report before TensorFlow, which only knows that something is lost.

    Raises PeerError for a loss, TrainerError where the work itself failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        time.sleep(LAST_WORDS_SECONDS)  # within it they end the process, if that was why
        kind = PeerError if isinstance(error, LOSSES) else TrainerError
        raise kind(f"the workers and parameter servers failed: {error.message.partition(chr(10))[0]}") from None


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


STRATEGY = ParameterServer()
