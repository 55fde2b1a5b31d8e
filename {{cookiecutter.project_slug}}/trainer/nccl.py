"""Reduction Server: whether NCCL can load its plug-in, and whether all-reduces pass through the reducers.

NCCL says neither by itself: reducers that it does not use are paid for, and idle. `python -m trainer.nccl` compares
plug-in and library, in an image or anywhere. This file needs nothing but Python; another trainer takes it along, and
says in the process of rank 0

    nccl.watch(os.environ)  # before NCCL starts
    print(nccl.use(nccl.seen(os.environ), reducers=4))  # after the first step

Source of the names and log lines: github.com/NVIDIA/nccl, src/plugin and src/graph of 2.18 to 2.32.
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
from pathlib import Path

PLUGIN, LIBRARY = "libnccl-net.so", "nvidia/nccl/lib/libnccl.so.2"  # what NCCL loads; its own place in the wheels
FOLDERS = ("/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib")
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

    @property
    def loads(self) -> bool:
        common = self.exported & self.asked
        return bool(common.net and common.collnet)

    def __str__(self) -> str:
        """One sentence, with a cure where there is need of one."""
        common = self.exported & self.asked
        if not self.library:
            return "there is no NCCL here, as in an image for CPUs: reducers serve GPUs"
        if not self.plugin:
            return f"NCCL finds no plug-in {PLUGIN}: {IDLE}; install google-reduction-server"
        if self.loads:
            return f"NCCL can load the plug-in of the reducers, {common}"
        why = f"NCCL does not load {self.plugin.name}"
        if common.net:
            why = f"NCCL loads net {_range(common.net)} of {self.plugin.name}, and not its other half, of the reducers"
        return f"{why}: {IDLE}; install a newer google-reduction-server, or remove pool 2"


def verdict(environ: Mapping[str, str]) -> Verdict:
    """What NCCL would find here."""
    plugin, library = find_plugin(environ), find_library()
    return Verdict(
        plugin,
        library,
        exported(plugin) if plugin else Versions(),
        asked(library) if library else Versions(),
    )


def find_plugin(environ: Mapping[str, str]) -> Path | None:
    """The file that NCCL would load. Source: NCCL documentation, NCCL_NET_PLUGIN."""
    wanted = environ.get("NCCL_NET_PLUGIN", "")
    names = [wanted, f"libnccl-net-{wanted}.so", PLUGIN] if wanted else [PLUGIN]
    folders = [*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), *FOLDERS]
    for name in names:
        places = [*(Path(folder, name) for folder in folders), *_known_to_the_loader(name)]
        if found := [path for path in places if path.is_file()]:
            return found[0]
    return None


def find_library() -> Path | None:
    """NCCL, as the wheels of the frameworks bring it."""
    path = Path(sysconfig.get_path("purelib"), LIBRARY)
    return path if path.is_file() else None


def _known_to_the_loader(name: str) -> list[Path]:
    with contextlib.suppress(OSError):
        said = subprocess.run(("/sbin/ldconfig", "-p"), capture_output=True, text=True).stdout
        return [Path(line.rpartition(" => ")[2]) for line in said.splitlines() if line.split()[:1] == [name]]
    return []


def exported(plugin: Path) -> Versions:
    """What a plug-in offers: the names in its table of symbols; none of a file that has no such table."""
    data = plugin.read_bytes()
    with contextlib.suppress(struct.error, LookupError):
        return _versions(b"\0".join(_symbols(data)))
    return Versions()


def asked(library: Path) -> Versions:
    """What NCCL looks for: the names stand in it as text, for dlsym."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _versions(data)


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
LOG = "/tmp/nccl.%h.%p"
# Without ENV and TUNING it leaves out which way an all-reduce takes.
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING", "NCCL_DEBUG_FILE": LOG}
GUARD = "allreduce:collnetdirect,collnetchain"  # an all-reduce that cannot take this way fails; from NCCL 2.24 on

CONNECTED = re.compile(r"\[(\d+)\] NCCL INFO CollNet \d+/\d+ : .* via COLLNET/")
WAY = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\w+)")
LOADED = re.compile(r"Loaded (net|coll)(?:net)? plugin")
SYSTEM = "see that NCCL_COLLNET_ENABLE is 1, that the reducers run, and their log"
CHECK = "see python -m trainer.nccl in the image"
# What NCCL says -> what it means, and what cures it; the first that it says counts.
CAUSES = {
    r"(?:No plugin found|Could not find:) \(?libnccl-net": (
        "NCCL finds no plug-in",
        "install google-reduction-server in the image",
    ),
    r"CollNet currently only supports up to 8 GPUs": (
        "NCCL uses reducers on machines with at most 8 GPUs",
        "take such machines, or remove pool 2",
    ),
    r"less than CollNet node threshold": ("reducers serve two or more machines", "add workers, or remove pool 2"),
    # Its own two it cannot always start, either: that is no fault.
    r"FastSocket disabled|Failed to initialize NET plugin (?!IB|Socket)": (
        "the plug-in does not start",
        "leave NCCL_COLLNET_ENABLE at 1, and Fast Socket out of the image",
    ),
    r"Failed to find ncclCollNetPlugin_v\d+ symbol": (
        "the plug-in has no half for the reducers that this NCCL takes",
        CHECK,
    ),
    r"Cannot initialize CollNet": ("NCCL cannot set up the reducers", SYSTEM),
}


@dataclass(frozen=True)
class Seen:
    """What the log of one process, or of several, tells of the reducers."""

    logged: bool  # there is a log
    connected: int = 0  # ranks of NCCL that are connected to them
    way: str = ""  # of the largest all-reduce, such as RING; "" from an NCCL before 2.24, and of all but rank 0
    cause: tuple[str, str] = ("", "")  # why not, and what cures it


@dataclass(frozen=True)
class Use:
    """Whether reducers are used, as one sentence."""

    used: bool
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def watch(environ: MutableMapping[str, str], require: bool = False) -> None:
    """Have NCCL try reducers, and write a log that `seen` reads; what the user has set stays.

    Args:
        require: an all-reduce that does not pass through them fails.
    """
    environ.setdefault("NCCL_COLLNET_ENABLE", "1")
    if not LOGS.keys() & environ.keys():  # whoever has set one wants to read the log himself
        environ.update(LOGS)
    if require:
        environ.setdefault("NCCL_ALGO", GUARD)


def seen(environ: Mapping[str, str]) -> Seen:
    """What NCCL has written in this process since `watch`."""
    host = socket.gethostname().partition(".")[0]  # of a name with dots NCCL takes the first part
    name = environ.get("NCCL_DEBUG_FILE", "").replace("%h", host).replace("%p", str(os.getpid()))
    with contextlib.suppress(OSError):
        return read(Path(name).read_text(encoding="utf-8", errors="replace"))
    return Seen(logged=False)


def read(log: str) -> Seen:
    """What a log of NCCL tells."""
    ways = {int(size): way for size, way in WAY.findall(log)}
    connected = {*CONNECTED.findall(log)}
    return Seen(bool(log), len(connected), ways[max(ways)] if ways else "", ("", "") if connected else _cause(log))


def _cause(log: str) -> tuple[str, str]:
    """Why nothing is connected, and what cures it."""
    halves = {*LOADED.findall(log)}
    found = [cause for line, cause in CAUSES.items() if re.search(line, log)]
    if halves == {"net"}:  # from NCCL 2.28 on that is all it says
        found.append(("NCCL has loaded one half of the plug-in, and not that of the reducers", CHECK))
    elif halves:
        found.append(("NCCL has loaded the plug-in and not connected to them", SYSTEM))
    return (*found, ("NCCL's log does not mention them", CHECK))[0]


def use(chief: Seen, reducers: int, ranks: int = 0, connected: int = 0) -> Use:
    """What became of the reducers.

    Args:
        chief: what the log of rank 0 tells.
        ranks: of all processes; 0 if the chief's alone are known.
        connected: the ranks of all processes that are connected.
    """
    connected = connected or chief.connected
    of = f"{connected} of {ranks} ranks" if ranks else f"{connected} ranks"
    idle = f"{reducers} reducers are paid for and not used"
    if connected and chief.way.startswith("COLLNET"):
        return Use(True, f"{reducers} reducers in use ({chief.way}, connected to {of})")
    if connected and chief.way:
        cure = f"see whether a step gets shorter with NCCL_ALGO={GUARD}, or remove pool 2"
        return Use(False, f"{idle}: they are connected to {of}, but NCCL prefers {chief.way}; {cure}")
    if connected:
        return Use(True, f"{reducers} reducers are connected to {of}; this NCCL does not tell how much it uses them")
    if not chief.logged:
        return Use(False, f"{idle}, as far as can be seen: NCCL has written no log; leave NCCL_DEBUG unset")
    why, cure = chief.cause
    return Use(False, f"{idle}: {why}; {cure}")


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Print what plug-in and library have in common; with --required it is a fault if that is not enough."""
    found = verdict(environ)
    for what, path, versions in (("plug-in", found.plugin, found.exported), ("NCCL", found.library, found.asked)):
        print(f"{what:<8} {path or 'none'}: {versions}")
    print(f"{'common':<8} {found.exported & found.asked}")
    print(found)
    return 0 if found.loads or "--required" not in argv else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
