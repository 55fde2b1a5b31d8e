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
import time
from collections.abc import Iterator

import tensorflow as tf

from trainer import train
from trainer.checkpoints.saver import Checkpoints
from trainer.cluster.devices import usable_gpus
from trainer.cluster.processes import LOSSES
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import World
from trainer.config import Config
from trainer.job import Job
from trainer.parallel.multi_worker_mirrored import Mirrored
from trainer.parallel.parameter_server.heartbeat import Heartbeats, answer
from trainer.parallel.parameter_server.team import Team, plural
from trainer.parallel.precision import compute_in
from trainer.parallel.strategy import Strategy
from trainer.shards import Data
from trainer.vertex.errors import PeerError, TrainerError
from trainer.vertex.log import say

MIN_SHARD_BYTES = 32 * 1024  # splits the matrices of every size of the model, and leaves biases and the like whole
LAST_WORDS_SECONDS = 3.0


def servers(config: Config, cluster: Cluster) -> tuple[Node, ...]:
    """Return the parameter servers, which take part and do not train.

    Raises:
        TrainerError: there are none, no worker is there, or a flag is the other strategy's.
    """
    if config.model_parallel > 1:
        raise TrainerError(f"--model-parallel is {config.model_parallel}, must be 1 with --strategy parameter_server")
    if config.require_reducers:
        raise TrainerError("--require-reducers, and pool 2 holds parameter servers; leave the flag out")
    if config.profile:
        raise TrainerError("--profile traces the chief, which computes nothing with --strategy parameter_server")
    if not cluster.servers or len(cluster.nodes) < 2:
        raise TrainerError(
            "--strategy parameter_server needs workers in pool 1 and parameter servers in pool 2, all with this"
            " command; jobs/parameter-server.yaml has both"
        )
    return cluster.servers


def take_part(job: Job) -> None:
    """Coordinate as the chief, and serve it as any other replica."""
    if job.cluster.name == job.cluster.chief.name:
        coordinate(job)
    else:
        serve(job.config, job.cluster)


def coordinate(job: Job) -> None:
    """Do the chief's part: share out the work, save, evaluate, export.

    Raises:
        PeerError: a worker or a parameter server does not start, or is lost.
        TrainerError: what they do fails.
    """
    tf.get_logger().setLevel(logging.CRITICAL)  # it reports a lost worker in ten lines, the heartbeats in one
    config, cluster, data = job.config, job.cluster, Data(job)
    alone = World(tf.distribute.get_strategy(), rank=0, size=1)
    with Heartbeats(cluster, config.collective_timeout, give_up) as heartbeats, heartbeats_first():
        heartbeats.wait_for_all()
        with heartbeats.patience():
            servers = connected(cluster)
        compute_in(config.precision, gpus=())
        state = train.new_state(config, data.example, alone)
        checkpoints = Checkpoints(job, alone, train.new_copy(config, data.example))
        checkpoints.restore(state)
        with heartbeats.patience():
            mirrored = Mirrored(job, state, data.example, alone)
            team = Team(config, state, mirrored, servers, len(cluster.nodes) - 1, heartbeats)
        say(f"training on {team}, {config.strategy}: {plural(len(cluster.servers), 'server')}")
        train.train(job, state, data, team, checkpoints)


def serve(config: Config, cluster: Cluster) -> None:
    """Do the part of a worker or a parameter server: what the chief says until it has finished.

    Raises:
        PeerError: the chief ended before the training did, or has been silent for too long.
    """
    is_worker = cluster.trains
    if is_worker:
        usable_gpus(cluster)
    options = tf.compat.v1.ConfigProto()
    options.gpu_options.allow_growth = True
    # A server with fewer threads than peers that wait for it can come to a standstill.
    options.inter_op_parallelism_threads = max(os.cpu_count() or 1, len(cluster.nodes) + 1)
    _server = tf.distribute.Server(
        addresses(cluster),
        job_name="worker" if is_worker else "ps",
        task_index=cluster.rank - 1 if is_worker else [one.name for one in cluster.servers].index(cluster.name),
        protocol="grpc",
        config=options,
    )
    answer(cluster, config.collective_timeout)


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
    try:
        return tf.distribute.ParameterServerStrategy(resolver(cluster), sizes)
    except tf.errors.UnknownError:
        if tries == 1:
            raise
        return connected(cluster, tries - 1)


def resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(addresses(cluster), rpc_layer="grpc")


def give_up(why: str) -> None:
    """End at once: TensorFlow would go on waiting."""
    say(f"{why}; the next run resumes from the last checkpoint", "ERROR")
    os._exit(PeerError.exit_code)


@contextlib.contextmanager
def heartbeats_first() -> Iterator[None]:
    """Let the heartbeats, which know who is lost, report before TensorFlow, which only knows that something is lost.

    Raises:
        PeerError: somebody was lost.
        TrainerError: the work itself failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        time.sleep(LAST_WORDS_SECONDS)  # within it they end the process, if that was why
        kind = PeerError if isinstance(error, LOSSES) else TrainerError
        raise kind(f"the workers and parameter servers failed: {error.message.partition(chr(10))[0]}") from None


class ParameterServer(Strategy):
    def servers(self, config: Config, cluster: Cluster) -> tuple[Node, ...]:
        return servers(config, cluster)

    def reads_data(self, cluster: Cluster) -> bool:
        return cluster.name == cluster.chief.name

    def take_part(self, job: Job) -> None:
        take_part(job)


STRATEGY = ParameterServer()
