"""One replica's part of a run, or what the run would need."""

from collections.abc import MutableMapping, Sequence

from trainer import cluster as clusters
from trainer import config as configs
from trainer import optional, reducers, resource_estimate, rollcall, shards, writable
from trainer import storage as storages
from trainer.cluster import Cluster
from trainer.config import Config
from trainer.goodput import ROLL_CALL, START, Stopwatch, process_start
from trainer.shards import Dataset
from trainer.storage import Storage


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Raises TrainerError for a fault that the user can cure."""
    config = configs.parse([word for word in argv if word != resource_estimate.FLAG])
    storage = storages.from_env(environ)
    if resource_estimate.FLAG in argv:
        describe(config, storage)
    else:
        take_part(config, clusters.from_env(environ), storage, environ)


def describe(config: Config, storage: Storage) -> None:
    from trainer import estimate  # like those below, it imports parts of PyTorch that few runs need

    print(estimate.describe(config, shards.example(config, storage)).to_json())


def places(cluster: Cluster) -> tuple[str, ...]:
    """What this replica writes: every process saves its part of a checkpoint."""
    if cluster.evaluates:
        return writable.EVALUATOR
    return writable.CHIEF if cluster.rank == 0 else writable.WORKER


def take_part(config: Config, cluster: Cluster, storage: Storage, environ: MutableMapping[str, str]) -> None:
    """What this replica does for the run."""
    watch = Stopwatch(process_start())
    patience = config.rollcall_timeout or (60 if storage.emulated else 600)
    writable.require(storage, places(cluster))
    with shards.at(config.data, storage) as folder:
        if cluster.evaluates:
            optional.load("evaluator", f"{cluster.name}, an evaluator,").run(config, storage, folder)
        else:
            import torch

            from trainer import layout, processes, train

            example = Dataset(folder, "heldout").batch([0], config)
            mesh = layout.mesh(config, len(cluster.nodes), example, environ.get("CXX", ""))
            watch.lap(START)
            rollcall.call(cluster, patience)
            watch.lap(ROLL_CALL)
            gpus, required = torch.cuda.is_available(), config.require_reducers
            count = reducers.prepare(cluster, environ, gpus=gpus, required=required)
            processes.launch(cluster, mesh, patience, train.run, config, mesh, storage, folder, count, watch)
