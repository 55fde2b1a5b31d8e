"""One replica: runs a command and does not outlive the launcher.

    python replica.py COMMAND [ARGUMENT ...]

Standard input is the lifeline: it ends when the launcher does, however that happens, and then the whole
process group is killed. Inside a PID namespace this program is process 1, as in a container.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """The command's exit code; a signal's number plus 128 if one ended it, as containers report it."""
    # A handler, not SIG_IGN: the command must not inherit it. The command gets the signal itself.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", flush=True)
        return 127
    threading.Thread(target=_die_with_the_launcher, daemon=True).start()
    code = process.wait()
    return 128 - code if code < 0 else code


def _die_with_the_launcher() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # process 1 of a namespace is spared by its own signals


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
