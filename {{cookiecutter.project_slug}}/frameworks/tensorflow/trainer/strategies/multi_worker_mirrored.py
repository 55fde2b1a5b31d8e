"""Each GPU holds the model, and all of them take each step together."""

from trainer import optional, shards, strategy, train
from trainer.cluster import Cluster, Node
from trainer.config import Config
from trainer.errors import TrainerError
from trainer.goodput import Stopwatch
from trainer.storage import Storage
from trainer.strategies import Strategy


def servers(config: Config, cluster: Cluster) -> tuple[Node, ...]:
    """Nobody: reducers, in pool 2, run another program.

    Raises:
        TrainerError: this replica is in pool 2.
    """
    if any(node.name == cluster.name for node in cluster.servers):
        cure = "give it no command if it holds reducers, whose image has one"
        if "parameter_server" in optional.purposes("strategies"):
            cure += ", and every pool --strategy parameter_server if it holds parameter servers"
        raise TrainerError(f"{cluster.name}: only pools 0 and 1 train; {cure}")
    return ()


def take_part(config: Config, cluster: Cluster, storage: Storage, watch: Stopwatch) -> None:
    with shards.at(config.data, storage) as folder, strategy.with_peers(cluster):
        train.run(config, cluster, storage, folder, watch)


STRATEGY = Strategy(servers=servers, take_part=take_part)
