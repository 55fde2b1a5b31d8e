"""Splits a replica's output into lines, parses them as Cloud Logging does, and keeps the last lines."""

import math
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from vertex_launch.local.running import events
from vertex_launch.untrusted import jsons

LAST_LINES = 20
LONGEST_LINE = 2**22  # bytes; a longer line is split so that it doesn't fill the memory
ERROR_CHARACTERS = 2**14  # the number of characters of errors to keep; a traceback is longer than the last lines

TRACEBACK = "Traceback (most recent call last)"
IGNORED = "Exception ignored"  # precedes a destructor's traceback, which many successful programs print at exit
EXCEPTION = re.compile(r"[a-zA-Z_][\w.]*(:|$)")  # the last line of a traceback; the lines before it are indented

# Source: Cloud Logging API v2, LogSeverity.
ERRORS = ("ERROR", "CRITICAL", "ALERT", "EMERGENCY")


class Splitter:
    """A splitter that divides the bytes of one output stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that `data` completes.

        If `data` is empty, the stream has ended, so yield the incomplete last line.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= LONGEST_LINE or (self._rest and not data):
            whole.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")


class Tail:
    """A thread-safe record of a replica's last lines, the messages of its last errors, and its last event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._errors: deque[str] = deque()
        self._characters = 0
        self._before: str | None = None  # the prefix of each line of an unfinished traceback
        self.raised = ""  # the exception in the last traceback
        self.event: events.Fields = {}  # the last event that states why the replica exits

    def add(self, line: str, severity: str) -> None:
        """Add a line. The `severity` argument applies to lines that don't specify their own."""
        with self._lock:
            fields = payload(line)
            text = _text(fields, line)
            self.event = events.last(self.event, fields)
            for part in text.splitlines():
                self._look_for_exception(part)
            self._lines.append(line)
            if str(fields.get("severity", severity)).upper() in ERRORS:
                # A progress bar overwrites itself, so keep only its last state.
                error = text.rpartition("\r")[2][:ERROR_CHARACTERS]
                self._errors.append(error)
                self._characters += len(error) + 1
                while self._characters > ERROR_CHARACTERS + 1:
                    self._characters -= len(self._errors.popleft()) + 1

    def _look_for_exception(self, line: str) -> None:
        before, traceback, _ = line.rpartition("\r")[2].partition(TRACEBACK)
        if traceback:
            self._before = before if not (self._lines and IGNORED in self._lines[-1]) else None
        elif self._before is not None and line.startswith(self._before) and EXCEPTION.match(line, len(self._before)):
            self.raised, self._before = line[len(self._before) :], None

    @property
    def lines(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._lines)

    @property
    def errors(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._errors)


def payload(line: str) -> dict[str, Any]:
    """Parse a printed line as Cloud Logging does, and return its fields.

    If the line isn't a JSON object, return the whole line in the `message` field.
    """
    try:
        # NaN and 1e999 stay text because a JSON response can't contain them.
        parsed = jsons.loads(line, parse_constant=str, parse_float=_finite) if line.startswith("{") else None
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"message": line}


def message(line: str) -> str:
    """Return the text of a printed line. If the line is a JSON object with a message, return only the message."""
    return _text(payload(line), line)


def _text(fields: Mapping[str, Any], line: str) -> str:
    text = fields.get("message")
    return text if isinstance(text, str) else line


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text
