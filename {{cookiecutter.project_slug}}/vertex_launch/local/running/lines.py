"""What a replica prints: the whole lines of its streams, what Cloud Logging makes of each, and the last of them."""

import math
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from vertex_launch import jsons

LAST_LINES = 20
LONGEST_LINE = 2**22  # bytes; a longer one is cut in pieces, or it would fill the memory
ERROR_CHARACTERS = 2**14  # that are kept of errors: a traceback is longer than the last lines

# Source: Cloud Logging API v2, LogSeverity.
ERRORS = ("ERROR", "CRITICAL", "ALERT", "EMERGENCY")


class Splitter:
    """Bytes of one stream in, whole lines out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` ends; with no data, which is the stream's end, what is left."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= LONGEST_LINE or (self._rest and not data):
            whole.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")


class Tail:
    """The last lines of a replica, and the last of its errors as people read them; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._errors: deque[str] = deque()
        self._characters = 0

    def add(self, line: str, severity: str) -> None:
        """A line; `severity` is what a plain one of its stream has."""
        with self._lock:
            self._lines.append(line)
            if str(payload(line).get("severity", severity)).upper() in ERRORS:
                # Of a progress bar, which draws over itself, only the last state.
                error = message(line).rpartition("\r")[2][:ERROR_CHARACTERS]
                self._errors.append(error)
                self._characters += len(error) + 1
                while self._characters > ERROR_CHARACTERS + 1:
                    self._characters -= len(self._errors.popleft()) + 1

    @property
    def lines(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._lines)

    @property
    def errors(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._errors)


def payload(line: str) -> dict[str, Any]:
    """What Cloud Logging makes of a printed line: a JSON object's own fields, else the line as message."""
    try:
        # JSON has no NaN, and an answer could not repeat 1e999.
        parsed = jsons.loads(line, parse_constant=str, parse_float=_finite) if line.startswith("{") else None
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"message": line}


def message(line: str) -> str:
    """What people see of a printed line: of a JSON object its message."""
    text = payload(line).get("message")
    return text if isinstance(text, str) else line


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text
