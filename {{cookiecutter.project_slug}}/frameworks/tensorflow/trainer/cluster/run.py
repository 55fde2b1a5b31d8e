"""python -m trainer.cluster.run [-m] SCRIPT ARGS: a training loop of your own, on every machine of the job.

The script finds in TF_CONFIG the chief and the workers, and nobody else: it would wait for a reducer for ever. Every
replica is waited for by name, and the exit code says who is to blame.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from trainer.cluster import rollcall, script, spec
from trainer.cluster.script import Script
from trainer.cluster.spec import Cluster
from trainer.vertex import reducers, storage
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say_last, say_lines


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Run one replica's part of the job; returns its exit code."""
    try:
        run(argv, environ)
    except TrainerError as error:
        say_lines(str(error), "ERROR")
        return error.exit_code
    return 0


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Wait for all replicas, then run the script. Raises TrainerError for a fault that the user can cure."""
    program, cluster = script.find(argv), spec.from_env(environ)
    patience = script.LOCAL_PATIENCE_SECONDS if storage.from_env(environ).emulated else script.PATIENCE_SECONDS
    config = tf_config(cluster)
    rollcall.call(cluster, patience)
    environ.pop("TF_CONFIG", None)
    if len(cluster.nodes) > 1:
        environ["TF_CONFIG"] = config
    # TensorFlow reads these when it is imported.
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors alone
    run_process(program, cluster, environ)


def tf_config(cluster: Cluster) -> str:
    """Return TF_CONFIG with the roles that train. Raises ClusterError for a replica that does not."""
    chief, *workers = (node.address for node in cluster.nodes)
    task = {"type": "worker", "index": cluster.rank - 1} if cluster.rank else {"type": "chief", "index": 0}
    return json.dumps({"cluster": {"chief": [chief], "worker": workers}, "task": task})


def run_process(program: Script, cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Run the script in this process. Raises PeerError where TensorFlow lost a machine."""
    import tensorflow as tf

    from trainer.cluster.processes import with_peers

    count, gpus = len(cluster.servers), bool(tf.config.list_physical_devices("GPU"))
    reducers.prepare(count, environ, rank=cluster.rank, gpus=gpus, required=False)
    with with_peers(cluster):
        if count and gpus:
            program.run_with_reducers(count, is_chief=cluster.rank == 0)
        else:
            program.run()


def stop(*_: object) -> None:
    """End at once: process 1 of a container would ignore the signal."""
    say_last("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)


def end(code: int) -> NoReturn:
    """End without a farewell: TensorFlow would wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    try:
        code = main(sys.argv[1:], os.environ)
    except Exception:
        traceback.print_exc()
        code = 1
    end(code)
