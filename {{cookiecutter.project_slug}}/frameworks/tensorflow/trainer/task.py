"""python -m trainer.task: environment and flags in, a trained and exported model out."""

from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import optional
from trainer.cluster import rollcall, spec
from trainer.cluster.ending import run_to_end
from trainer.cluster.spec import Cluster
from trainer.goodput import ROLL_CALL, START, Clock, process_start
from trainer.vertex import storage, writable
from trainer.vertex.log import exit_code
from trainer.vertex.storage import Storage

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.job import Job

DESCRIBE = "--describe"


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Run one replica's part of the job; returns its exit code."""
    # TensorFlow reads these when it is imported.
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    # TensorFlow logs dozens of lines for a lost worker; the chief of parameter servers says it in one.
    serves = any("parameter_server" in word for word in argv)
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if serves else "2")
    return exit_code(run, argv, environ)


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Describe, evaluate or train. Raises TrainerError for a fault that the user can cure."""
    from trainer import config as configs  # not before: these import TensorFlow
    from trainer.job import Job

    clock, config = Clock(process_start()), configs.parse([word for word in argv if word != DESCRIBE])
    folders = storage.from_env(environ)
    if DESCRIBE in argv:
        environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take the memory of GPUs that it does not use
        optional.load("describe.estimate", DESCRIBE).show(config, folders)
        return
    cluster = spec.from_env(environ)
    # TensorFlow must not see TF_CONFIG: it may list reducers, for which it would wait in silence.
    environ.pop("TF_CONFIG", None)
    writes = writable.CHIEF if cluster.name == cluster.chief.name else ()
    writable.require(folders, writable.EVALUATOR if cluster.evaluates else writes)
    with data_set(config, cluster, folders) as folder:
        job = Job(config, folders, folder, cluster, clock)
        if cluster.evaluates:
            optional.load("evaluator", f"{cluster.name}, an evaluator,").run(job)
        else:
            take_part(job)


def data_set(config: "Config", cluster: Cluster, folders: Storage) -> AbstractContextManager[Path]:
    """Return the folder of the data set, on a replica that reads it."""
    from trainer import shards
    from trainer.parallel import strategy as strategies

    reads = cluster.evaluates or strategies.load(config.strategy).reads_data(cluster)
    return shards.at(config.data, folders) if reads else nullcontext(Path())


def take_part(job: "Job") -> None:
    """Wait for all replicas, then do this one's part."""
    from trainer.parallel import strategy as strategies

    config, strategy = job.config, strategies.load(job.config.strategy)
    servers = strategy.servers(config, job.cluster)
    job.clock.lap(START)
    patience = config.rollcall_timeout or rollcall.patience(emulated=job.storage.emulated)
    rollcall.call(job.cluster, patience, servers)
    job.clock.lap(ROLL_CALL)
    strategy.take_part(job)


if __name__ == "__main__":
    run_to_end(main)
