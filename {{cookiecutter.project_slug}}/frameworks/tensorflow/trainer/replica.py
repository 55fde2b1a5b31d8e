"""One replica's part of a run, or what the run would need."""

from collections.abc import MutableMapping, Sequence

from trainer import cluster as clusters
from trainer import config as configs
from trainer import resource_estimate, rollcall, shards, writable
from trainer import storage as storages
from trainer.cluster import Cluster, Node
from trainer.config import Config
from trainer.errors import TrainerError
from trainer.storage import Storage


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Raises TrainerError for a fault that the user can cure."""
    config = configs.parse([word for word in argv if word != resource_estimate.FLAG])
    storage = storages.from_env(environ)
    if resource_estimate.FLAG in argv:
        environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take the memory of GPUs that it does not use
        describe(config, storage)
        return
    cluster = clusters.from_env(environ)
    # TensorFlow must not see TF_CONFIG: it may list reducers, for which it would wait in silence.
    environ.pop("TF_CONFIG", None)
    writable.require(storage, places(cluster))
    if cluster.evaluates:
        from trainer import evaluator, scoring

        with shards.at(config.data, storage) as folder:
            evaluator.run(config, storage, scoring.scorer(config, folder))
        return
    rollcall.call(cluster, config.rollcall_timeout or (60 if storage.emulated else 600), servers(config, cluster))
    take_part(config, cluster, storage)


def describe(config: Config, storage: Storage) -> None:
    from trainer import estimate  # imports TensorFlow, which reads the variable above

    print(estimate.describe(config, shards.example(config, storage)).to_json())


def places(cluster: Cluster) -> tuple[str, ...]:
    """What this replica writes: of those that train only the chief does."""
    if cluster.evaluates:
        return writable.EVALUATOR
    return writable.CHIEF if cluster.name == cluster.chief.name else ()


def servers(config: Config, cluster: Cluster) -> tuple[Node, ...]:
    """The parameter servers, which take part and do not train; reducers, in the same pool, run another program.

    Raises:
        TrainerError: the flags and the pools do not fit each other.
    """
    if config.strategy == "parameter_server":
        if not cluster.servers or len(cluster.nodes) < 2:
            raise TrainerError(
                "--strategy parameter_server needs workers in pool 1 and parameter servers in pool 2, all with this"
                " command; jobs/parameter-server.yaml has both"
            )
        return cluster.servers
    if any(node.name == cluster.name for node in cluster.servers):
        raise TrainerError(
            f"{cluster.name}: only pools 0 and 1 train; give every pool --strategy parameter_server if this one holds"
            " parameter servers, and no command if it holds reducers, whose image has one"
        )
    return ()


def take_part(config: Config, cluster: Cluster, storage: Storage) -> None:
    """What this replica does for the run."""
    if config.strategy == "parameter_server" and cluster.name != cluster.chief.name:
        from trainer import parameter_server

        parameter_server.serve(config, cluster)
        return
    with shards.at(config.data, storage) as folder:
        if config.strategy == "parameter_server":
            from trainer import parameter_server

            parameter_server.run(config, cluster, storage, folder)
        else:
            from trainer import strategy, train

            with strategy.with_peers(cluster):
                train.run(config, cluster, storage, folder)
