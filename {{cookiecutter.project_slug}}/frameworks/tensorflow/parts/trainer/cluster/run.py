"""Runs your own training loop on every machine (python -m trainer.cluster.run [-m] SCRIPT ARGS).

The `trainer.cluster.run` command excludes reducers from TF_CONFIG, because the script would otherwise wait for them
forever. The command also waits until every replica has started. The exit code shows whether this replica or another one
failed.
"""

import json
from collections.abc import MutableMapping, Sequence
from functools import partial

from trainer.cluster import rollcall, script, spec
from trainer.cluster.program import run_to_end
from trainer.cluster.script import Script
from trainer.cluster.spec import Cluster
from trainer.vertex import reducers, storage
from trainer.vertex.log import exit_code

JOIN = "Train in the scope of a tf.distribute.MultiWorkerMirroredStrategy, which reads TF_CONFIG"


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Wait for all replicas, and then run the script. Raises TrainerError for errors that the user can fix."""
    program, cluster = script.find(argv), spec.from_env(environ)
    rollcall.call(cluster, rollcall.patience(emulated=storage.from_env(environ).emulated))
    environ.pop("TF_CONFIG", None)
    if len(cluster.nodes) > 1:
        environ["TF_CONFIG"] = tf_config(cluster)
    # TensorFlow reads these when it is imported.
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # report a lost peer immediately, without retries
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # log only errors
    run_process(program, cluster, environ)


def tf_config(cluster: Cluster) -> str:
    """Return a TF_CONFIG value that lists all training replicas."""
    chief, *workers = (node.address for node in cluster.nodes)
    task = {"type": "worker", "index": cluster.rank - 1} if cluster.rank else {"type": "chief", "index": 0}
    return json.dumps({"cluster": {"chief": [chief], "worker": workers}, "task": task})


def run_process(program: Script, cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Run the script in this process. Raises PeerError if TensorFlow loses the connection to a machine."""
    import tensorflow as tf

    from trainer.cluster.processes import with_peers

    count, gpus = len(cluster.servers), bool(tf.config.list_physical_devices("GPU"))
    reducers.prepare(count, environ, rank=cluster.rank, gpus=gpus, required=False)
    with with_peers(cluster):
        if count and gpus:
            program.run_with_reducers(count, is_chief=cluster.rank == 0)
        else:
            program.run()
        joined = "/job:localhost/" not in tf.constant(0).device  # a multi-machine strategy renames devices
        script.require_joined(joined, len(cluster.nodes), JOIN)


if __name__ == "__main__":
    run_to_end(partial(exit_code, run), success=0)
