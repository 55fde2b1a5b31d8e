"""Scripts of a shell, as tree-sitter's grammar of bash reads them: their commands, word by word."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

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
        before, operator, *_ = [*parent.children, None, None]
        tested = (
            parent.type == "list" and operator and node != before and (operator.type, *nodes(before, "test_command"))
        )
        if parent.type in ("if_statement", "case_item", "while_statement") or (tested and tested != ("&&",)):
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
