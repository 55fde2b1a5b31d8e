"""Runs the client that runs a container, passes orders on to it, and removes the container at its end.

    python container_shim.py CLIENT NAME COMMAND [ARGUMENT ...]

A client that is killed leaves its container behind, so that of this name is removed whatever has become of the client.
"""

import runpy
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    client, name, *command = sys.argv[1:]
    shim = runpy.run_path(str(Path(__file__).with_name("init_shim.py")))  # `python -I` does not find it by its name
    code = shim["main"]("none", "-", command)
    removal, quiet = (client, "rm", "--force", name), subprocess.DEVNULL
    for _ in range(2):  # a client that is killed while it starts a container may leave one a moment later
        # In a session of its own: it goes on where this process is killed.
        subprocess.Popen(removal, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True).wait()
    sys.exit(code)
