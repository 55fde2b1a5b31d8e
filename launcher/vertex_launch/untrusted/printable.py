"""Functions that remove control characters from untrusted text, so that a terminal or a page can show it."""

import re

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")  # ECMA-48: colors and similar


def plain(text: str) -> str:
    """Remove escape sequences, such as colors, from the text."""
    return ESCAPES.sub("", text)


def printable(text: str) -> str:
    """Replace each character that could control a terminal."""
    if text.isprintable():  # true for nearly all lines
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def lines(text: str) -> str:
    """Make each line of the text printable."""
    return "\n".join(map(printable, text.split("\n")))
