"""Text that others chose, as a terminal or a page may show it: no character of it steers anything."""

import re

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")  # ECMA-48: colours and the like


def plain(text: str) -> str:
    """The text without colours and the like."""
    return ESCAPES.sub("", text)


def printable(text: str) -> str:
    """The text with a sign in place of each character that could steer a terminal."""
    if text.isprintable():  # as nearly all of a million lines are
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def lines(text: str) -> str:
    """Make each line of a text printable."""
    return "\n".join(map(printable, text.split("\n")))
