"""Configures NCCL for the reducers in pool 2, and reports whether NCCL uses them."""

import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from trainer.vertex import nccl
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import say

VERDICT = Path("/app/reduction-server.txt")  # requirements/reducers.sh writes it during the image build


class IdleReducersError(TrainerError):
    """The error that is raised if --require-reducers is set but NCCL doesn't use the reducers."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def prepare(count: int, environ: MutableMapping[str, str], *, rank: int, gpus: bool, required: bool) -> None:
    """Configure NCCL for a job's reducers before NCCL starts.

    If NCCL can't use the reducers, the chief prints a warning.

    Raises TrainerError if reducers are required but the job has none. Raises IdleReducersError if reducers are required
    but the run doesn't use GPUs.
    """
    if required and not count:
        raise TrainerError(
            "--require-reducers is set, but the job doesn't have reducers; add pool 2 to the job, or remove the flag"
        )
    why = "" if gpus else "this run uses CPUs, but reducers need GPUs"
    if count and required and why:
        raise _idle(f"{count} reducers are not used: {why}", rank)
    if count and gpus:
        nccl.watch(environ)
        why = verdict()  # known before the first step, unlike the content of NCCL's log
    if count and why and rank == 0:
        say(f"{count} reducers are not used: {why}", "WARNING", reducers="idle")


def verdict() -> str:
    """Return why NCCL can't use reducers in this image.

    If the image build didn't find a problem, return an empty string.
    """
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
    """Determine whether NCCL used the reducers and return the result for the reports.

    Every process must call this function after the first all-reduce of gradients.

    Args:
        count: the number of reducers in the job.
        add: a function that returns the sum of a number over all processes.
        gpus: the number of GPUs on this machine.

    Raises IdleReducersError in all processes if the reducers are required but not used.
    """
    if not count or not gpus:
        return {}
    log = nccl.read_log(environ)
    nccl.end_log(environ)
    failed, connected = add(int(log.failed)), add(log.connected)
    use = nccl.judge(log, count, ranks, 0 if failed else connected, gpus)
    # Only rank 0's log is complete. The value 0 means idle, 1 means in use, and 2 means unknown.
    used = add((2 if use.used is None else int(use.used)) if rank == 0 else 0)
    if required and not used:
        raise _idle(use.sentence, rank)
    if rank == 0:
        say(use.sentence, "INFO" if used == 1 else "WARNING", reducers=("idle", "in use", "not known")[used])
    return {"reducers_in_use": float(used)} if used < 2 else {}


def _idle(sentence: str, rank: int) -> IdleReducersError:
    """Print a log line on the chief and return the error for idle reducers.

    Alerts match the log line's `reducers` field.
    """
    if rank == 0:
        say(sentence, "ERROR", reducers="idle")
    return IdleReducersError("--require-reducers is set, but NCCL doesn't use the reducers; see the chief's log")
