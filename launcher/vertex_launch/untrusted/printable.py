"""Makes untrusted text safe for a terminal or a page by removing control characters."""

import re

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")  # ECMA-48: colors and similar


def plain(text: str) -> str:
    """Return the text without escape sequences such as colors."""
    return ESCAPES.sub("", text)


def printable(text: str) -> str:
    """Return the text with a replacement for each character that could control a terminal."""
    if text.isprintable():  # true for nearly all lines
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def lines(text: str) -> str:
    """Return the text with all of its lines made printable."""
    return "\n".join(map(printable, text.split("\n")))
