"""Programs behind a shell's -c, or Python's: which of the words behind them they use, and a script's commands."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from vertex_launch.facts import catalog

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
RUNS_TEXT = re.compile(r"argv|cmdline|\b(?:exec|eval|compile|__import__)\b")
LONGEST = 2**13  # characters; scripts that people write are shorter, and the worst of this length takes a second
REFERENCE = re.compile(r"\$\(([A-Z_][A-Z0-9_]*)\)")  # to a variable, which Vertex AI replaces before the shell starts
VARIABLE = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}$]*))?\})")


class Script(NamedTuple):
    """The parts of a script, its variables, and each command's words, in which one of unknown value is $(NAME)."""

    root: Node
    variables: Mapping[str, str]
    commands: tuple[tuple[Node, tuple[str, ...]], ...]


def read(text: str, variables: Mapping[str, str]) -> Script | None:
    """Return the script that a shell with these variables runs; None where not all of it can be read."""
    if len(text) > LONGEST or (root := _tree(text).root_node).has_error:
        return None
    assigned, commands = dict[str, str](), []
    for node in nodes(root, "variable_assignment", "command"):
        known = {**variables, **assigned}
        if node.type == "variable_assignment":
            (name, _, *value) = node.children
            again = source(name) in assigned or is_conditional(node)
            assigned[source(name)] = f"$({source(name)})" if again else "".join(_word(one, known) for one in value)
        else:
            words = [node.child_by_field_name("name"), *node.children_by_field_name("argument")]
            commands.append((node, tuple(_word(one, known) for one in words if one)))
    return Script(root, {**variables, **assigned}, tuple(commands))


@lru_cache(maxsize=16)  # several rules read one script
def _tree(text: str) -> Tree:
    parser = Parser(Language(tree_sitter_bash.language()))
    return parser.parse(REFERENCE.sub(r"${\1}", text).encode(errors="replace"))


def nodes(root: Node, *kinds: str) -> Iterator[Node]:
    """Yield the parts of these kinds, in the order of the text."""
    rest = [root]
    while rest:
        node = rest.pop()
        if node.type in kinds:
            yield node
        rest += reversed(node.children)


def is_conditional(node: Node) -> bool:
    """Whether the script may leave a part out, as it does what follows if, a test or ||."""
    while parent := node.parent:
        before, *rest = parent.children
        tested = parent.type == "list" and node in rest and (rest[0].type != "&&" or any(nodes(before, "test_command")))
        if tested or parent.type in ("if_statement", "case_item", "while_statement"):
            return True
        node = parent
    return False


def source(node: Node) -> str:
    """Return the text of a part, as it is written."""
    return (node.text or b"").decode(errors="replace")


def _word(node: Node, known: Mapping[str, str]) -> str:
    """Return a word as the shell hands it on, as far as that can be known."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name, f"$({name})" if match[3] is None else match[3])

    text = source(node)
    if node.type == "concatenation":
        return "".join(_word(one, known) for one in node.children)
    if node.type == "raw_string":
        return text[1:-1]
    return re.sub(r"\\(\n)?", "", VARIABLE.sub(value, text[1:-1] if node.type == "string" else text))


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
    arguments = [word for _, word in rest]
    at = _script(arguments) if SHELL.fullmatch(program) else None
    if PYTHON.fullmatch(program):
        at = _code(arguments)
    if at is None:
        return None
    place, text = rest[at] if at < len(rest) else (place, "")
    return Inline(place, program.rpartition("/")[2], text, max(len(rest) - at - 1, 0), " ".join(arguments[:at]))


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
    script = read(text.text, {})
    if script is None or INDIRECT.search(text.text):
        return None
    expansions = map(source, nodes(script.root, "simple_expansion", "expansion"))
    used = {found[1] for one in expansions if (found := PARAMETER.match(one))}
    if not (used & {"@", "*"} or any(one.isdigit() and int(one) >= text.followers for one in used)):
        fault = f"{text.program} hands a trial's flags to this script, which does not use them"
        return f"{fault}, so every trial trains the defaults", _cure(script, text)
    if not text.followers and "0" not in used:
        fault = f"the first flag of a trial becomes $0 of {text.program}, and is lost"
        return fault, "write a word such as _ behind the script, which becomes $0"
    return None


def _cure(script: Script, text: Inline) -> str:
    call = next((source(node) for node, said in script.commands if STARTED.fullmatch(said[0])), "")
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
    return modules <= sys.stdlib_module_names - {*FACTS["reads_arguments"]} and not RUNS_TEXT.search(code)
