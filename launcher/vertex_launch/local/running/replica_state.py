"""Keeps the state of one replica across its restarts."""

import math
import time
from dataclasses import dataclass, field
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals

from vertex_launch.job.contract import Replica
from vertex_launch.local.running import connections, faults
from vertex_launch.local.running.faults import Action, Fault
from vertex_launch.local.running.process import Process

SLICE = 0.1  # how many seconds a slow replica runs at a time


@dataclass(frozen=True)
class Status:
    """The public state of a replica."""

    name: str
    state: str  # waiting, running, frozen or ended
    restarts: int
    code: int | None = None  # the last exit code


@dataclass(eq=False)
class ReplicaState:
    """The internal state of a replica, used by the thread that runs the job.

    All times are from time.monotonic.
    """

    replica: Replica
    due: float = 0  # when to start the replica; infinity means never
    postponed: float = 0  # the delay of the next start in seconds
    process: Process | None = None
    restarts: int = 0  # restarts in this attempt of the job
    total_restarts: int = 0
    code: int | None = None
    began: float = math.inf  # when the replica first started
    preempted: bool = False
    slow: float = 1  # the factor by which the replica is slower
    planned: dict[Signals, float] = field(default_factory=dict)  # signal -> when the process gets this signal

    @property
    def start_at(self) -> float:
        return self.due + self.postponed

    @property
    def ended(self) -> bool:
        return not self.process and self.due == math.inf

    @property
    def next_time(self) -> float:
        """The time of the next planned action for this replica."""
        return min((self.start_at, *self.planned.values()))

    @property
    def status(self) -> Status:
        state = "frozen" if SIGCONT in self.planned and self.slow == 1 else "running"
        if not self.process:
            state = "ended" if self.ended else "waiting"
        return Status(self.replica.name, state, self.total_restarts, self.code)

    def start_again(self) -> None:
        self.due = time.monotonic()
        self.total_restarts += 1

    def vacate(self) -> None:
        """Remove the replica's process and planned signals from this state."""
        self.process, self.due, self.preempted, self.slow = None, math.inf, False, 1
        self.planned.clear()

    def act(self, now: float) -> None:
        """Send the replica's process all planned signals that are due."""
        for number in [number for number, at in self.planned.items() if at <= now]:
            del self.planned[number]
            self.send_signal(number)
            if self.slow > 1:
                runs = number == SIGCONT
                self.planned[SIGSTOP if runs else SIGCONT] = now + (SLICE if runs else SLICE * (self.slow - 1))

    def send_signal(self, number: Signals) -> None:
        if self.process:
            self.process.send_signal(number)

    def is_due(self, fault: Fault, step: int, now: float) -> bool:
        """Return whether a simulated fault is due.

        `step` is the latest step that the job has reached.
        """
        if step < fault.step or (fault.after and now < self.began + fault.after):
            return False
        if not self.process and fault.action != "late":
            return False
        # This comes last because it reads folders.
        return fault.action not in faults.DAMAGES or bool(faults.newest_checkpoint(self.replica))

    def disturb(self, action: Action, number: float) -> None:
        """Simulate a machine fault or a program fault.

        For `slow`, `number` is the factor by which the replica is slowed down. For other actions, `number` is a time in
        seconds.
        """
        now = time.monotonic()
        match action:
            case "late":  # delays the next start
                self.postponed += number
            case "flip" | "truncate" if file := faults.newest_checkpoint(self.replica):
                faults.damage(file, action)
            case _ if not self.process:
                pass
            case "kill":
                self.send_signal(SIGKILL)
            case "term":
                self.send_signal(SIGTERM)
            case "freeze":  # freezes all processes that the replica has started
                self.planned[SIGCONT] = now + number
                self.send_signal(SIGSTOP)
            case "slow":
                self.slow, self.planned[SIGSTOP] = number, now
            case "exit0" | "raise":
                connections.signal_training_process(self.process.number, faults.IN_PYTHON[action])
            case "preempt" if not self.preempted:
                self.preempted, self.planned[SIGKILL] = True, now + number
                self.send_signal(SIGTERM)
