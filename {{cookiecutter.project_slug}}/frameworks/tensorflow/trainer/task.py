"""python -m trainer.task: environment and flags in, a trained and exported model out."""

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trainer import optional
from trainer.cluster import program, rollcall, spec
from trainer.reports.speed import ROLL_CALL, START, Clock, process_start
from trainer.vertex import doctor, lease, storage, writable
from trainer.vertex.errors import no_exit
from trainer.vertex.log import exit_code

if TYPE_CHECKING:
    from trainer.config import Job
    from trainer.parallel.strategy import Strategy

DESCRIBE = "--describe"


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Do one replica's part: describe, evaluate or train. Raises TrainerError for a fault that the user can cure."""
    program.prepare(environ, argv)
    from trainer.config import Job  # not before: these import TensorFlow
    from trainer.parallel import choice

    clock = Clock(process_start())
    strategy, config = choice.parse([word for word in argv if word != DESCRIBE])
    folders = storage.from_env(environ)
    if DESCRIBE in argv:
        optional.load("describe.estimate", DESCRIBE).show(config, folders)
        return
    cluster = spec.from_env(environ)
    environ.pop("TF_CONFIG", None)  # it may list reducers, for which TensorFlow would wait in silence
    kinds = writable.EVALUATOR if cluster.evaluates else writable.CHIEF if cluster.name == cluster.chief.name else ()
    if config.doctor:
        doctor.require(cluster, folders, kinds, environ)
    else:
        writable.require(folders, kinds)
    with lease.held(folders, cluster), strategy.data(config, folders, cluster) as folder:
        job = Job(config, folders, folder, cluster)
        if cluster.evaluates:
            optional.load("evaluator", f"{cluster.name}, an evaluator,").run(job)
        else:
            launch(job, strategy, clock)


def launch(job: "Job", strategy: "Strategy", clock: Clock) -> None:
    """Wait for all replicas, then do this one's part."""
    import keras
    import tensorflow as tf

    from trainer import train
    from trainer.config import facts

    config = job.config
    patience = config.rollcall_timeout or rollcall.patience(emulated=job.storage.emulated)
    mesh = strategy.lay_out(config, job.cluster, job.shards)
    clock.lap(START)
    versions = {"TensorFlow": tf.__version__, "Keras": keras.__version__}
    rollcall.call(job.cluster, patience, strategy.servers(job.cluster), facts(config, **versions))
    clock.lap(ROLL_CALL)
    with no_exit(job.cluster.name):
        train.run(job, strategy, mesh, clock)


if __name__ == "__main__":
    program.run_to_end(partial(exit_code, run))
