"""Runs your own training loop in one process per GPU (python -m trainer.cluster.run [-m] SCRIPT ARGS).

The `trainer.cluster.run` command replaces `torchrun` for any script that torchrun can start. The command sets RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, and related environment variables. The command also waits until every replica has
started. The exit code shows whether this replica or another one failed.
"""

import contextlib
import os
from collections.abc import Iterator, MutableMapping, Sequence
from functools import partial

from trainer.cluster import rollcall, script, spec, supervisor
from trainer.cluster.script import Script
from trainer.vertex import reducers, storage
from trainer.vertex.log import exit_code

JOIN = (
    "Call torch.distributed.init_process_group() in the script, or use a library that calls it. Lightning's Trainer"
    ' calls it if you set strategy="ddp", num_nodes, and devices'
)


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Run the script in this replica's processes. Raises TrainerError for errors that the user can fix."""
    program, cluster = script.find(argv), spec.from_env(environ)
    rank = cluster.rank  # raises an error in a replica that doesn't train

    import torch  # takes seconds, so invalid commands are reported first

    from trainer.cluster import processes
    from trainer.cluster.world import Mesh

    gpus, patience = torch.cuda.device_count(), rollcall.patience(emulated=storage.from_env(environ).emulated)
    rollcall.call(cluster, patience, facts={"the number of GPUs": str(gpus)})
    if not gpus:  # otherwise Accelerate, which transformers' Trainer uses, wouldn't join the processes
        environ.setdefault("ACCELERATE_USE_CPU", "true")
    reducers.prepare(len(cluster.servers), environ, rank=rank, gpus=gpus > 0, required=False)
    mesh = Mesh({"replicate": max(gpus, 1) * len(cluster.nodes)})
    processes.launch(cluster, mesh, partial(run_script, program, len(cluster.servers)))


def run_script(program: Script, reducers: int) -> None:
    """Run the script in one of the replica's processes. RANK is set for this process."""
    import torch

    with must_join(int(os.environ["WORLD_SIZE"])):
        if reducers and torch.cuda.is_available():
            program.run_with_reducers(reducers, is_chief=os.environ["RANK"] == "0")
        else:
            program.run()


@contextlib.contextmanager
def must_join(processes: int) -> Iterator[None]:
    """Check that the code in the block joins a process group with several processes. It can leave the group early.

    Raises:
        ScriptError: if the code in the block doesn't join a process group with several processes.
    """
    from torch.distributed import distributed_c10d

    # Every method of creating a process group calls this function. A destroyed group doesn't leave any other trace.
    sizes, update = [1], distributed_c10d._update_default_pg

    def note(pg: distributed_c10d.ProcessGroup | None) -> None:
        sizes.append(pg.size() if pg else 0)
        update(pg)

    distributed_c10d._update_default_pg = note
    yield
    script.require_joined(max(sizes) > 1, processes, JOIN)


if __name__ == "__main__":
    supervisor.run_to_end(partial(exit_code, run), success=0)
