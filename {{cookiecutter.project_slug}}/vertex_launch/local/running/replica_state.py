"""The state of one replica through all its starts."""

import math
from dataclasses import dataclass

from vertex_launch.local.running.process import Process
from vertex_launch.replicas import Replica


@dataclass(frozen=True)
class Status:
    """What others see of a replica's state."""

    name: str
    state: str  # waiting, running, frozen or ended
    restarts: int
    code: int | None = None  # of its last exit


@dataclass(eq=False)
class Slot:
    """A replica's place in the job, for the thread that runs the job alone; times are time.monotonic's."""

    replica: Replica
    due: float = 0  # when to start; infinity is never
    postponed: float = 0  # seconds by which its next start is delayed
    process: Process | None = None
    restarts: int = 0  # in this attempt of the job
    total_restarts: int = 0
    code: int | None = None
    preempted: bool = False
    thaw_at: float = math.inf
    kill_at: float = math.inf

    @property
    def start_at(self) -> float:
        return self.due + self.postponed

    @property
    def waits(self) -> bool:
        return self.due < math.inf

    @property
    def ended(self) -> bool:
        return not (self.process or self.waits)

    @property
    def next_time(self) -> float:
        """When the next act is due."""
        return min(self.start_at, self.thaw_at, self.kill_at)

    @property
    def status(self) -> Status:
        state = "frozen" if self.thaw_at < math.inf else "running"
        if not self.process:
            state = "waiting" if self.waits else "ended"
        return Status(self.replica.name, state, self.total_restarts, self.code)

    def started(self, process: Process) -> None:
        self.process, self.due, self.postponed = process, math.inf, 0

    def vacate(self) -> None:
        """Forget the process that ran here, and all that was planned for it."""
        self.process, self.due, self.preempted, self.thaw_at, self.kill_at = None, math.inf, False, math.inf, math.inf

    def act(self, now: float) -> None:
        """Thaw or kill the process, if that is due."""
        if self.process and self.thaw_at <= now:
            self.thaw_at = math.inf
            self.process.thaw()
        if self.process and self.kill_at <= now:
            self.kill_at = math.inf
            self.process.kill()

    def preempt(self, kill_at: float) -> None:
        if self.process and not self.preempted:
            self.preempted, self.kill_at = True, kill_at
            self.process.terminate()

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def freeze(self, thaw_at: float) -> None:
        if self.process:
            self.thaw_at = thaw_at
            self.process.freeze()

    def delay(self, seconds: float) -> None:
        self.postponed += seconds
