"""Describes how replicas exited: exit codes, last output, and the likely causes of a failure."""

import re
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from vertex_launch.job.contract import Replica
from vertex_launch.local.running import events
from vertex_launch.local.running.lines import ERROR_CHARACTERS, LAST_LINES, TRACEBACK, message

# The exit code of a trainer that lost a peer: a temporary failure. Source: sysexits.h, EX_TEMPFAIL.
PEER_LOST = 75

# Signals that a lost peer never causes. SIGABRT isn't in the list because NCCL's watchdog aborts its own process.
HARD_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")

# The errors of gloo, NCCL, gRPC, and sockets after a peer was lost.
LOST = re.compile(
    r"connection (was )?(likely )?(aborted|closed|refused|reset)|socket closed|broken pipe"
    r"|remote process|tim(ed|ing) out|unavailable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ended:
    """The exit of a replica that the launcher didn't stop. An exit code above 128 is 128 plus a signal number."""

    replica: Replica
    code: int
    last_lines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()  # the last lines with severity ERROR or higher, including stderr
    time: float = 0  # from time.monotonic
    instead: str = ""  # the replica's state at the end of the job, if the replica didn't exit
    raised: str = ""  # the exception in the last traceback of the output
    event: events.Fields = field(default_factory=dict)  # the last event that states why the replica exits

    @property
    def signal_name(self) -> str:
        """The name of the signal that killed the replica.

        The name is "" if the exit code, such as 255, doesn't correspond to a signal.
        """
        return signal.Signals(self.code - 128).name if self.code - 128 in set(signal.Signals) else ""

    @property
    def hard(self) -> bool:
        """True if the replica was killed by a signal that a lost peer never causes."""
        return self.signal_name in HARD_SIGNALS

    @property
    def traceback(self) -> tuple[str, ...]:
        """The last traceback in the output and all error lines after it.

        `last_lines` is often too short to contain the entire traceback.
        """
        starts = [number for number, line in enumerate(self.errors) if TRACEBACK in line]
        return self.errors[starts[-1] :] if starts else ()

    @property
    def _last_words(self) -> tuple[str, ...]:
        return self.traceback or self.errors[-LAST_LINES:]

    @property
    def lost_a_peer(self) -> bool:
        """True if the exit code, the last event, or the last output blames another replica.

        A match in the last output is only weak evidence, but it's sufficient for ranking the causes.
        """
        words = [line for line in self._last_words if not line[:1].isspace()]
        blames = self.code == PEER_LOST or events.BLAMES & self.event.keys()
        return bool(blames or LOST.search("\n".join(words)))

    @property
    def accused(self) -> tuple[str, ...]:
        """The names of the replicas that this replica's last event blames."""
        return tuple(events.accused(self.event))

    @property
    def loss(self) -> str:
        """A phrase that describes how this replica reacted to a lost peer, such as `lost a connection`."""
        return next((fate for key, fate in events.FATES.items() if key in self.event), "lost a connection")

    @property
    def verdict(self) -> str:
        """The service's error message about the replica's exit, followed by the replica's last output.

        Source: Vertex AI, "Understand the custom training service", mid-2026. Source for the traceback's position:
        github.com/GoogleCloudPlatform/vertex-ai-samples, issue 1504.
        """
        head, words = f"The replica {self}.", tuple(map(message, self.last_lines))
        if self.code:
            status = f"{self.code}({self.signal_name})" if self.signal_name else self.code
            reason = f"exited with a non-zero status of {status}. Termination reason: Error. "
            head, words = f"The replica {self.replica.name} {reason}", self._last_words or words
        return "\n".join((head, *words))[: len(head) + ERROR_CHARACTERS]

    def __str__(self) -> str:
        if self.instead:
            return f"{self.replica.name} {self.instead}"
        if self.signal_name:
            return f"{self.replica.name} was killed by {self.signal_name} (exit code {self.code})"
        if not self.code:
            return f"{self.replica.name} exited with code 0 while other replicas were still running"
        return f"{self.replica.name} exited with code {self.code}"


def likely_cause_first(ends: Iterable[Ended]) -> tuple[Ended, ...]:
    """Sort replica exits so that the likely cause of a failure comes first.

    The exits are sorted into four groups, in this order: killed by a signal, failed without losing a peer, exited early
    with code 0, and lost a peer. Each group is sorted by exit time. Among the replicas that lost a peer, the one that
    is blamed most often comes first.
    """
    known = tuple(ends)
    votes = Counter(name for ended in known if ended.lost_a_peer for name in ended.accused)

    def order(ended: Ended) -> tuple[int, int, float]:
        return _rank(ended), -votes[ended.replica.name] if ended.lost_a_peer else 0, ended.time

    return tuple(sorted(known, key=order))


def _rank(ended: Ended) -> int:
    if ended.hard:
        return 0
    if ended.lost_a_peer:
        return 3
    return 1 if ended.code else 2
