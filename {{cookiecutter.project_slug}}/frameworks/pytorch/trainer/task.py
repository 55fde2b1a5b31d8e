"""Trains and exports a model, as the flags and environment variables specify (python -m trainer.task)."""

import os
import sys
from collections.abc import MutableMapping, Sequence
from functools import partial

import torch

from trainer.cluster import processes, rollcall, spec
from trainer.cluster.world import Mesh
from trainer.config import Job, facts
from trainer.parallel import choice, mesh
from trainer.parallel.strategy import Strategy
from trainer.reports.speed import ROLL_CALL, Clock, process_start
from trainer.samples import shards
from trainer.vertex import lease, reducers, storage, writable
from trainer.vertex.log import exit_code


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Train on one replica. Raises TrainerError for errors that the user can fix."""
    clock = Clock(process_start())
    strategy, config = choice.parse(argv)
    folders, cluster = storage.from_env(environ), spec.from_env(environ)
    writable.require_writable(folders, writable.WORKER if cluster.rank else writable.CHIEF)
    with lease.held(folders, is_chief=cluster.is_chief), shards.at(config.data, folders) as folder:
        launch(Job(config, folders, folder, cluster), strategy, clock, environ)


def launch(job: Job, strategy: Strategy, clock: Clock, environ: MutableMapping[str, str]) -> None:
    """Wait for all replicas, and then start a training process for each GPU."""
    config, cluster, gpus = job.config, job.cluster, torch.cuda.is_available()
    patience = config.rollcall_timeout or rollcall.patience(emulated=job.storage.emulated)
    layout = mesh.of_job(job, strategy, environ.get("CXX", ""))
    with clock.phase(ROLL_CALL):
        rollcall.call(cluster, patience, facts=facts(config, PyTorch=torch.__version__))
    reducers.prepare(len(cluster.servers), environ, rank=cluster.rank, gpus=gpus, required=config.require_reducers)
    processes.launch(cluster, layout, patience, partial(run_loop, job, strategy, layout, clock))


def run_loop(job: Job, strategy: Strategy, layout: Mesh, clock: Clock) -> None:
    """Run the training loop in a process that `launch` started."""
    from trainer import train  # takes a second, which the agent doesn't need to spend

    train.run(job, strategy, layout, clock)


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:], os.environ))
