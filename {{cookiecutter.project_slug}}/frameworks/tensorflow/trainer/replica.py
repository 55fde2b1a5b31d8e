"""One replica's part of a run, or what the run would need."""

from collections.abc import MutableMapping, Sequence

from trainer import cluster as clusters
from trainer import config as configs
from trainer import optional, resource_estimate, rollcall, shards, strategies, writable
from trainer import storage as storages
from trainer.cluster import Cluster
from trainer.config import Config
from trainer.goodput import ROLL_CALL, START, Stopwatch, process_start
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
    take_part(config, cluster, storage)


def describe(config: Config, storage: Storage) -> None:
    from trainer import estimate  # imports TensorFlow, which reads the variable above

    print(estimate.describe(config, shards.example(config, storage)).to_json())


def places(cluster: Cluster) -> tuple[str, ...]:
    """What this replica writes: of those that train only the chief does."""
    if cluster.evaluates:
        return writable.EVALUATOR
    return writable.CHIEF if cluster.name == cluster.chief.name else ()


def take_part(config: Config, cluster: Cluster, storage: Storage) -> None:
    """What this replica does for the run."""
    watch = Stopwatch(process_start())
    writable.require(storage, places(cluster))
    if cluster.evaluates:
        with shards.at(config.data, storage) as folder:
            optional.load("evaluator", f"{cluster.name}, an evaluator,").run(config, storage, folder)
        return
    strategy = strategies.load(config.strategy)
    patience = config.rollcall_timeout or (60 if storage.emulated else 600)
    watch.lap(START)
    rollcall.call(cluster, patience, strategy.servers(config, cluster))
    watch.lap(ROLL_CALL)
    strategy.take_part(config, cluster, storage, watch)
