"""Activity of replicas that have not printed a line for long: who computes, who waits, and for whom."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from vertex_launch.errors import listed
from vertex_launch.local.running.connections import Member, connections, links, processes, visible

SILENT_SECONDS = 60.0  # from the last line of any replica until somebody asks why
SAMPLE_SECONDS = 10.0  # for which the use of the processors is measured
IDLE = 0.05  # of a core; a process that polls a peer uses less


@dataclass(frozen=True)
class Activity:
    """One replica at one moment."""

    seconds: float = 0  # of processor time, of all its processes
    stopped: bool = False
    peers: frozenset[str] = frozenset()  # replicas to which it is connected


@dataclass
class Silence:
    """The time since any replica has printed a line."""

    sample: Mapping[str, Activity] | None = None  # of a silence that may become long
    told: bool = False

    def look(self, silent: float, processes: Mapping[str, int]) -> str:
        """Return a sentence on all replicas, once in each long silence; "" otherwise.

        Args:
            silent: seconds since the last line of any replica.
            processes: name of each running replica -> number of its first process; none where they cannot be seen.
        """
        if silent < SILENT_SECONDS - SAMPLE_SECONDS:
            self.sample, self.told = None, False
        elif self.sample is None:
            self.sample = activities(processes)
        elif silent >= SILENT_SECONDS and not self.told:
            self.told = True
            return describe(self.sample, activities(processes))
        return ""


def describe(before: Mapping[str, Activity], now: Mapping[str, Activity]) -> str:
    """Return a sentence on replicas, by what they did for SAMPLE_SECONDS and by their connections."""
    sentence = f"no replica has printed a line for {SILENT_SECONDS:g} s"
    if not now:
        return sentence
    busy = [name for name, one in now.items() if one.seconds - before.get(name, one).seconds >= IDLE * SAMPLE_SECONDS]
    waiting = [name for name in now if name not in busy]
    states = ", ".join(f"{name} {_state(name, name in busy, now)}" for name in now)
    verdict = f"; {listed(waiting, 'and')} may wait for {listed(busy, 'and')}" if busy and waiting else ""
    return f"{sentence}: {states}{verdict}"


def _state(name: str, busy: bool, now: Mapping[str, Activity]) -> str:
    if now[name].stopped:
        return "is stopped"
    if busy:
        return "computes"
    peers = sorted(now[name].peers) or ["no other replica"]
    return f"sleeps, connected to {listed(peers, 'and')}" if visible() else "sleeps"


def activities(numbers: Mapping[str, int]) -> dict[str, Activity]:
    """Look at all processes of each replica, now."""
    members = processes(numbers)
    pairs = links(connections(members)).values() if visible() else ()
    return {
        name: _activity(name, members, {peer for (one, _), (peer, _) in pairs if one == name != peer})
        for name in numbers
    }


def _activity(name: str, members: Mapping[Member, psutil.Process], peers: Iterable[str]) -> Activity:
    """Look at the processes of a replica; those that have just ended count for nothing."""
    seconds, stopped = 0.0, False
    for process in (process for (owner, _), process in members.items() if owner == name):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            stopped |= process.status() == psutil.STATUS_STOPPED
    return Activity(seconds, stopped, frozenset(peers))
