"""Trains and exports a model, as the flags and environment variables specify (python -m trainer.task)."""

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from trainer.cluster import rollcall, spec, supervisor
from trainer.reports.speed import ROLL_CALL, Clock, process_start
from trainer.vertex import lease, reducers, storage, writable
from trainer.vertex.log import exit_code

if TYPE_CHECKING:
    from trainer.config import Job
    from trainer.parallel.strategy import Strategy


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Train on one replica. Raises TrainerError for errors that the user can fix."""
    from trainer.config import Job  # imported late, because the supervisor doesn't need PyTorch
    from trainer.parallel import choice
    from trainer.samples import shards

    clock = Clock(process_start())
    strategy, config = choice.parse(argv)
    folders, cluster = storage.from_env(environ), spec.from_env(environ)
    writable.require_writable(folders, writable.WORKER if cluster.rank else writable.CHIEF)
    with lease.held(folders, is_chief=cluster.is_chief), shards.at(config.data, folders) as folder:
        launch(Job(config, folders, folder, cluster), strategy, clock, environ)


def launch(job: "Job", strategy: "Strategy", clock: Clock, environ: MutableMapping[str, str]) -> None:
    """Wait for all replicas, and then train in a process for each GPU."""
    import torch

    from trainer import train
    from trainer.cluster import processes
    from trainer.config import facts
    from trainer.parallel import mesh

    config, cluster, gpus = job.config, job.cluster, torch.cuda.is_available()
    patience = config.rollcall_timeout or rollcall.patience(emulated=job.storage.emulated)
    layout = mesh.of_job(job, strategy, environ.get("CXX", ""))
    count = {"the number of processes": str(layout.size // len(cluster.nodes))}
    with clock.phase(ROLL_CALL):
        strategy.call_roll(cluster, patience, facts(config, PyTorch=torch.__version__) | count)
    reducers.prepare(len(cluster.servers), environ, rank=cluster.rank, gpus=gpus, required=config.require_reducers)
    work = partial(strategy.run, train.run, job, layout, clock)
    processes.launch(cluster, layout, work)


if __name__ == "__main__":
    supervisor.run_to_end(partial(exit_code, run))
