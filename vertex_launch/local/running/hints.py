"""Cures for mistakes that a replica's last words give away."""

import re
from collections.abc import Sequence

# The words of TensorFlow's own file system, which knows no endpoint but www.googleapis.com.
# Source: github.com/tensorflow/tensorflow, third_party/xla/xla/tsl/platform/cloud/gcs_file_system.cc, release 2.21.
BY_TENSORFLOW = re.compile(r"Error executing an HTTP request:.*?\swhen [a-z ]+ gs://(?P<object>[^\s'\"\]]+)", re.DOTALL)
# Of google-auth, gcsfs, requests and curl.
BY_CLIENTS = re.compile(
    r"DefaultCredentialsError|Anonymous caller does not have storage\."
    r"|host='storage\.googleapis\.com'|resolve [^\n]*storage\.googleapis\.com"
)
NO_LOGIN = (
    "a replica here has no login to Google Cloud; its buckets are at /gcs/BUCKET, and Google's storage clients"
    " find them where `emulate` runs and STORAGE_EMULATOR_HOST is set as it prints"
)
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
OF_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")


def hint(words: Sequence[str]) -> str:
    """Return the cure that the last words of a replica, a traceback included, ask for; "" where they ask for none."""
    text = "\n".join(words)
    if match := BY_TENSORFLOW.search(text):
        gcs = "/gcs/" + match["object"].removesuffix("/")
        fault = "TensorFlow's gs:// leads to Google Cloud itself, not to the buckets here"
        return f"{_last_own_line(words)}{fault}; write to {gcs}, which is the same object here and on Vertex AI"
    return f"{_last_own_line(words)}{NO_LOGIN}" if BY_CLIENTS.search(text) else ""


def _last_own_line(words: Sequence[str]) -> str:
    """Return the place of the last line of code that is no library's, `task.py:13: `; "" without one."""
    frames = [match for word in words if (match := FRAME.search(word))]
    own = [frame for frame in frames if not OF_LIBRARIES.search(frame["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}: " if own else ""
