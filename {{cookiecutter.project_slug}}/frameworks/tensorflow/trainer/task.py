"""Trains and exports a model, as the flags and environment variables specify (python -m trainer.task)."""

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trainer.cluster import program, rollcall, spec
from trainer.reports.speed import ROLL_CALL, Clock, process_start
from trainer.vertex import lease, storage, writable
from trainer.vertex.errors import no_exit
from trainer.vertex.log import exit_code

if TYPE_CHECKING:
    from trainer.config import Job
    from trainer.parallel.strategy import Strategy


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Train on one replica. Raises TrainerError for errors that the user can fix."""
    program.prepare(environ, argv)
    from trainer.config import Job  # imported late, because these modules import TensorFlow
    from trainer.parallel import choice

    clock = Clock(process_start())
    strategy, config = choice.parse(argv)
    folders, cluster = storage.from_env(environ), spec.from_env(environ)
    environ.pop("TF_CONFIG", None)  # TensorFlow would silently wait for the reducers that it may list
    writable.require_writable(folders, writable.CHIEF if cluster.is_chief else ())
    data = strategy.data(config, folders, cluster)
    with lease.held(folders, is_chief=cluster.is_chief), data as folder:
        launch(Job(config, folders, folder, cluster), strategy, clock)


def launch(job: "Job", strategy: "Strategy", clock: Clock) -> None:
    """Wait for all replicas, and then train on this replica."""
    import keras
    import tensorflow as tf

    from trainer import train
    from trainer.config import facts

    config = job.config
    patience = config.rollcall_timeout or rollcall.patience(emulated=job.storage.emulated)
    mesh = strategy.lay_out(config, job.cluster, job.shards)
    versions = {"TensorFlow": tf.__version__, "Keras": keras.__version__}
    with clock.phase(ROLL_CALL):
        rollcall.call(job.cluster, patience, strategy.servers(job.cluster), facts(config, **versions))
    with no_exit(job.cluster.name):
        train.run(job, strategy, mesh, clock)


if __name__ == "__main__":
    program.run_to_end(partial(exit_code, run))
