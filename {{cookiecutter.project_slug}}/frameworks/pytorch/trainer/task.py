"""python -m trainer.task: environment and flags in, a trained and exported model out."""

import os
import sys
from collections.abc import Mapping, Sequence

from trainer import cluster as clusters
from trainer import config as configs
from trainer import data, description, evaluator, processes, rollcall, scoring, sizing, train
from trainer import storage as storages
from trainer.errors import TrainerError
from trainer.telemetry import say


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """One replica's run, or what it would need; returns its exit code."""
    try:
        config = configs.parse([word for word in argv if word != description.FLAG])
        storage = storages.from_env(environ)
        if description.FLAG in argv:
            print(sizing.describe(config, data.image_shape(config.data, storage)).to_json())
            return 0
        cluster = clusters.from_env(environ)
        patience = config.rollcall_timeout or (60 if storage.emulated else 600)
        with data.shards(config.data, storage) as shards:
            if cluster.evaluates:
                evaluator.run(config, storage, scoring.scorer(config, shards))
                return 0
            mesh = train.mesh(config, len(cluster.nodes), shards)
            rollcall.call(cluster, patience)
            processes.launch(cluster, mesh, patience, train.run, config, storage, shards, mesh)
    except processes.ProcessError as error:
        say(str(error), "ERROR")
        return error.exit_code
    except TrainerError as error:
        say(str(error), "ERROR")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
