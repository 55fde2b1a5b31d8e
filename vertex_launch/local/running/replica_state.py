"""The state of one replica through all its starts."""

import math
import time
from dataclasses import dataclass, field
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Literal

from vertex_launch.contract import Replica
from vertex_launch.local.running.process import Process

Action = Literal["preempt", "kill", "freeze", "delay"]


@dataclass(frozen=True)
class Status:
    """A replica's state, as others see it."""

    name: str
    state: str  # waiting, running, frozen or ended
    restarts: int
    code: int | None = None  # of its last exit


@dataclass(eq=False)
class ReplicaState:
    """A replica's state, for the thread that runs the job alone; times are time.monotonic's."""

    replica: Replica
    due: float = 0  # when to start; infinity is never
    postponed: float = 0  # seconds by which its next start is delayed
    process: Process | None = None
    restarts: int = 0  # in this attempt of the job
    total_restarts: int = 0
    code: int | None = None
    preempted: bool = False
    planned: dict[Signals, float] = field(default_factory=dict)  # when its process gets which signal

    @property
    def start_at(self) -> float:
        return self.due + self.postponed

    @property
    def ended(self) -> bool:
        return not self.process and self.due == math.inf

    @property
    def next_time(self) -> float:
        """The time of the next act."""
        return min((self.start_at, *self.planned.values()))

    @property
    def status(self) -> Status:
        state = "frozen" if SIGCONT in self.planned else "running"
        if not self.process:
            state = "ended" if self.ended else "waiting"
        return Status(self.replica.name, state, self.total_restarts, self.code)

    def start_again(self) -> None:
        self.due = time.monotonic()
        self.total_restarts += 1

    def vacate(self) -> None:
        """Forget the process that ran here, and all that was planned for it."""
        self.process, self.due, self.preempted = None, math.inf, False
        self.planned.clear()

    def act(self, now: float) -> None:
        """Send the process what is due."""
        for number in [number for number, at in self.planned.items() if at <= now]:
            del self.planned[number]
            self.send_signal(number)

    def send_signal(self, number: Signals) -> None:
        if self.process:
            self.process.send_signal(number)

    def disturb(self, action: Action, seconds: float) -> None:
        """Do what happens to machines; `seconds` are a grace time, or for how long."""
        match action:
            case "delay":  # the next start
                self.postponed += seconds
            case "kill":
                self.send_signal(SIGKILL)
            case "freeze" if self.process:  # with all that it started
                self.planned[SIGCONT] = time.monotonic() + seconds
                self.send_signal(SIGSTOP)
            case "preempt" if self.process and not self.preempted:
                self.preempted, self.planned[SIGKILL] = True, time.monotonic() + seconds
                self.send_signal(SIGTERM)
