"""python -m trainer.task: environment and flags in, a trained and exported model out."""

import os
import signal
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from trainer import cluster as clusters
from trainer import config as configs
from trainer import data, resource_estimate, rollcall, writable
from trainer import storage as storages
from trainer.cluster import Cluster, Node
from trainer.config import Config
from trainer.errors import TrainerError
from trainer.storage import Storage
from trainer.telemetry import say


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """One replica's run, or what it would need; returns its exit code."""
    # TensorFlow reads these when it is imported, so that is done only below.
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    try:
        config = configs.parse([word for word in argv if word != resource_estimate.FLAG])
        # Of a lost worker it would tell in dozens of lines, and the chief does in one.
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if config.strategy == "parameter_server" else "2")
        storage = storages.from_env(environ)
        if resource_estimate.FLAG in argv:
            image = data.image_shape(config.data, storage)
            environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take the memory of GPUs that it does not use
            from trainer import estimate

            print(estimate.describe(config, image).to_json())
            return 0
        cluster = clusters.from_env(environ)
        # TensorFlow must not see TF_CONFIG: it may list reducers, for which it would wait in silence.
        environ.pop("TF_CONFIG", None)
        writable.require(storage, places(cluster))
        if cluster.evaluates:
            from trainer import evaluator, scoring

            with data.shards(config.data, storage) as shards:
                evaluator.run(config, storage, scoring.scorer(config, shards))
            return 0
        rollcall.call(cluster, config.rollcall_timeout or (60 if storage.emulated else 600), servers(config, cluster))
        run(config, cluster, storage)
    except TrainerError as error:
        for line in str(error).splitlines():
            say(line, "ERROR")
        return error.exit_code
    return 0


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


def run(config: Config, cluster: Cluster, storage: Storage) -> None:
    """This replica's part."""
    if config.strategy == "parameter_server" and cluster.name != cluster.chief.name:
        from trainer import parameter_server

        parameter_server.serve(config, cluster)
        return
    with data.shards(config.data, storage) as shards:
        if config.strategy == "parameter_server":
            from trainer import parameter_server

            parameter_server.run(config, cluster, storage, shards)
        else:
            from trainer import strategy, train

            with strategy.with_peers(cluster):
                train.run(config, cluster, storage, shards)


def stop(*_: object) -> None:
    """End at once: a machine that is taken away has no time, and TensorFlow would wait for its peers."""
    say("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)


def end(code: int) -> NoReturn:
    """End without a farewell: TensorFlow would wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)  # process 1 of a container ignores what it does not handle
    try:
        code = main(sys.argv[1:], os.environ)
    except Exception:
        traceback.print_exc()
        code = 1
    end(code)
