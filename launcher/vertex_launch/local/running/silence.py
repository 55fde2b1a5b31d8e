"""Describes whether replicas that haven't printed a line for a long time are computing or waiting."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from vertex_launch.errors import listed
from vertex_launch.local.running.connections import Member, connections, links, processes, visible

SILENT_SECONDS = 60.0  # from the last line of any replica to the description
SAMPLE_SECONDS = 10.0  # how long CPU use is measured
IDLE = 0.05  # the fraction of a core below which a process is idle; polling a peer uses less


@dataclass(frozen=True)
class Activity:
    """The CPU time, state, and connections of one replica at one moment."""

    seconds: float = 0  # the CPU time of all its processes
    stopped: bool = False
    peers: frozenset[str] = frozenset()  # the replicas to which this replica is connected


@dataclass
class Silence:
    """A period during which no replica prints a line."""

    sample: Mapping[str, Activity] | None = None  # the activities at the start of the measurement
    told: bool = False

    def look(self, silent: float, processes: Mapping[str, int]) -> str:
        """If no replica has printed a line for a long time, return a sentence about all replicas.

        Otherwise, return "". Return a sentence at most once in each period without output.

        Args:
            silent: the number of seconds since the last line of any replica.
            processes: the ID of each running replica's first process. The mapping is empty if no process is visible.
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
    """Return a sentence about each replica's activity, based on connections and on CPU use during SAMPLE_SECONDS."""
    sentence = f"no replica has printed a line for {SILENT_SECONDS:g} s"
    if not now:
        return sentence
    busy = [name for name, one in now.items() if one.seconds - before.get(name, one).seconds >= IDLE * SAMPLE_SECONDS]
    waiting = [name for name in now if name not in busy]
    states = ", ".join(f"{name} {_state(name, name in busy, now)}" for name in now)
    verdict = f". {listed(waiting, 'and')} might be waiting for {listed(busy, 'and')}" if busy and waiting else ""
    return f"{sentence}: {states}{verdict}"


def _state(name: str, busy: bool, now: Mapping[str, Activity]) -> str:
    if now[name].stopped:
        return "is stopped"
    if busy:
        return "is computing"
    peers = sorted(now[name].peers) or ["no other replica"]
    return f"is sleeping (connected to {listed(peers, 'and')})" if visible() else "is sleeping"


def activities(numbers: Mapping[str, int]) -> dict[str, Activity]:
    """Return the current activity of each replica."""
    members = processes(numbers)
    pairs = links(connections(members)).values() if visible() else ()
    return {
        name: _activity(name, members, {peer for (one, _), (peer, _) in pairs if one == name != peer})
        for name in numbers
    }


def _activity(name: str, members: Mapping[Member, psutil.Process], peers: Iterable[str]) -> Activity:
    """Return the activity of a replica's processes. Skip processes that have just exited."""
    seconds, stopped = 0.0, False
    for process in (process for (owner, _), process in members.items() if owner == name):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            stopped |= process.status() == psutil.STATUS_STOPPED
    return Activity(seconds, stopped, frozenset(peers))
