"""Reduction Server: whether NCCL's all-reduces pass through the reducers, by its log.

NCCL says it nowhere else: reducers that it does not use are paid for, and idle. This file needs nothing but Python;
another trainer can take it along:

    nccl.watch(os.environ)  # in every process, before NCCL starts
    print(nccl.judge(nccl.read_log(os.environ), reducers=4))  # in that of rank 0, after the first step

Source of the log lines: github.com/NVIDIA/nccl, src/plugin, src/transport and src/graph of 2.18 to 2.32.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

# NCCL writes %h and %p, host and process, itself. Source: NCCL documentation, NCCL_DEBUG_FILE.
# Without ENV and TUNING it leaves out which way an all-reduce takes.
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}

LARGE = 2**20  # bytes; less is no all-reduce of gradients for which there are reducers
MOST_GPUS = 8  # of a machine; NCCL passes reducers by where there are more, and 2.27 and later do not say so
CONNECTED = re.compile(r"\[(\d+)\] NCCL INFO CollNet \d+/\d+ : .* via COLLNET/")
WAY = re.compile(r"AllReduce: (\d+) Bytes -> Algo ([A-Z]\w*)")  # 2.23 has numbers, which other versions count otherwise
FAILED = "Cannot initialize CollNet"

SYSTEM = "see that NCCL_COLLNET_ENABLE is 1 and NCCL_NET unset, that the reducers run, and their log"
CHECK = "see /app/reduction-server.txt in the image"
ALGO_FORCED = ("NCCL_ALGO has NCCL go another way", "leave it unset")
TOO_MANY_GPUS = (f"NCCL uses reducers where a machine has at most {MOST_GPUS} GPUs", "take such, or remove pool 2")
NOT_CONNECTED = ("NCCL has loaded the plug-in and not connected to them", SYSTEM)
NOT_MENTIONED = ("NCCL's log does not mention them", CHECK)
LOG_REDIRECTED = ("NCCL's log goes where the job has it go", "leave all variables unset that begin with NCCL_DEBUG")
NO_LOG = ("NCCL has written no log into /tmp", "see that it can be written to, and that several GPUs train")
# A line of the log -> what it means for the reducers, and the cure. The first that matches counts.
CAUSES = {
    r"NCCL_ALGO set by environment to (?!\^|.*(?i:collnet))": ALGO_FORCED,
    FAILED: ("NCCL cannot set up the reducers", SYSTEM),
    r"NET/Plugin ?: (?:No plugin found|Could not find:)": ("NCCL finds no plug-in", "install google-reduction-server"),
    r"NET/Plugin ?: .*(?:libnccl-net\S*: |cannot open shared object|undefined symbol|\(required by)": (
        "the plug-in cannot be opened",
        "install what it needs in the image",
    ),
    r"CollNet currently only supports up to 8 GPUs": TOO_MANY_GPUS,
    r"less than CollNet node threshold": ("reducers serve two or more machines", "add workers, or remove pool 2"),
    # NCCL cannot always start its own two networks, either: that is no fault.
    r"FastSocket disabled|Failed to initialize NET plugin (?!IB|Socket)": (
        "the plug-in does not start",
        "leave NCCL_COLLNET_ENABLE at 1, and Fast Socket out of the image",
    ),
    r"Loaded coll(?:net)? plugin": NOT_CONNECTED,
    r"Failed to find ncclCollNetPlugin_v": ("the plug-in has no half for the reducers that this NCCL takes", CHECK),
    # From 2.28 on that is all that it says.
    r"Loaded net plugin": ("NCCL has loaded one half of the plug-in, and not that of the reducers", CHECK),
    r"External network plugin \S+ is unsupported|Failed to find ncclNetPlugin_v": (
        "NCCL takes no version of the plug-in",
        CHECK,
    ),
}


@dataclass(frozen=True)
class Log:
    """State of the reducers, by the log of one process."""

    is_ours: bool  # there is a log, as `watch` wants it
    connected: int = 0  # ranks of NCCL that prepare to speak with reducers: those that do so for their machines
    failed: bool = False  # and cannot
    way: str = ""  # of the largest all-reduce, such as RING; "" from an NCCL before 2.24, and of all but rank 0
    bytes: int = 0  # of that all-reduce
    cause: tuple[str, str] = NO_LOG  # why not, and the cure


@dataclass(frozen=True)
class Use:
    """Whether reducers are used, None where that cannot be told, as one sentence."""

    used: bool | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def watch(environ: MutableMapping[str, str]) -> None:
    """Have NCCL try reducers, and write a log that `read_log` reads; the user's own settings stay."""
    environ.setdefault("NCCL_COLLNET_ENABLE", "1")
    if not LOGS.keys() & environ.keys():  # whoever has set one wants to read the log himself
        environ.update(LOGS)


def read_log(environ: Mapping[str, str]) -> Log:
    """Read what NCCL has written in this process since `watch`."""
    if not _is_ours(environ):
        return Log(is_ours=False, cause=LOG_REDIRECTED)
    with contextlib.suppress(OSError):
        return parse(_path().read_text(encoding="utf-8", errors="replace"))
    return Log(is_ours=False)


def end_log(environ: Mapping[str, str]) -> None:
    """Let what NCCL goes on to write vanish: a line for each all-reduce would fill the disk in days."""
    path = _path()
    if not _is_ours(environ) or not path.exists():
        return
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists this folder is gone again
            if Path(os.readlink(link)) == path:
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), int(link.name))


def _is_ours(environ: Mapping[str, str]) -> bool:
    """Whether the log is as `watch` wants it: one that says less would be taken for reducers that are not used."""
    return LOGS.items() <= environ.items()


def _path() -> Path:
    host = socket.gethostname().partition(".")[0]  # of a name with dots NCCL takes the first part
    return Path(LOGS["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid())))


def parse(log: str) -> Log:
    """Read the text of a log."""
    if not log:
        return Log(is_ours=False)
    size, way = max(((int(size), way) for size, way in WAY.findall(log)), default=(0, ""))
    causes = (cause for line, cause in CAUSES.items() if re.search(line, log))
    return Log(True, len({*CONNECTED.findall(log)}), FAILED in log, way, size, next(causes, NOT_MENTIONED))


def judge(chief: Log, reducers: int, ranks: int = 0, connected: int | None = None, gpus: int = 0) -> Use:
    """Judge whether the reducers are used.

    Args:
        chief: the log of rank 0.
        ranks: of all processes; 0 if the chief's alone are known.
        connected: the ranks of all processes that are connected; None if the chief's alone are known.
        gpus: of a machine; 0 if that is not known.
    """
    unknown = f"whether {reducers} reducers are used cannot be told"
    if not chief.is_ours:
        return Use(None, f"{unknown}: {'; '.join(chief.cause)}")
    # One rank of a machine connects for all of them, and that need not be rank 0, whose log may be the only one.
    others_may = connected is None and chief.cause == NOT_CONNECTED
    if connected is None:
        connected = 0 if chief.failed else chief.connected
    by = f"{connected} of {ranks} ranks connect, for their machines" if ranks else f"{connected} ranks connect"
    seen = "; ".join(filter(None, (chief.way, by if connected else "")))
    if chief.way.startswith("COLLNET") and chief.bytes >= LARGE:
        return Use(True, f"{reducers} reducers in use ({seen})")
    if connected and not chief.way:
        return Use(True, f"{reducers} reducers are connected ({by}); this NCCL does not tell how much it uses them")
    if others_may and not connected and not chief.way:
        return Use(None, f"{unknown}: rank 0 does not connect, and another rank may; add `connected` up over all ranks")
    if not connected and not others_may:
        why, cure = TOO_MANY_GPUS if gpus > MOST_GPUS else chief.cause
    elif chief.bytes < LARGE:
        why = f"the largest all-reduce has {chief.bytes} bytes"
        cure = "they serve larger models, and strategies that all-reduce gradients"
    elif chief.cause == ALGO_FORCED:
        why, cure = ALGO_FORCED
    else:
        why = f"{f'{by}, but ' if connected else ''}NCCL prefers {chief.way}"
        cure = "remove pool 2, or take larger models or machines"
    return Use(False, f"{reducers} reducers are paid for and not used: {why}; {cure}")
