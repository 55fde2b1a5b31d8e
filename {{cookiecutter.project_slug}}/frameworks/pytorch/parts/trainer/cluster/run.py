"""python -m trainer.cluster.run [-m] SCRIPT ARGS: a training loop of your own, in a process for each GPU of the job.

It takes the place of torchrun, for any script that torchrun can start: torch's agent sets RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and so on. Beyond that, every replica is waited for by name, and the exit code says who is to blame.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial

from trainer.cluster import rollcall, script, spec
from trainer.cluster.script import Script
from trainer.cluster.spec import Cluster
from trainer.vertex import reducers, storage
from trainer.vertex.log import exit_code

AGENT = "TORCHELASTIC_RUN_ID"  # which torch's agent sets in the processes that it starts
JOIN = (
    "Call torch.distributed.init_process_group() in the script, or have a library call it. Lightning's Trainer calls it"
    ' with strategy="ddp", num_nodes and devices'
)


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Run the script in the processes of this replica. Raises TrainerError for an error that the user can fix."""
    program, cluster = script.find(argv), spec.from_env(environ)
    if AGENT in environ:
        from trainer.cluster import processes

        processes.run_process(cluster.name, partial(run_script, program, len(cluster.servers), environ))
    else:
        launch(argv, cluster, environ)


def launch(argv: Sequence[str], cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Wait for all replicas, then have torch's agent start this same command in a process for each GPU."""
    rank = cluster.rank  # which a replica that does not train lacks

    import torch  # takes seconds: a mistake in the command is told at once

    from trainer.cluster import processes
    from trainer.cluster.world import Mesh

    patience = rollcall.patience(emulated=storage.from_env(environ).emulated)
    rollcall.call(cluster, patience)
    gpus = torch.cuda.device_count()
    if not gpus:  # else Accelerate, and so the Trainer of transformers, would train alone in each process
        environ.setdefault("ACCELERATE_USE_CPU", "true")
    reducers.prepare(len(cluster.servers), environ, rank=rank, gpus=gpus > 0, required=False)
    mesh = Mesh({"replicate": max(gpus, 1) * len(cluster.nodes)})
    processes.launch(cluster, mesh, patience, ["-m", "trainer.cluster.run", *argv])


def run_script(program: Script, reducers: int, environ: Mapping[str, str]) -> None:
    """Run the script in a process of the agent, which has set this process's RANK."""
    import torch

    with must_join(int(environ["WORLD_SIZE"])):
        if reducers and torch.cuda.is_available():
            program.run_with_reducers(reducers, is_chief=environ["RANK"] == "0")
        else:
            program.run()


@contextlib.contextmanager
def must_join(processes: int) -> Iterator[None]:
    """Require that the block joins a process group of several processes, which it may leave again.

    Raises:
        ScriptError: the block joined no such group.
    """
    from torch.distributed import distributed_c10d

    # All ways to a process group lead through this function, and nothing remains of a group that was destroyed.
    sizes, update = [1], distributed_c10d._update_default_pg

    def note(pg: distributed_c10d.ProcessGroup | None) -> None:
        sizes.append(pg.size() if pg else 0)
        update(pg)

    distributed_c10d._update_default_pg = note
    yield
    script.require_joined(max(sizes) > 1, processes, JOIN)


if __name__ == "__main__":
    sys.exit(exit_code(run, sys.argv[1:], os.environ))
