"""Prints log lines as plain text on a terminal, and otherwise as JSON objects, which Cloud Logging parses.

In Cloud Logging, the `message` key is the log entry's text, the `severity` key sets the entry's color, and all other
keys are searchable. The launcher acts on event keys, such as `step` and `lost_peer`, but never on a message's text.
Source: Cloud Logging documentation, "Structured logging", 2026.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import rich
import rich.markup

from trainer.vertex.errors import TrainerError


def say(message: str, severity: str = "INFO", /, **fields: Any) -> None:
    """Print one sentence as plain text on a terminal, and otherwise as a JSON line. This function is thread-safe."""
    if sys.stdout.isatty():
        rich.print({"WARNING": "[yellow]", "ERROR": "[red]"}.get(severity, "") + rich.markup.escape(message))
    else:
        # One write per line: print() writes the newline separately, so lines of two threads could mix.
        sys.stdout.write(_json_line(message, severity, **fields))
        sys.stdout.flush()


def say_last(message: str, severity: str = "INFO") -> None:
    """Print one sentence from a signal handler that ends this process.

    This function bypasses sys.stdout. The signal might have interrupted a write to the buffer of sys.stdout, and such
    writes aren't reentrant.
    """
    line = f"{message}\n" if sys.stdout.isatty() else _json_line(message, severity)
    os.write(sys.stdout.fileno(), line.encode())


def say_lines(text: str, severity: str = "INFO", /, **fields: Any) -> None:
    """Print each line of the text as a separate log line."""
    for line in text.splitlines():
        say(line, severity, **fields)


def exit_code(run: Callable[..., None], *args: Any) -> int:
    """Call a program's main function and return the exit code. Print a TrainerError without a traceback."""
    try:
        run(*args)
    except TrainerError as error:
        say_lines(str(error), "ERROR", **error.event)
        return error.exit_code
    return 0


def warn(message: str) -> None:
    say(message, "WARNING")


def _json_line(message: str, severity: str, **fields: Any) -> str:
    return json.dumps({"severity": severity, "message": message, **fields}) + "\n"
