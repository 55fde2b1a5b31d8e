"""python -m trainer.task: environment and flags in, a trained and exported model out."""

import os
import signal
import sys
from collections.abc import MutableMapping, Sequence

from trainer import cluster as clusters
from trainer import config as configs
from trainer import data, description, rollcall
from trainer import storage as storages
from trainer.errors import TrainerError
from trainer.telemetry import say


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """One replica's run, or what it would need; returns its exit code."""
    # TensorFlow reads these when it is imported, so that is done only below.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    try:
        config = configs.parse([word for word in argv if word != description.FLAG])
        storage = storages.from_env(environ)
        if description.FLAG in argv:
            image = data.image_shape(config.data, storage)
            environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take the memory of GPUs that it does not use
            from trainer import sizing

            print(sizing.describe(config, image).to_json())
            return 0
        cluster = clusters.from_env(environ)
        # TensorFlow must not see TF_CONFIG: it may list reducers, for which it would wait in silence.
        environ.pop("TF_CONFIG", None)
        if cluster.evaluates:
            from trainer import evaluator, scoring

            with data.shards(config.data, storage) as shards:
                evaluator.run(config, storage, scoring.scorer(config, shards))
            return 0
        rollcall.call(cluster, config.rollcall_timeout or (60 if storage.emulated else 600))
        from trainer import train

        with data.shards(config.data, storage) as shards:
            train.run(config, cluster, storage, shards)
    except TrainerError as error:
        say(str(error), "ERROR")
        return 1
    return 0


def stop(*_: object) -> None:
    """End at once: a machine that is taken away has no time, and TensorFlow would wait for its peers."""
    say("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)  # process 1 of a container ignores what it does not handle
    sys.exit(main(sys.argv[1:], os.environ))
