"""A program that uses TensorFlow: what it sets before the import, and its end, which waits for no peer."""

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn

from trainer.cluster import spec
from trainer.cluster.heartbeat import Heartbeat
from trainer.vertex.errors import EndedEarlyError, LostPeerError, PeerError
from trainer.vertex.log import say_last, say_lines

FINISHED = 99  # exit code of a child that has done its work; any library can end it with 0
PR_SET_PDEATHSIG = 1  # prctl(2) of Linux


def prepare(environ: MutableMapping[str, str], argv: Sequence[str]) -> None:
    """Set what TensorFlow reads when it is imported, where it is not set."""
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    # TensorFlow logs dozens of lines for a lost worker; the chief of parameter servers says it in one.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if "parameter_server" in " ".join(argv) else "2")


def run_to_end(main: Callable[[Sequence[str], MutableMapping[str, str]], int], success: int = FINISHED) -> NoReturn:
    """Call `main` with this program's arguments and environment in a child, and end with its exit code.

    Code 0 of the chief is the job's success, so a process that may be ended with 0 by its own code needs a parent.

    Args:
        success: code of a child that has succeeded; 0 where the end of a child is its own affair.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until both processes handle it
    if child := os.fork():  # nothing has started a thread yet
        os._exit(attend(child, success))
    with contextlib.suppress(AttributeError):  # Linux alone ends a child with its parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        code = main(sys.argv[1:], os.environ)
    except SystemExit as end:
        if end.code:
            raise
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or success)


def attend(child: int, success: int) -> int:
    """Wait for the end of a child, to which SIGTERM is passed on; returns the exit code of this program."""

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and this program is about to
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
    cluster = spec.Cluster()
    with contextlib.suppress(spec.ClusterError):  # of which the child tells
        cluster = spec.from_env(os.environ)
    heartbeat = Heartbeat(cluster)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == success:
        return 0
    if not code:
        say_lines(str(EndedEarlyError(cluster.name)), "ERROR")
        return EndedEarlyError.exit_code
    if code == LostPeerError.exit_code:
        loss = heartbeat.loss()
        said = str(loss) or f"{cluster.name} lost a peer, which is gone, stuck or slow"
        say_lines(said, "ERROR", **loss.event or {"lost_peer": ""})
        return PeerError.exit_code
    return 128 - code if code < 0 else code


def stop(*_: object) -> None:
    """End at once: a machine that is taken away has no time."""
    say_last("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)
