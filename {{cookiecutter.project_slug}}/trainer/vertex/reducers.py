"""The reducers of pool 2: have NCCL use them, and say whether it does, as nothing else would."""

import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from trainer.vertex import nccl
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say

VERDICT = Path("/app/reduction-server.txt")  # of requirements/reducers.sh, which the build of the image has run


class IdleReducersError(TrainerError):
    """--require-reducers, and the reducers are not used."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def prepare(count: int, environ: MutableMapping[str, str], *, rank: int, gpus: bool, required: bool) -> None:
    """Set NCCL up for a job's reducers before it starts, and say on the chief why it cannot use them.

    Raises TrainerError where reducers are required, and there are none or no GPU (IdleReducersError).
    """
    if required and not count:
        raise TrainerError("--require-reducers, and the job has none; add pool 2, or leave the flag out")
    why = "" if gpus else "this run is on CPUs, and reducers serve GPUs"
    if count and required and why:
        raise _idle(f"{count} reducers are not used: {why}", rank)
    if count and gpus:
        nccl.watch(environ)
        why = verdict()  # the log will tell, and this says it before the first step
    if count and why and rank == 0:
        say(f"{count} reducers are not used: {why}", "WARNING", reducers="idle")


def verdict() -> str:
    """Return why NCCL cannot use reducers in this image; empty where it can, or no build has looked."""
    with contextlib.suppress(OSError):
        return next((line for line in VERDICT.read_text().splitlines() if "idle" in line), "")
    return ""


def settle(
    count: int,
    environ: Mapping[str, str],
    add: Callable[[int], int],
    *,
    rank: int,
    ranks: int,
    gpus: int,
    required: bool,
) -> dict[str, float]:
    """Find out whether the reducers were used, after the first all-reduce of the gradients; returns it for the reports.

    Args:
        count: reducers of the job.
        add: returns the sum of a number over all processes. Every process must call this function.
        gpus: of this machine.

    Raises IdleReducersError in all processes.
    """
    if not count or not gpus:
        return {}
    log = nccl.read_log(environ)
    nccl.end_log(environ)
    failed, connected = add(int(log.failed)), add(log.connected)
    use = nccl.judge(log, count, ranks, 0 if failed else connected, gpus)
    # Only the log of rank 0 tells all: 0 for idle, 1 for used, 2 for not known.
    used = add((2 if use.used is None else int(use.used)) if rank == 0 else 0)
    if required and not used:
        raise _idle(use.sentence, rank)
    if rank == 0:
        say(use.sentence, "INFO" if used == 1 else "WARNING", reducers=("idle", "in use", "not known")[used])
    return {"reducers_in_use": float(used)} if used < 2 else {}


def _idle(sentence: str, rank: int) -> IdleReducersError:
    """The end of a run whose reducers are required; the chief's line has the field that an alert looks for."""
    if rank == 0:
        say(sentence, "ERROR", reducers="idle")
    return IdleReducersError("--require-reducers, and the reducers are not used; the chief says why")
