"""Sets TensorFlow's environment variables, and ensures that a program exits without waiting for its peers."""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from trainer.cluster import spec
from trainer.cluster.heartbeat import Heartbeat
from trainer.vertex.errors import EndedEarlyError, LostPeerError, PeerError
from trainer.vertex.log import say_last, say_lines

FINISHED = 99  # exit code of a child that finished its work, because any library could exit with 0
PR_SET_PDEATHSIG = 1  # for prctl(2) on Linux
EVENTS = (signal.SIGCHLD, signal.SIGTERM)
LATE = ("keras.visualization", "keras.src.visualization", "keras.wrappers")


def prepare(environ: MutableMapping[str, str], argv: Sequence[str]) -> None:
    """Set defaults for environment variables that TensorFlow reads when it is imported, and then import Keras."""
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # report a lost peer immediately, without retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU, always sum in the same order
    # TensorFlow logs dozens of lines for a lost worker, but the chief of parameter servers logs only one line.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if "parameter_server" in " ".join(argv) else "2")
    import_keras()


def import_keras() -> None:
    """Import Keras, except for its plots and wrappers, whose libraries take more than a second to import.

    The plots and wrappers are imported when their first attribute is used. Only TensorFlow's own old version of Keras,
    which the trainer doesn't use, imports SciPy. Keras and TensorFlow consist of 3,000 modules, so the garbage
    collector would take a quarter of the import's time.
    """
    sys.modules.update({name: late(name) for name in LATE if name not in sys.modules})
    hidden = {"scipy": None} if "scipy" not in sys.modules else {}  # None lets an import fail
    sys.modules.update(hidden)  # type: ignore[arg-type]
    gc.disable()
    try:
        importlib.import_module("keras")
    finally:
        gc.enable()
        for name in hidden:
            del sys.modules[name]
    gc.freeze()  # later collections don't visit the modules' objects


def late(name: str) -> ModuleType:
    """Return a module that is replaced by the module with this name when its first attribute is used."""
    stand_in = ModuleType(name)

    def of_module(attribute: str) -> Any:
        if sys.modules[name] is stand_in:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    vars(stand_in)["__getattr__"] = of_module
    return stand_in


def run_to_end(main: Callable[[Sequence[str], MutableMapping[str, str]], int], success: int = FINISHED) -> NoReturn:
    """Call `main` in a child process with this program's arguments and environment. Exit with the child's code.

    If the chief exits with code 0, the job succeeds. User code might exit early with code 0, so a parent process checks
    the exit code.

    Args:
        success: the exit code of a child that succeeded. `success` is 0 if the child may exit at any time.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, EVENTS)  # `sigwait` returns them instead
    signal.signal(signal.SIGCHLD, lambda *_: None)  # macOS discards a signal that is ignored by default
    if child := os.fork():  # no thread has started yet
        os._exit(attend(child, success))
    with contextlib.suppress(AttributeError):  # only Linux can stop a child when its parent exits
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EVENTS)
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
    """Wait until the child exits. Returns the exit code for this program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also sends SIGINT to the child
    cluster = spec.Cluster()
    with contextlib.suppress(spec.ClusterError):  # the child reports this error
        cluster = spec.from_env(os.environ)
    heartbeat = Heartbeat(cluster)
    code = exit_code(child)
    if code == success:
        return 0
    if not code:
        say_lines(str(EndedEarlyError(cluster.name)), "ERROR")
        return EndedEarlyError.exit_code
    if code == LostPeerError.exit_code:
        loss = heartbeat.loss()
        said = str(loss) or f"{cluster.name} lost a peer, which has exited, is stuck, or is slow"
        say_lines(said, "ERROR", **loss.event or {"lost_peer": ""})
        return PeerError.exit_code
    return 128 - code if code < 0 else code


def exit_code(child: int) -> int:
    """Forward SIGTERM to the child until it exits, and return its exit code.

    A SIGTERM that arrives just before a blocking os.waitpid would be handled only after the child's exit.
    """
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if signal.sigwait(EVENTS) == signal.SIGTERM:
            os.kill(child, signal.SIGTERM)


def stop(*_: object) -> None:
    """Exit immediately, because a machine that is being preempted has little time left."""
    say_last("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)
