"""The reducers of pool 2: have NCCL use them, and say whether it does, as nothing else would."""

from collections.abc import Callable, Mapping, MutableMapping

from trainer import nccl
from trainer.cluster import Cluster
from trainer.errors import TrainerError
from trainer.telemetry import say


class IdleReducersError(TrainerError):
    """--require-reducers, and the reducers are not used."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def prepare(cluster: Cluster, environ: MutableMapping[str, str], *, gpus: bool, required: bool) -> int:
    """Before NCCL starts; returns how many reducers it may come to use, for `settle`.

    Raises:
        TrainerError: reducers are required, and there are none.
        IdleReducersError: they are required, and cannot be used.
    """
    count = len(cluster.servers)
    if not count:
        if required:
            raise TrainerError(
                "--require-reducers, and the job has none; add them as its pool 2, or leave the flag out"
            )
        return 0
    found = nccl.verdict(environ)
    why = str(found) if gpus else "this run is on CPUs, and reducers serve GPUs"
    if gpus and found.loads:
        nccl.watch(environ, required)
        return count
    if required:
        raise IdleReducersError(f"{count} reducers are not used: {why}")
    if cluster.rank == 0:
        say(f"{count} reducers are not used: {why}", "WARNING", reducers="idle")
    return 0


def settle(
    count: int, environ: Mapping[str, str], add: Callable[[int], int], *, rank: int, ranks: int, required: bool
) -> dict[str, float]:
    """After the first all-reduce of the gradients; returns what the reports tell of the reducers, if there are any.

    Args:
        count: as `prepare` returned it.
        add: the sum of a number over all processes. Every process must call this function.

    Raises:
        IdleReducersError: in all processes.
    """
    if not count:
        return {}
    ours = nccl.seen(environ)
    use = nccl.use(ours, count, ranks, add(ours.connected))
    used = bool(add(use.used if rank == 0 else 0))  # only the log of rank 0 tells all
    if required and not used:
        raise IdleReducersError(use.sentence if rank == 0 else f"{count} reducers are not used; the chief says why")
    if rank == 0:
        say(use.sentence, "INFO" if used else "WARNING", reducers="in use" if used else "idle")
    return {"reducers_in_use": float(used)}
