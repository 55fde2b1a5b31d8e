"""The notice to end: a replica is told by a signal, all replicas agree on one step, and the run ends when it is saved.

Vertex sends SIGTERM about 30 s before it takes a Spot machine away.
Source: Vertex AI documentation, "Use Spot VMs with training", mid 2026.
"""

import signal
import threading

from trainer.cluster.spec import Cluster
from trainer.vertex.errors import PeerError

GRACE_SECONDS = 30  # in which a checkpoint must be saved


class StoppedError(PeerError):
    """End of a run at a step that all replicas have saved, because one was told to end.

    Args:
        told: whether this replica was; its exit code is then that of SIGTERM.
        by: name of a replica that was.
    """

    def __init__(self, cluster: Cluster, step: int, *, told: bool, by: str) -> None:
        self.exit_code = 128 + signal.SIGTERM if told else PeerError.exit_code
        who = "it" if told else by
        super().__init__(f"{cluster.name}: saved step {step}, as {who} was told to end; the next start resumes there")


class Told:
    """Whether a signal has told this process to end. Within the block it only takes note, and does not end at once."""

    def __init__(self, number: signal.Signals) -> None:
        self.told, self._number = False, number

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self._number, self._take_note)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._number, self._before)

    def _take_note(self, *_: object) -> None:
        self.told = True
