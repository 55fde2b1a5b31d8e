"""Parameter servers hold the model, workers compute gradients independently, and the chief schedules the work.

Workers don't run steps together. Each worker fetches the variables, computes the gradient for its slice of the global
batch, and sends the gradient to the parameter servers. The servers immediately update their variables. Workers don't
wait for each other. If a worker is lost, the run only slows down, because other workers take over its work. Vertex AI
restarts the lost worker, which then rejoins the run. If a parameter server is lost, so are its variables, and the chief
exits with an error. The next run resumes from the latest checkpoint. After the last step, the chief alone evaluates and
exports the model, using its own copy of the state.

With W workers, each step consists of W updates. Each update uses 1/W of the global batch and 1/W of the learning rate.
In the same number of steps, such a run reads as many samples as a synchronous run and makes about as much progress.
Results differ between runs.

The chief reads the samples and sends them to the workers, because TensorFlow servers can't run Python code. Therefore,
the sample order is the same as with other strategies. The chief's network must be fast enough to send the samples. For
example, a 32 Gbps network can transfer 6,600 float32 images of shape (224, 224, 3) per second.
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

MIN_SHARD_BYTES = 32 * 1024  # splits the matrices of every model size, but not biases and other vectors
LAST_WORDS_SECONDS = 3.0


class ParameterServer(Strategy):
    computes = False

    def lay_out(self, config: StrategyFlags, cluster: Cluster, shards: Path) -> Mesh:
        if config.require_reducers:
            raise TrainerError("--require-reducers isn't valid if pool 2 holds parameter servers; remove the flag")
        if config.profile:
            raise TrainerError(
                "--profile isn't supported with --strategy parameter_server, because a trace covers only the chief,"
                " which doesn't compute the steps; remove --profile"
            )
        if not cluster.servers or len(cluster.nodes) < 2:
            raise TrainerError(
                "--strategy parameter_server requires workers in pool 1 and parameter servers in pool 2, both with the"
                " chief's command; see jobs/parameter-server.yaml"
            )
        return Mesh({"replicate": len(cluster.nodes) - 1})

    def servers(self, cluster: Cluster) -> tuple[Node, ...]:
        """Return the parameter servers, which run the trainer but don't train."""
        return cluster.servers

    def reads_data(self, cluster: Cluster) -> bool:
        return cluster.is_chief

    @contextlib.contextmanager
    def join(self, config: StrategyFlags, cluster: Cluster, mesh: Mesh) -> Iterator[World | None]:
        """On the chief, coordinate the other replicas. On any other replica, serve the chief's requests.

        Raises PeerError if another replica doesn't start or is lost, and TrainerError if a replica's work fails.
        """
        if not cluster.is_chief:
            serve(cluster, config.collective_timeout)
            yield None
            return
        tf.get_logger().setLevel(logging.CRITICAL)  # it logs ten lines for a lost worker, the heartbeats log one
        with Heartbeats(cluster, config.collective_timeout, give_up) as heartbeats, heartbeats_first():
            heartbeats.wait_for_all()
            with heartbeats.patience():
                servers = connected(cluster)
            compute_in(config.precision, gpus=())
            sizes = {**mesh.sizes, "device": len(worker_devices())}
            yield ServedWorld(mesh=Mesh(sizes), servers=servers, heartbeats=heartbeats)

    def describe(self, job: Job, world: World) -> str:
        """Return a description of workers and servers, such as `3 workers of 8 GPUs, parameter_server: 2 servers`."""
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
    """Execute the chief's requests as a worker or parameter server, until the chief has finished."""
    if cluster.trains:
        usable_gpus(cluster)
    job, nodes = ("worker", cluster.nodes[1:]) if cluster.trains else ("ps", cluster.servers)
    options = tf.compat.v1.ConfigProto()
    options.gpu_options.allow_growth = True
    # A server that has fewer threads than waiting peers can deadlock.
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
    """Continue to serve for most of the grace period, while the chief saves this server's variables."""
    told.set()
    threading.Timer(GRACE_SECONDS - LAST_WORDS_SECONDS, stop).start()


def addresses(cluster: Cluster) -> tf.train.ClusterSpec:
    """Return the addresses of workers and parameter servers. The chief is excluded, because it only sends requests."""
    return tf.train.ClusterSpec(
        {"worker": [node.address for node in cluster.nodes[1:]], "ps": [node.address for node in cluster.servers]}
    )


def connected(cluster: Cluster, tries: int = 3) -> tf.distribute.ParameterServerStrategy:
    """Create the chief's TensorFlow strategy, which listens on its own port.

    If this port is already in use, try another port. TensorFlow selects a free port, but another process might bind it
    first.
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
    """Exit immediately, because TensorFlow would otherwise wait indefinitely."""
    say(f"{why}; after a restart, training resumes from the last checkpoint", "ERROR", lost_peer=lost)
    os._exit(PeerError.exit_code)


@contextlib.contextmanager
def heartbeats_first() -> Iterator[None]:
    """Let the heartbeats report a lost replica before TensorFlow does, because only they identify the replica.

    Raises PeerError if a replica was lost, and TrainerError for all other TensorFlow errors.
    """
    try:
        yield
    except tf.errors.OpError as error:
        time.sleep(LAST_WORDS_SECONDS)  # after a loss, the heartbeats stop the process within this time
        kind = PeerError if isinstance(error, LOSSES) else TrainerError
        raise kind(f"a worker or a parameter server failed: {error.message.partition(chr(10))[0]}") from None


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


STRATEGY = ParameterServer()
