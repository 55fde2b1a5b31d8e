"""python -m trainer.task: environment and flags in, a trained and exported model out."""

import os
import signal
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from trainer.errors import TrainerError
from trainer.telemetry import say_last, say_lines


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """One replica's run, or what it would need; returns its exit code."""
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a lost peer is an error at once, not after retries
    environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # on a CPU: the same sums in the same order
    # Of a lost worker it would tell in dozens of lines, and the chief of parameter servers does in one.
    serves = any("parameter_server" in word for word in argv)
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if serves else "2")
    from trainer import replica  # not before: TensorFlow reads these when it is imported

    try:
        replica.run(argv, environ)
    except TrainerError as error:
        say_lines(str(error), "ERROR")
        return error.exit_code
    return 0


def stop(*_: object) -> None:
    """End at once: a machine that is taken away has no time, and TensorFlow would wait for its peers."""
    say_last("stopped by SIGTERM", "ERROR")
    os._exit(128 + signal.SIGTERM)


def end(code: int) -> NoReturn:
    """End without a farewell: TensorFlow would wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)  # process 1 of a container ignores what it does not handle
    try:
        code = main(sys.argv[1:], os.environ)
    except Exception:
        traceback.print_exc()
        code = 1
    end(code)
