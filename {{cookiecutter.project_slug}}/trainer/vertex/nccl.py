"""Determines from NCCL's log whether NCCL uses Reduction Server's reducers.

Only NCCL's log shows whether NCCL uses reducers. Idle reducers still cost money. This file requires only Python's
standard library, so you can copy it to another trainer.
Source of the log lines: github.com/NVIDIA/nccl, versions 2.18 to 2.32, in src/plugin, src/transport, and src/graph.

Example:

    nccl.watch(os.environ)  # in every process, before NCCL starts
    print(nccl.judge(nccl.read_log(os.environ), reducers=4))  # in the process of rank 0, after the first step
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

# NCCL replaces %h with the host and %p with the process ID. Source: NCCL documentation, NCCL_DEBUG_FILE.
# Without ENV and TUNING, NCCL doesn't log which algorithm an all-reduce uses.
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}

LARGE = 2**20  # bytes; a smaller all-reduce isn't an all-reduce of gradients, for which reducers exist
MOST_GPUS = 8  # per machine; with more, NCCL doesn't use reducers, and 2.27 and later don't log the reason
CONNECTED = re.compile(r"\[(\d+)\] NCCL INFO CollNet \d+/\d+ : .* via COLLNET/")
WAY = re.compile(r"AllReduce: (\d+) Bytes -> Algo ([A-Z]\w*)")  # NCCL 2.23 logs numbers, which other versions redefine
FAILED = "Cannot initialize CollNet"

SYSTEM = "check that NCCL_COLLNET_ENABLE is 1, that NCCL_NET is unset, and that the reducers run; see the reducers' log"
CHECK = "see /app/reduction-server.txt in the image"
ALGO_FORCED = ("NCCL_ALGO selects another algorithm", "leave NCCL_ALGO unset")
TOO_MANY_GPUS = (
    f"NCCL uses reducers only on machines with up to {MOST_GPUS} GPUs",
    "use machines with fewer GPUs, or remove pool 2",
)
NOT_CONNECTED = ("NCCL has loaded the plug-in, but hasn't connected to the reducers", SYSTEM)
NOT_MENTIONED = ("NCCL's log doesn't mention the reducers", CHECK)
LOG_REDIRECTED = ("the job itself configures NCCL's log", "unset all variables whose names begin with NCCL_DEBUG")
NO_LOG = ("NCCL hasn't written a log to /tmp", "check that /tmp is writable, and that training uses several GPUs")
# Pattern of a log line -> the problem with the reducers, and the fix. The first pattern that matches counts.
CAUSES = {
    r"NCCL_ALGO set by environment to (?!\^|.*(?i:collnet))": ALGO_FORCED,
    FAILED: ("NCCL can't set up the reducers", SYSTEM),
    r"NET/Plugin ?: (?:No plugin found|Could not find:)": ("NCCL finds no plug-in", "install google-reduction-server"),
    r"NET/Plugin ?: .*(?:libnccl-net\S*: |cannot open shared object|undefined symbol|\(required by)": (
        "the plug-in can't be opened",
        "install its dependencies in the image",
    ),
    r"CollNet currently only supports up to 8 GPUs": TOO_MANY_GPUS,
    r"less than CollNet node threshold": ("reducers need two or more machines", "add workers, or remove pool 2"),
    # NCCL's own two networks (IB and Socket) may also fail to start, which isn't an error.
    r"FastSocket disabled|Failed to initialize NET plugin (?!IB|Socket)": (
        "the plug-in doesn't start",
        "leave NCCL_COLLNET_ENABLE at 1, and remove Fast Socket from the image",
    ),
    r"Loaded coll(?:net)? plugin": NOT_CONNECTED,
    r"Failed to find ncclCollNetPlugin_v": ("this NCCL version doesn't support the CollNet part of the plug-in", CHECK),
    # NCCL 2.28 and later don't log anything else about it.
    r"Loaded net plugin": ("NCCL has loaded the plug-in's network part, but not its CollNet part for reducers", CHECK),
    r"External network plugin \S+ is unsupported|Failed to find ncclNetPlugin_v": (
        "NCCL doesn't support any version of the plug-in",
        CHECK,
    ),
}


@dataclass(frozen=True)
class Log:
    """The state of the reducers according to one process's NCCL log."""

    is_ours: bool  # whether there is a log with the settings of `watch`
    connected: int = 0  # NCCL ranks that prepare a connection to reducers, each on behalf of its machine
    failed: bool = False  # whether the connection failed
    way: str = ""  # algorithm of the largest all-reduce, such as RING; "" before NCCL 2.24, and except on rank 0
    bytes: int = 0  # size of that all-reduce
    cause: tuple[str, str] = NO_LOG  # why the reducers aren't used, and the fix


@dataclass(frozen=True)
class Use:
    """The result of `judge`, with a sentence for the user.

    If the log doesn't show whether NCCL uses the reducers, `used` is None.
    """

    used: bool | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def watch(environ: MutableMapping[str, str]) -> None:
    """Configure NCCL to try reducers and to write a log for `read_log`. The user's own settings take precedence."""
    environ.setdefault("NCCL_COLLNET_ENABLE", "1")
    if not LOGS.keys() & environ.keys():  # a user who has set one of them reads the log
        environ.update(LOGS)


def read_log(environ: Mapping[str, str]) -> Log:
    """Read the log that NCCL has written in this process since the call to `watch`."""
    if not _is_ours(environ):
        return Log(is_ours=False, cause=LOG_REDIRECTED)
    with contextlib.suppress(OSError):
        return parse(_path().read_text(encoding="utf-8", errors="replace"))
    return Log(is_ours=False)


def end_log(environ: Mapping[str, str]) -> None:
    """Discard everything that NCCL logs from now on.

    Otherwise, a log line per all-reduce would fill the disk within days.
    """
    path = _path()
    if not _is_ours(environ) or not path.exists():
        return
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists this folder is already closed
            if Path(os.readlink(link)) == path:
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), int(link.name))


def _is_ours(environ: Mapping[str, str]) -> bool:
    """Return whether NCCL logs with the settings from `watch`. With less detail, active reducers would appear idle."""
    return LOGS.items() <= environ.items()


def _path() -> Path:
    host = socket.gethostname().partition(".")[0]  # NCCL uses the part before the first dot
    return Path(LOGS["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid())))


def parse(log: str) -> Log:
    """Parse the text of an NCCL log."""
    if not log:
        return Log(is_ours=False)
    size, way = max(((int(size), way) for size, way in WAY.findall(log)), default=(0, ""))
    causes = (cause for line, cause in CAUSES.items() if re.search(line, log))
    return Log(True, len({*CONNECTED.findall(log)}), FAILED in log, way, size, next(causes, NOT_MENTIONED))


def judge(chief: Log, reducers: int, ranks: int = 0, connected: int | None = None, gpus: int = 0) -> Use:
    """Determine whether NCCL uses the reducers.

    Args:
        chief: the log of rank 0.
        ranks: the number of ranks in all processes. Pass 0 if only the chief's log is known.
        connected: the number of connected ranks in all processes. Pass None if only the chief's log is known.
        gpus: the number of GPUs per machine. Pass 0 if this number is unknown.
    """
    unknown = f"NCCL's log doesn't show whether the {reducers} reducers are used"
    if not chief.is_ours:
        return Use(None, f"{unknown}: {'; '.join(chief.cause)}")
    # One rank per machine connects for all ranks. This rank may not be rank 0, but rank 0's log may be the only log.
    others_may = connected is None and chief.cause == NOT_CONNECTED
    if connected is None:
        connected = 0 if chief.failed else chief.connected
    by = f"{connected} of {ranks} ranks connect on behalf of their machines" if ranks else f"{connected} ranks connect"
    seen = "; ".join(filter(None, (chief.way, by if connected else "")))
    if chief.way.startswith("COLLNET") and chief.bytes >= LARGE:
        return Use(True, f"{reducers} reducers are in use ({seen})")
    if connected and not chief.way:
        return Use(True, f"{reducers} reducers are connected ({by}); this NCCL version doesn't log reducer usage")
    if others_may and not connected and not chief.way:
        return Use(
            None,
            f"{unknown}: rank 0 isn't connected to reducers, but other ranks might be; sum `connected` over all ranks",
        )
    if not connected and not others_may:
        why, cure = TOO_MANY_GPUS if gpus > MOST_GPUS else chief.cause
    elif chief.bytes < LARGE:
        why = f"the largest all-reduce has only {chief.bytes} bytes"
        cure = "use a larger model, or a strategy that all-reduces gradients"
    elif chief.cause == ALGO_FORCED:
        why, cure = ALGO_FORCED
    else:
        why = f"{f'{by}, but ' if connected else ''}NCCL prefers {chief.way}"
        cure = "remove pool 2, or use a larger model or larger machines"
    return Use(False, f"{reducers} reducers are billed but not used: {why}; {cure}")
