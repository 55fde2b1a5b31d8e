"""Log lines: plain on a terminal, otherwise a JSON object each, which Cloud Logging parses.

`message` is the text that people see, `severity` its colour, and every other key can be searched for. The
launcher acts on the keys of events, such as `step` and `lost_peer`, and on no message.
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
    """Print one sentence: plain on a terminal, a JSON line otherwise. Threads may call it at the same time."""
    if sys.stdout.isatty():
        rich.print({"WARNING": "[yellow]", "ERROR": "[red]"}.get(severity, "") + rich.markup.escape(message))
    else:
        # In one write, for another thread that says something at the same time: print writes the line's end by itself.
        sys.stdout.write(_json_line(message, severity, **fields))
        sys.stdout.flush()


def say_last(message: str, severity: str = "INFO") -> None:
    """Print one sentence in the handler of a signal that ends this process.

    Past sys.stdout: the signal may have come within a write, and Python lets no other one into the same buffer.
    """
    line = f"{message}\n" if sys.stdout.isatty() else _json_line(message, severity)
    os.write(sys.stdout.fileno(), line.encode())


def say_lines(text: str, severity: str = "INFO", /, **fields: Any) -> None:
    """Print each line of a text as a sentence of its own."""
    for line in text.splitlines():
        say(line, severity, **fields)


def exit_code(run: Callable[..., None], *args: Any) -> int:
    """Call a program's main part; returns its exit code. A TrainerError is printed, without a traceback."""
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
