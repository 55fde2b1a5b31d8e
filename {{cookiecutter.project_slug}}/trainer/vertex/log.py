"""Prints log lines: plain text on a terminal, otherwise JSON objects, which Cloud Logging parses.

In Cloud Logging, `message` is the text, `severity` sets its color, and all other keys are searchable. The launcher acts
on event keys, such as `step` and `lost_peer`, but never on a message.
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
    """Print one sentence, as plain text on a terminal or as a JSON line. This function is thread-safe."""
    if sys.stdout.isatty():
        rich.print({"WARNING": "[yellow]", "ERROR": "[red]"}.get(severity, "") + rich.markup.escape(message))
    else:
        # One write per line: print() writes the newline separately, so lines of two threads could mix.
        sys.stdout.write(_json_line(message, severity, **fields))
        sys.stdout.flush()


def say_last(message: str, severity: str = "INFO") -> None:
    """Print one sentence from the handler of a signal that ends this process.

    This function bypasses sys.stdout, because the signal may have interrupted a write to its buffer, which isn't
    reentrant.
    """
    line = f"{message}\n" if sys.stdout.isatty() else _json_line(message, severity)
    os.write(sys.stdout.fileno(), line.encode())


def say_lines(text: str, severity: str = "INFO", /, **fields: Any) -> None:
    """Print each line of a text as a separate log line."""
    for line in text.splitlines():
        say(line, severity, **fields)


def exit_code(run: Callable[..., None], *args: Any) -> int:
    """Call a program's main function, and return the exit code. A TrainerError is printed without a traceback."""
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
