"""A program that uses TensorFlow: what it sets before the import, and its end, which waits for no peer."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn

from trainer.vertex.log import say_last


def prepare(environ: MutableMapping[str, str], argv: Sequence[str]) -> None:
    """Set what TensorFlow reads when it is imported, where it is not set."""
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    # TensorFlow logs dozens of lines for a lost worker; the chief of parameter servers says it in one.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if "parameter_server" in " ".join(argv) else "2")


def run_to_end(main: Callable[[Sequence[str], MutableMapping[str, str]], int]) -> NoReturn:
    """Call `main` with this program's arguments and environment, and end with its exit code, without a farewell."""
    signal.signal(signal.SIGTERM, stop)  # process 1 of a container ignores what it does not handle
    try:
        code = main(sys.argv[1:], os.environ)
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop(*_: object) -> None:
    """End at once: a machine that is taken away has no time."""
    say_last("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)
