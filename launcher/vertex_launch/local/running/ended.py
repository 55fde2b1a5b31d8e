"""Ends of replicas: their codes and last words, and which of several is the cause of the others."""

import re
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from vertex_launch.job.contract import Replica
from vertex_launch.local.running import events
from vertex_launch.local.running.lines import ERROR_CHARACTERS, LAST_LINES, TRACEBACK, message

# Exit code of a trainer that lost a peer: "try again later". Source: sysexits.h, EX_TEMPFAIL.
PEER_LOST = 75

# Signals that the loss of a peer never causes. SIGABRT is not among them: NCCL's watchdog ends with it.
HARD_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")

# How gloo, NCCL, gRPC and sockets say that a peer is gone.
LOST = re.compile(
    r"connection (was )?(likely )?(aborted|closed|refused|reset)|socket closed|broken pipe"
    r"|remote process|tim(ed|ing) out|unavailable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ended:
    """The end of one replica, by itself; a code above 128 is a signal's number plus 128."""

    replica: Replica
    code: int
    last_lines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()  # the last lines of severity ERROR or above, stderr included
    time: float = 0  # time.monotonic's
    instead: str = ""  # what it does at the end of the job instead of ending
    raised: str = ""  # the exception of the last traceback that it has printed
    event: events.Fields = field(default_factory=dict)  # the last that says why it ends

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended it, "" for another code, such as 255."""
        return signal.Signals(self.code - 128).name if self.code - 128 in set(signal.Signals) else ""

    @property
    def hard(self) -> bool:
        """Whether it ended by a signal that the loss of a peer never causes."""
        return self.signal_name in HARD_SIGNALS

    @property
    def traceback(self) -> tuple[str, ...]:
        """Last traceback and all errors after it; often longer than the last lines."""
        starts = [number for number, line in enumerate(self.errors) if TRACEBACK in line]
        return self.errors[starts[-1] :] if starts else ()

    @property
    def _last_words(self) -> tuple[str, ...]:
        return self.traceback or self.errors[-LAST_LINES:]

    @property
    def lost_a_peer(self) -> bool:
        """Whether its code or its event blames a peer; or its last words: a guess, good enough to sort causes by."""
        words = [line for line in self._last_words if not line[:1].isspace()]
        blames = self.code == PEER_LOST or events.BLAMES & self.event.keys()
        return bool(blames or LOST.search("\n".join(words)))

    @property
    def accused(self) -> tuple[str, ...]:
        """Names of the replicas that its last event blames."""
        return tuple(events.accused(self.event))

    @property
    def loss(self) -> str:
        """Its fate when a peer was lost, by its last event."""
        return next((fate for key, fate in events.FATES.items() if key in self.event), "connection lost")

    @property
    def verdict(self) -> str:
        """Service's sentence on the end, with the replica's last words.

        Source: Vertex AI, "Understand the custom training service", mid 2026; the traceback behind it as in
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
            return f"{self.replica.name} was ended by {self.signal_name} (exit code {self.code})"
        if not self.code:
            return f"{self.replica.name} exited with 0 while others went on"
        return f"{self.replica.name} exited with code {self.code}"


def likely_cause_first(ends: Iterable[Ended]) -> tuple[Ended, ...]:
    """Sort ends: killed, failed by itself, left the others with 0, lost a peer; each group by time.

    Of those that lost a peer, the one that most others name comes first.
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
