"""Starts a replica's processes, waits for them, and reports which one failed. This process doesn't import PyTorch.

The supervisor forks the replica's first process before it starts a thread. The first process imports PyTorch, parses
the flags, and takes part in the roll call. It then calls `begin` and trains as the process with local rank 0. For all
other GPUs, the supervisor forks further processes. It then exchanges heartbeats with the other replicas.

Ranks are static and follow the order of the replicas in the cluster. The supervisor never restarts a process. Instead,
Vertex AI restarts the replica, and the run resumes from the latest complete checkpoint.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NoReturn

from trainer.cluster import spec
from trainer.cluster.heartbeat import Heartbeat
from trainer.cluster.spec import Cluster
from trainer.vertex import storage
from trainer.vertex.errors import EndedEarlyError, LostPeerError, PeerError, TrainerError
from trainer.vertex.lease import Lease
from trainer.vertex.log import say_lines

FINISHED = 99  # exit code of a process that finished its work, because any library could exit with 0
GRACE_SECONDS = 30  # the time in which the user's own program must exit after SIGTERM
PR_SET_PDEATHSIG = 1  # for prctl(2) on Linux
BEGIN = signal.SIGUSR1  # sent by the first process before it writes to the pipe
EVENTS = (BEGIN, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


@dataclass(frozen=True)
class Work:
    """The work of a replica's processes, as the first process describes it after the roll call.

    Attributes:
        size: the number of processes on all replicas.
        gpus: whether the processes use GPUs.
        environ: the variables of each process, except for its ranks.
        pickled: the function that each process calls, except for the first process.
    """

    cluster: Cluster
    size: int
    gpus: bool
    environ: Mapping[str, str]
    pickled: bytes

    @property
    def count(self) -> int:
        """The number of processes in this replica."""
        return self.size // len(self.cluster.nodes)

    def rank(self, local: int) -> int:
        return self.cluster.rank * self.count + local

    def ranks(self, local: int) -> dict[str, str]:
        """Return the variables that torchrun would set in the process with this local rank."""
        rank, size, replicas = str(self.rank(local)), str(self.size), str(len(self.cluster.nodes))
        return {
            **{"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(self.count)},
            **{"GROUP_RANK": str(self.cluster.rank), "GROUP_WORLD_SIZE": replicas},
            **{"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size},
            **{"TORCHELASTIC_RUN_ID": "training", "TORCHELASTIC_USE_AGENT_STORE": "False"},
            **{"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"},
        }

    def run(self, local: int) -> int:
        """Do the work in the process with this local rank."""
        os.environ.update({**self.environ, **self.ranks(local)})
        pickle.loads(self.pickled)()
        return 0


class ProcessError(TrainerError):
    """The error that is reported if a process of this replica fails or if the replica is stopped.

    The failed process itself prints the reason for the failure.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        # Python reports signal N as -N, and containers report it as 128 + N.
        self.exit_code = 128 - exit_code if exit_code < 0 else exit_code or 1
        super().__init__(f"{text} (exit code {self.exit_code})")


class Supervisor:
    """The running processes of this replica.

    Args:
        success: the exit code of a process that succeeded. `success` is 0 for the user's own program, which is stopped
            as torchrun would stop it. After SIGTERM, a process with the trainer's code saves a checkpoint instead.
    """

    pipe: BinaryIO | None = None  # in the first process, leads to the supervisor

    def __init__(self, success: int) -> None:
        self._success, self._running = success, dict[int, int]()  # process ID -> local rank
        self._work: Work | None = None
        self._failed: tuple[int, int] | None = None  # local rank and exit code of the process that failed first
        self._stopped = False

    def run(self, main: Callable[[], int]) -> int:
        """Call `main` in the first process. Returns the exit code for this program."""
        signal.pthread_sigmask(signal.SIG_BLOCK, EVENTS)  # `sigwait` returns them instead
        signal.signal(signal.SIGCHLD, lambda *_: None)  # macOS discards a signal that is ignored by default
        receiver, sender = os.pipe()
        Supervisor.pipe = os.fdopen(sender, "wb")
        self._fork(0, main)
        Supervisor.pipe.close()
        while self._running:
            event = signal.sigwait(EVENTS)
            if event == BEGIN and not self._work:
                self._begin(receiver)
            elif event == signal.SIGTERM:
                self._stopped = True
                self._end_processes(signal.SIGTERM)
            elif event == signal.SIGALRM:
                self._end_processes(signal.SIGKILL)
            elif event == signal.SIGCHLD:  # SIGINT is ignored, because a terminal also sends it to the processes
                self._reap()
        return self._exit_code()

    def _fork(self, local: int, main: Callable[[], int]) -> None:
        if child := os.fork():
            self._running[child] = local
        else:
            begin_process()
            end_process(main, self._success)

    def _begin(self, receiver: int) -> None:
        """Start the replica's other processes and, when no more process is forked, the threads for heartbeats."""
        with contextlib.suppress(EOFError, pickle.UnpicklingError), os.fdopen(receiver, "rb") as pipe:
            self._work = pickle.load(pipe)  # fails if the first process has just been killed
            for local in range(1, self._work.count):
                self._fork(local, partial(self._work.run, local))
            self._heartbeat = Heartbeat(self._work.cluster)

    def _end_processes(self, number: signal.Signals) -> None:
        for process in self._running:
            os.kill(process, number)
        if not self._success and number == signal.SIGTERM:
            signal.alarm(GRACE_SECONDS)

    def _reap(self) -> None:
        """Record which processes have exited. After a failure, end the other ones."""
        while self._running and any(ended := os.waitpid(-1, os.WNOHANG)):
            process, code = ended[0], os.waitstatus_to_exitcode(ended[1])
            local = self._running.pop(process, None)  # as process 1, also receives processes that lost their parent
            if local is None or code == self._success:
                continue
            if local == 0 and code < 0 and self._work and self._work.cluster.is_chief:
                Lease(storage.from_env(os.environ), process).close()  # the process was killed before it could do so
            if not self._failed:
                self._failed = local, code
                self._end_processes(signal.SIGKILL if self._success else signal.SIGTERM)

    def _exit_code(self) -> int:
        """Report the error of this replica. Return 0 if there is no error."""
        local, code = self._failed or (0, self._success)
        if self._work and self._stopped and (self._failed or not self._success):
            error: TrainerError = ProcessError(f"{self._work.cluster.name} was stopped by SIGTERM", -signal.SIGTERM)
        elif code == self._success:
            return self._finish()
        elif not code:
            error = EndedEarlyError((self._work.cluster if self._work else spec.from_env(os.environ)).name)
        elif not self._work:
            return 128 - code if code < 0 else code  # the process has printed the reason
        else:
            error = cause(self._work, local, code, self._heartbeat)
        say_lines(str(error), "ERROR", **error.event)
        return error.exit_code

    def _finish(self) -> int:
        if self._work:
            self._heartbeat.finish()
        return 0


def cause(work: Work, local: int, code: int, heartbeat: Heartbeat) -> TrainerError:
    """Return the error that a replica reports after the process with this local rank fails."""
    name = work.cluster.process(work.rank(local), work.size)
    if code == -signal.SIGABRT and work.gpus and work.size > 1:
        loss = heartbeat.loss()
        said = (
            f"{name} was aborted by SIGABRT, because a peer was lost or because of an error in the lines above\n{loss}"
        )
        return PeerError(said, **loss.event)
    if code == LostPeerError.exit_code:
        return heartbeat.loss()
    if code == PeerError.exit_code:
        return PeerError()  # the process has printed the reason
    if code == 128 + signal.SIGINT:
        return ProcessError(f"{work.cluster.name} was stopped by SIGINT", code)
    return ProcessError(f"{name} failed", code)


def run_to_end(main: Callable[[Sequence[str], MutableMapping[str, str]], int], success: int = FINISHED) -> NoReturn:
    """Call `main` with this program's arguments and environment in the first process, and exit with its code.

    Args:
        success: the exit code of a process that succeeded. `success` is 0 for the user's own program.
    """
    code = Supervisor(success).run(partial(main, sys.argv[1:], os.environ))
    sys.stdout.flush()
    os._exit(code)


def begin(work: Work) -> None:
    """Let the supervisor start the replica's other processes and its heartbeats. Call this in the first process.

    Without a supervisor, as in a notebook, the calling process is the replica's only one.
    """
    if Supervisor.pipe:
        with Supervisor.pipe as pipe:
            os.kill(os.getppid(), BEGIN)
            pickle.dump(work, pipe)
    elif work.count > 1:
        raise TrainerError(f"this replica needs {work.count} processes; run python -m trainer.task")
    os.environ.update(work.ranks(0))


def begin_process() -> None:
    """Handle signals as usual, and exit when the supervisor exits."""
    with contextlib.suppress(AttributeError):  # only Linux can stop a child when its parent exits
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EVENTS)


def end_process(main: Callable[[], int], success: int) -> NoReturn:
    """Call `main` and exit immediately, because Python's own exit can wait for peers that are lost.

    The user's own program exits as usual if it succeeds.
    """
    try:
        code = main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception:
        traceback.print_exc()
        code = 1
    if not code and not success:
        sys.exit()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or success)
