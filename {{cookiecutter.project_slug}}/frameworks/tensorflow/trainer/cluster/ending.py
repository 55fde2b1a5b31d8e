"""The end of a program that uses TensorFlow, which would wait for peers that may be gone."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn

from trainer.vertex.log import say_last


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
