"""Reduction Server: whether NCCL can load its plug-in, and whether all-reduces pass through the reducers.

NCCL says neither by itself: reducers that it does not use are paid for, and idle. `python -m trainer.vertex.nccl`
compares plug-in and library, in an image or anywhere. This file needs nothing but Python; another trainer can take it
along:

    nccl.watch(os.environ)  # in every process, before NCCL starts
    print(nccl.use(nccl.seen(os.environ), reducers=4))  # in that of rank 0, after the first step

Source of the names and log lines: github.com/NVIDIA/nccl, src/plugin, src/transport and src/graph of 2.18 to 2.32.
"""

import contextlib
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

PLUGIN, LIBRARY = "libnccl-net.so", "libnccl.so.2"  # what NCCL loads, and NCCL
WHEEL = f"nvidia/nccl/lib/{LIBRARY}"  # where the wheels of the frameworks have it
# Where the loader looks last. Source: ld.so(8), and Debian's two for this architecture.
FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
NAME = re.compile(rb"nccl(Coll)?NetPlugin_v(\d+)")
DYNSYM = 11  # the type of a section with the names that a library exports. Source: ELF-64 Object File Format 1.5
IDLE = "reducers would be paid for and idle"


@dataclass(frozen=True)
class Versions:
    """Versions of the interface between NCCL and its plug-ins, of both halves."""

    net: frozenset[int] = frozenset()  # sends and receives
    collnet: frozenset[int] = frozenset()  # has others add: the reducers

    def __and__(self, other: "Versions") -> "Versions":
        return Versions(self.net & other.net, self.collnet & other.collnet)

    def __str__(self) -> str:
        """`net v4 to v6, CollNet v4`"""
        return f"net {_range(self.net)}, CollNet {_range(self.collnet)}"


@dataclass(frozen=True)
class Verdict:
    """Whether NCCL can use reducers through the plug-in; what is None is not there."""

    plugin: Path | None
    library: Path | None
    exported: Versions
    asked: Versions
    named: str = ""  # what NCCL_NET_PLUGIN is, which NCCL takes in place of the usual name

    @property
    def loads(self) -> bool:
        common = self.exported & self.asked
        return bool(common.net and common.collnet)

    def __str__(self) -> str:
        """One sentence, with a cure where there is need of one."""
        common = self.exported & self.asked
        if not self.library:
            return f"there is no NCCL here, as in an image for CPUs: {IDLE}; use one with CUDA, or remove pool 2"
        if not self.plugin and self.named:
            return f"NCCL finds no plug-in, as NCCL_NET_PLUGIN is {self.named}: {IDLE}; leave it unset"
        if not self.plugin:
            return f"NCCL finds no plug-in {PLUGIN}: {IDLE}; install google-reduction-server"
        if self.loads:
            return f"NCCL can load the plug-in of the reducers, {common}"
        why = f"NCCL does not load {self.plugin.name}"
        if common.net:
            why = f"NCCL loads net {_range(common.net)} of {self.plugin.name}, and not its other half, of the reducers"
        return f"{why}: {IDLE}; install a newer google-reduction-server, or remove pool 2"


def verdict(environ: Mapping[str, str]) -> Verdict:
    """Return whether NCCL could use reducers here."""
    plugin, library = find_plugin(environ), find_library(environ)
    return Verdict(
        plugin,
        library,
        exported(plugin) if plugin else Versions(),
        asked(library) if library else Versions(),
        environ.get("NCCL_NET_PLUGIN", ""),
    )


def find_plugin(environ: Mapping[str, str]) -> Path | None:
    """The file that NCCL would load. Source: NCCL documentation, NCCL_NET_PLUGIN."""
    wanted = [one.strip() for one in environ.get("NCCL_NET_PLUGIN", "").split(",") if one.strip()]
    names = [name for one in wanted if one != "none" for name in (one, f"libnccl-net-{one}.so")]
    return _find(names if wanted else [PLUGIN], environ)


def find_library(environ: Mapping[str, str]) -> Path | None:
    """NCCL: that of a framework's wheel, else the one of this system."""
    path = Path(sysconfig.get_path("purelib"), WHEEL)
    return path if path.is_file() else _find([LIBRARY], environ)


def _find(names: list[str], environ: Mapping[str, str]) -> Path | None:
    """The first of these libraries, where the loader would look for it."""
    first = [*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))]
    for name in names:
        places = chain((Path(folder, name) for folder in first), _known(name), (Path(last, name) for last in FOLDERS))
        if found := next((path for path in places if os.path.isfile(path)), None):
            return found
    return None


def _known(name: str) -> Iterator[Path]:
    """Yield the files that the loader's own list has under a name; it is read when it is asked for."""
    with contextlib.suppress(OSError):
        said = subprocess.run(("/sbin/ldconfig", "-p"), capture_output=True, text=True).stdout
        yield from (Path(line.rpartition(" => ")[2]) for line in said.splitlines() if line.split()[:1] == [name])


def exported(plugin: Path) -> Versions:
    """Return the versions that a plug-in offers, by its table of symbols; none for a file without such a table."""
    with contextlib.suppress(struct.error, LookupError, ValueError, OSError):  # no library, or one that was cut off
        return _versions(b"\0".join(_symbols(plugin.read_bytes())))
    return Versions()


def asked(library: Path) -> Versions:
    """Return the versions that NCCL looks for: the names stand in it as text, for dlsym; none for an empty file."""
    with (
        contextlib.suppress(ValueError, OSError),
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _versions(data)
    return Versions()


def _symbols(data: bytes) -> Iterator[bytes]:
    """The names that a 64-bit library defines for others."""
    if data[:5] != b"\x7fELF\x02":
        raise LookupError
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    # Of each section: type, offset, size, the section with its names.
    rows = [struct.unpack_from("<4xI16xQQI", data, start + size * index) for index in range(count)]
    for kind, offset, length, link in rows:
        if kind == DYNSYM:
            for at in range(offset, offset + length, 24):
                name, defined = struct.unpack_from("<I2xH", data, at)
                begin = rows[link][1] + name
                if defined:
                    yield data[begin : data.index(b"\0", begin)]


def _versions(text: "bytes | mmap.mmap") -> Versions:
    halves: dict[bytes, set[int]] = {b"": set(), b"Coll": set()}
    for found in NAME.finditer(text):
        halves[found[1] or b""].add(int(found[2]))
    return Versions(frozenset(halves[b""]), frozenset(halves[b"Coll"]))


def _range(versions: frozenset[int]) -> str:
    if not versions:
        return "none"
    first, last = min(versions), max(versions)
    return f"v{first}" if first == last else f"v{first} to v{last}"


# NCCL writes %h and %p, host and process, itself. Source: NCCL documentation, NCCL_DEBUG_FILE.
# Without ENV and TUNING it leaves out which way an all-reduce takes.
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}

LARGE = 2**20  # bytes; less is no all-reduce of gradients for which there are reducers
CONNECTED = re.compile(r"\[(\d+)\] NCCL INFO CollNet \d+/\d+ : .* via COLLNET/")
WAY = re.compile(r"AllReduce: (\d+) Bytes -> Algo ([A-Z]\w*)")  # 2.23 has numbers, which other versions count otherwise
LOADED = re.compile(r"Loaded (net|coll)(?:net)? plugin")
SYSTEM = "see that NCCL_COLLNET_ENABLE is 1 and NCCL_NET unset, that the reducers run, and their log"
CHECK = "see python -m trainer.vertex.nccl in the image"
FAILED = "Cannot initialize CollNet"
OTHERS = "(?!IB|Socket)"  # NCCL's own two, which it cannot always start, either: that is no fault
MOST_GPUS = 8  # of a machine; NCCL passes reducers by where there are more, and 2.27 and later do not say so
CROWDED = (f"NCCL uses reducers on machines with at most {MOST_GPUS} GPUs", "take such machines, or remove pool 2")
CHOSEN = ("NCCL_ALGO has NCCL go another way", "leave it unset")
# What NCCL says -> what it means, and what cures it; the first that it says counts.
CAUSES = {
    r"NCCL_ALGO set by environment to (?!\^|.*(?i:collnet))": CHOSEN,
    FAILED: ("NCCL cannot set up the reducers", SYSTEM),
    r"NET/Plugin ?: No plugin found|NET/Plugin ?: Could not find:": (
        "NCCL finds no plug-in",
        "install google-reduction-server in the image",
    ),
    r"NET/Plugin ?: .*(?:libnccl-net\S*: |cannot open shared object|undefined symbol|\(required by)": (
        "the plug-in cannot be opened",
        "install what it needs in the image",
    ),
    r"CollNet currently only supports up to 8 GPUs": CROWDED,
    r"less than CollNet node threshold": ("reducers serve two or more machines", "add workers, or remove pool 2"),
    rf"FastSocket disabled|Failed to initialize NET plugin {OTHERS}": (
        "the plug-in does not start",
        "leave NCCL_COLLNET_ENABLE at 1, and Fast Socket out of the image",
    ),
}
HALF = ("NCCL has loaded one half of the plug-in, and not that of the reducers", CHECK)
WHOLE = ("NCCL has loaded the plug-in and not connected to them", SYSTEM)
TOO_OLD = ("the plug-in has no half for the reducers that this NCCL takes", CHECK)
UNKNOWN = re.compile(r"External network plugin \S+ is unsupported|Failed to find ncclNetPlugin_v")
FOREIGN = ("NCCL takes no version of the plug-in", CHECK)
SILENT = ("NCCL's log does not mention them", CHECK)
THEIRS = ("NCCL's log goes where the job has it go", "leave all variables unset that begin with NCCL_DEBUG")
UNWRITTEN = ("NCCL has written no log into /tmp", "see that it can be written to, and that several GPUs train")


@dataclass(frozen=True)
class Seen:
    """State of the reducers, by the log of one process."""

    logged: bool  # there is a log of ours
    connected: int = 0  # ranks of NCCL that prepare to speak with them: those that do so for their machines
    failed: bool = False  # and cannot
    way: str = ""  # of the largest all-reduce, such as RING; "" from an NCCL before 2.24, and of all but rank 0
    bytes: int = 0  # of that all-reduce
    cause: tuple[str, str] = UNWRITTEN  # why not, and what cures it


@dataclass(frozen=True)
class Use:
    """Whether reducers are used, None where that cannot be told, as one sentence."""

    used: bool | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def watch(environ: MutableMapping[str, str]) -> None:
    """Have NCCL try reducers, and write a log that `seen` reads; what the user has set stays."""
    environ.setdefault("NCCL_COLLNET_ENABLE", "1")
    if not LOGS.keys() & environ.keys():  # whoever has set one wants to read the log himself
        environ.update(LOGS)


def seen(environ: Mapping[str, str]) -> Seen:
    """Read what NCCL has written in this process since `watch`."""
    if not _ours(environ):
        return Seen(logged=False, cause=THEIRS)
    with contextlib.suppress(OSError):
        return read(_log().read_text(encoding="utf-8", errors="replace"))
    return Seen(logged=False)


def end_log(environ: Mapping[str, str]) -> None:
    """Let what NCCL goes on to write vanish: a line for each all-reduce would fill the disk in days."""
    path = _log()
    if not _ours(environ) or not path.exists():
        return
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists this folder is gone again
            if Path(os.readlink(link)) == path:
                with open(os.devnull, "wb") as nothing:
                    os.dup2(nothing.fileno(), int(link.name))


def _ours(environ: Mapping[str, str]) -> bool:
    """Whether the log is as `watch` wants it: one that says less would be taken for reducers that are not used."""
    return LOGS.items() <= environ.items()


def _log() -> Path:
    host = socket.gethostname().partition(".")[0]  # of a name with dots NCCL takes the first part
    return Path(LOGS["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(os.getpid())))


def read(log: str) -> Seen:
    """Read a log of NCCL."""
    if not log:
        return Seen(logged=False)
    size, way = max(((int(size), way) for size, way in WAY.findall(log)), default=(0, ""))
    return Seen(True, len({*CONNECTED.findall(log)}), FAILED in log, way, size, _cause(log))


def _cause(log: str) -> tuple[str, str]:
    """Why nothing would be connected, and what cures it."""
    halves = {*LOADED.findall(log)}
    found = [cause for line, cause in CAUSES.items() if re.search(line, log)]
    if "coll" in halves:
        found.append(WHOLE)
    elif "Failed to find ncclCollNetPlugin_v" in log:  # for each version, before the one that it finds
        found.append(TOO_OLD)
    elif halves:  # from NCCL 2.28 on that is all it says
        found.append(HALF)
    elif UNKNOWN.search(log):
        found.append(FOREIGN)
    return (*found, SILENT)[0]


def use(chief: Seen, reducers: int, ranks: int = 0, connected: int | None = None, gpus: int = 0) -> Use:
    """Judge whether the reducers are used.

    Args:
        chief: what the log of rank 0 tells.
        ranks: of all processes; 0 if the chief's alone are known.
        connected: the ranks of all processes that are connected; None if the chief's alone are known.
        gpus: of a machine; 0 if that is not known.
    """
    if not chief.logged:
        return _unknown(reducers, "; ".join(chief.cause))
    # One rank of a machine connects for all of them, and that need not be rank 0, whose log may be the only one.
    others_may = connected is None and chief.cause == WHOLE
    if connected is None:
        connected = 0 if chief.failed else chief.connected
    by = _by(connected, ranks)
    if chief.way.startswith("COLLNET") and chief.bytes >= LARGE:
        return Use(True, f"{reducers} reducers in use ({'; '.join(filter(None, (chief.way, by)))})")
    if not connected and not others_may:
        why, cure = CROWDED if gpus > MOST_GPUS else chief.cause
    elif not connected and not chief.way:
        return _unknown(reducers, "rank 0 does not connect, and another rank may; add `connected` up over all ranks")
    elif not chief.way:
        return Use(True, f"{reducers} reducers are connected ({by}); this NCCL does not tell how much it uses them")
    elif chief.bytes < LARGE:
        why = f"the largest all-reduce has {chief.bytes} bytes"
        cure = "they serve larger models, and strategies that all-reduce gradients"
    elif chief.cause == CHOSEN:
        why, cure = CHOSEN
    else:
        why = f"{f'{by}, but ' if by else ''}NCCL prefers {chief.way}"
        cure = "remove pool 2, or take larger models or machines"
    return Use(False, f"{reducers} reducers are paid for and not used: {why}; {cure}")


def _unknown(reducers: int, why: str) -> Use:
    return Use(None, f"whether {reducers} reducers are used cannot be told: {why}")


def _by(connected: int, ranks: int) -> str:
    if not connected:
        return ""
    return f"{connected} of {ranks} ranks connect, for their machines" if ranks else f"{connected} ranks connect"


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Print what plug-in and library have in common; with --required it is a fault if that is not enough."""
    if unknown := {*argv} - {"--required"}:
        print(f"python -m trainer.vertex.nccl takes --required, and not {', '.join(unknown)}", file=sys.stderr)
        return 2
    found = verdict(environ)
    for what, path, versions in (("plug-in", found.plugin, found.exported), ("NCCL", found.library, found.asked)):
        print(f"{what:<8} {path or 'none'}: {versions}")
    print(f"{'common':<8} {found.exported & found.asked}")
    print(found)
    return 0 if found.loads or "--required" not in argv else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
