"""Cures for mistakes that a replica's last words give away."""

import re
from collections.abc import Sequence

# The words of TensorFlow's own file system, which knows no endpoint but www.googleapis.com.
# Source: github.com/tensorflow/tensorflow, third_party/xla/xla/tsl/platform/cloud/gcs_file_system.cc, release 2.21.
GS_OF_TENSORFLOW = re.compile(
    r"Error executing an HTTP request:.*?\swhen [a-z ]+ gs://(?P<object>[^\s'\"\]]+)", re.DOTALL
)
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
OF_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")


def hint(words: Sequence[str]) -> str:
    """Return the cure that the last words of a replica, a traceback included, ask for; "" where they ask for none."""
    if not (match := GS_OF_TENSORFLOW.search("\n".join(words))):
        return ""
    gcs = "/gcs/" + match["object"].removesuffix("/")
    return (
        f"{_last_own_line(words)}TensorFlow's gs:// leads to Google Cloud itself, not to the buckets here;"
        f" write to {gcs}, which is the same object here and on Vertex AI"
    )


def _last_own_line(words: Sequence[str]) -> str:
    """Return the place of the last line of code that is no library's, `task.py:13: `; "" without one."""
    frames = [match for word in words if (match := FRAME.search(word))]
    own = [frame for frame in frames if not OF_LIBRARIES.search(frame["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}: " if own else ""
