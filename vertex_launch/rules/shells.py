"""Programs behind a shell's -c, or Python's, and which of the words behind them they use."""

import ast
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from vertex_launch import catalog
from vertex_launch.rules import scripts

FACTS = catalog.read(Path(__file__).with_name("programs.yaml"))
SHELL = re.compile(r"(?:\S*/)?(?:sh|bash|dash|zsh|ash|ksh)")
PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*")
STARTER = re.compile(rf"(?:\S*/)?(?:{'|'.join(FACTS['starters'])})")
STARTED = re.compile(rf"{SHELL.pattern}|{PYTHON.pattern}|(?:\S*/)?(?:{'|'.join(FACTS['programs'])})")
FOLLOWED = ("--rcfile", "--init-file")  # long options of a shell with a word of their own
PARAMETER = re.compile(r"\$(?:\{!?)?([@*]|[0-9]+)")
# Ways to the words behind a script that do not name them: getopts, a loop without a list, a file that is sourced.
INDIRECT = re.compile(
    r"\b(?:getopts|eval)\b|\$\{?(?:argv|BASH_ARGV)\b|/proc/|\bfor\s+\w+\s*(?:;|\n|\bdo\b)"
    r"|(?:^|[;&|({\n])\s*(?:source|\.)\s+(?!\S*(?:activate|conda|profile|bashrc|\.env))"
)

# Modules through which code of Python may come to its arguments; only of the standard ones that is known.
READS_ARGUMENTS = {"argparse", "code", "ctypes", "doctest", "fileinput", "getopt", "importlib", "optparse", "pkgutil"}
READS_ARGUMENTS |= {"pdb", "runpy", "unittest", "zipimport"}
RUNS_TEXT = re.compile(r"argv|cmdline|\b(?:exec|eval|compile|__import__)\b")


class Inline(NamedTuple):
    """The text behind -c: its place, the program that runs it, the text, how many words follow it, and the options."""

    place: str
    program: str
    text: str
    followers: int
    options: str

    @property
    def is_python(self) -> bool:
        return bool(PYTHON.fullmatch(self.program))


def start(words: Sequence[str]) -> int:
    """Return the position of the program itself, behind what only starts it."""
    starts = STARTER.fullmatch(words[0]) if words else None
    return next((n for n, word in enumerate(words) if STARTED.fullmatch(word)), 0) if starts else 0


def inline(words: Sequence[tuple[str, str]]) -> Inline | None:
    """Return what a program's words, each with its place, have behind -c; None where there is no -c."""
    words = words[start([word for _, word in words]) :]
    if not words:
        return None
    (place, program), *rest = words
    at = None
    if SHELL.fullmatch(program):
        at = _script([word for _, word in rest])
    elif PYTHON.fullmatch(program):
        at = _code([word for _, word in rest])
    if at is None:
        return None
    place, text = rest[at] if at < len(rest) else (place, "")
    options = " ".join(word for _, word in rest[:at])
    return Inline(place, program.rpartition("/")[2], text, max(len(rest) - at - 1, 0), options)


def _script(words: Sequence[str]) -> int | None:
    """The position of a shell's script: its first word that is no option, if an option has c."""
    at, has_script = 0, False
    while at < len(words) and words[at][:1] in ("-", "+"):
        word, at = words[at], at + 1
        if word in ("-", "--"):
            break
        if word.startswith("--"):
            at += word in FOLLOWED
        else:
            has_script = has_script or (word[0] == "-" and "c" in word)
            at += word.count("o") + word.count("O")
    return at if has_script else None


def _code(words: Sequence[str]) -> int | None:
    """The position of Python's code: behind the first option that ends in c, such as -c or -uc."""
    for at, (before, word) in enumerate(pairwise(["", *words])):
        if re.fullmatch("-[A-Za-ln-z]*c", word):
            return at + 1
        if not word.startswith("-") and before not in ("-W", "-X"):
            return None
    return None


def lost(text: Inline) -> tuple[str, str] | None:
    """Return what becomes of flags that are appended, and the cure; None where the text may use all of them."""
    if text.is_python:
        fault = "this code never looks at sys.argv, so every trial trains the defaults"
        return (fault, "read sys.argv[1:] there, or start a file") if _ignores_arguments(text.text) else None
    script = scripts.read(text.text, {})
    if script is None or INDIRECT.search(text.text):
        return None
    expansions = map(scripts.source, scripts.nodes(script.root, "simple_expansion", "expansion"))
    used = {found[1] for one in expansions if (found := PARAMETER.match(one))}
    if not (used & {"@", "*"} or any(one.isdigit() and int(one) >= text.followers for one in used)):
        fault = f"{text.program} hands a trial's flags to this script, which does not use them"
        return f"{fault}, so every trial trains the defaults", _cure(script, text)
    if not text.followers and "0" not in used:
        fault = f"the first flag of a trial becomes $0 of {text.program}, and is lost"
        return fault, "write a word such as _ behind the script, which becomes $0"
    return None


def _cure(script: scripts.Script, text: Inline) -> str:
    call = next((scripts.source(node) for node, said in script.commands if STARTED.fullmatch(said[0])), "")
    line = f'write {call} "$@"' if call else 'write "$@" behind the call of the program'
    return line if text.followers else f"{line} there, and behind the script a word such as _, which becomes $0"


def _ignores_arguments(code: str) -> bool:
    """Whether code of Python certainly ignores its arguments: it imports standard modules that do not read them."""
    try:
        nodes = [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules = {name.partition(".")[0] for name in names}
    return modules <= sys.stdlib_module_names - READS_ARGUMENTS and not RUNS_TEXT.search(code)
