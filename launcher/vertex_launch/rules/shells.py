"""Parser for code that a shell or Python runs with -c. Finds the commands and the arguments that the code uses."""

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
FOLLOWED = ("--rcfile", "--init-file")  # long options of a shell that take a value
PARAMETER = re.compile(r"\$(?:\{!?)?([@*]|[0-9]+)")
# Ways to use a script's arguments without naming them: getopts, a loop without a list, a sourced file.
INDIRECT = re.compile(
    r"\b(?:getopts|eval)\b|\$\{?(?:argv|BASH_ARGV)\b|/proc/|\bfor\s+\w+\s*(?:;|\n|\bdo\b)"
    r"|(?:^|[;&|({\n])\s*(?:source|\.)\s+(?!\S*(?:activate|conda|profile|bashrc|\.env))"
)
RUNS_TEXT = re.compile(r"argv|cmdline|\b(?:exec|eval|compile|__import__)\b")
LONGEST = 2**13  # characters; real scripts are shorter, and parsing the worst script of this length takes a second
REFERENCE = re.compile(r"\$\(([A-Z_][A-Z0-9_]*)\)")  # a variable that Vertex AI expands before the shell starts
VARIABLE = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}$]*))?\})")


class Script(NamedTuple):
    """A parsed script: its syntax tree, variables, and the words of each command. Unknown values appear as $(NAME)."""

    root: Node
    variables: Mapping[str, str]
    commands: tuple[tuple[Node, tuple[str, ...]], ...]


def read(text: str, variables: Mapping[str, str]) -> Script | None:
    """Parse the script that a shell runs with these variables. Return None if the script can't be parsed."""
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


@lru_cache(maxsize=16)  # several rules parse the same script
def _tree(text: str) -> Tree:
    parser = Parser(Language(tree_sitter_bash.language()))
    return parser.parse(REFERENCE.sub(r"${\1}", text).encode(errors="replace"))


def nodes(root: Node, *kinds: str) -> Iterator[Node]:
    """Yield the syntax nodes of these types, in source order."""
    rest = [root]
    while rest:
        node = rest.pop()
        if node.type in kinds:
            yield node
        rest += reversed(node.children)


def is_conditional(node: Node) -> bool:
    """Return whether the script might skip a node, such as a command that follows if, a test, or ||."""
    while parent := node.parent:
        before, *rest = parent.children
        tested = parent.type == "list" and node in rest and (rest[0].type != "&&" or any(nodes(before, "test_command")))
        if tested or parent.type in ("if_statement", "case_item", "while_statement"):
            return True
        node = parent
    return False


def source(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode(errors="replace")


def _word(node: Node, known: Mapping[str, str]) -> str:
    """Return a word as the shell passes it to the program. Unknown variables appear as $(NAME)."""

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
    """Code passed with -c, its location, its program, the program's options, and the number of words after the code."""

    place: str
    program: str
    text: str
    followers: int
    options: str

    @property
    def is_python(self) -> bool:
        return bool(PYTHON.fullmatch(self.program))


def start(words: Sequence[str]) -> int:
    """Return the position of the main program, which follows programs such as env that only start it."""
    starts = STARTER.fullmatch(words[0]) if words else None
    return next((n for n, word in enumerate(words) if STARTED.fullmatch(word)), 0) if starts else 0


def inline(words: Sequence[tuple[str, str]]) -> Inline | None:
    """Return the code that a command line passes with -c, or None if there is no -c."""
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
    """Return the position of a shell's inline script: the first word after the options.

    Return None if there is no -c.
    """
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
    """Return the position of Python's inline code, which follows an option such as -c.

    Return None if no code follows.
    """
    for at, (before, word) in enumerate(pairwise(["", *words])):
        if re.fullmatch("-[A-Za-ln-z]*c", word):
            return at + 1
        if not word.startswith("-") and before not in ("-W", "-X"):
            return None
    return None


def lost(text: Inline) -> tuple[str, str] | None:
    """Return why the code ignores a trial's flags, and the solution. Return None if the code might use all flags."""
    if text.is_python:
        fault = "this code never reads sys.argv, so every trial trains with the defaults"
        return (fault, "read sys.argv[1:] in the code, or run a Python file") if _ignores_arguments(text.text) else None
    script = read(text.text, {})
    if script is None or INDIRECT.search(text.text):
        return None
    expansions = map(source, nodes(script.root, "simple_expansion", "expansion"))
    used = {found[1] for one in expansions if (found := PARAMETER.match(one))}
    if not (used & {"@", "*"} or any(one.isdigit() and int(one) >= text.followers for one in used)):
        fault = f"{text.program} passes a trial's flags to this script, but the script doesn't use them"
        return f"{fault}, so every trial trains with the defaults", _cure(script, text)
    if not text.followers and "0" not in used:
        fault = f"{text.program} uses the first flag of a trial as $0, so the flag is lost"
        return fault, "after the script, add a placeholder such as _ for $0"
    return None


def _cure(script: Script, text: Inline) -> str:
    call = next((source(node) for node, said in script.commands if STARTED.fullmatch(said[0])), "")
    line = f'write {call} "$@"' if call else 'write "$@" after the command that starts the program'
    return line if text.followers else f"{line} in the script. After the script, add a placeholder such as _ for $0"


def _ignores_arguments(code: str) -> bool:
    """Return whether Python code ignores its arguments because it doesn't import a module that can read them."""
    try:
        nodes = [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules = {name.partition(".")[0] for name in names}
    return modules <= sys.stdlib_module_names - {*FACTS["reads_arguments"]} and not RUNS_TEXT.search(code)
