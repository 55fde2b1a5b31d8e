"""One YAML or JSON document as a tree of nodes, which still knows how each value was written.

PyYAML's own constructors forget that: 10:30 becomes 630, `yes` becomes True, and of a repeated key
only the last value stays.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from vertex_launch.errors import FaultError

TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"
KINDS = {
    (MappingNode, "map"): "a mapping",
    (SequenceNode, "seq"): "a list",
    (ScalarNode, "str"): "text",
    (ScalarNode, "int"): "a number",
    (ScalarNode, "float"): "a number",
    (ScalarNode, "bool"): "a boolean",
    (ScalarNode, "timestamp"): "a date",
    (ScalarNode, "null"): "nothing",
}
CLEARER = {
    "but found another document": "a second document begins; keep one job in a file",
    "found character '\\t' that cannot start any token": "a tab stands where YAML wants spaces; replace it",
}
VALUES_LIMIT = 100_000  # in YAML with every alias written out
JSON_LIMIT = 10_000  # values in one request; its job is checked within a second
MANY = f"holds more than {VALUES_LIMIT:,} values; no job needs as many"
DEEP = "is nested too deeply; no job needs more than ten levels"
LINES_SHOWN = 3  # of a key that is repeated
TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')  # in JSON
PART = re.compile(r"[^.\[\]]+")  # of a place
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class DocumentError(ValueError):
    """A text is not one YAML document; a sentence, and its line, 0 if that is unknown."""

    def __init__(self, sentence: str, line: int = 0) -> None:
        super().__init__(sentence)
        self.line = line


class Loader(yaml.SafeLoader):
    """Stops at a document that is too large, before it has read it all."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._values += not isinstance(parent, MappingNode) or index is not None  # the others are keys
        if self._values > VALUES_LIMIT:
            raise DocumentError(MANY, self.peek_event().start_mark.line + 1)
        return super().compose_node(parent, index)


def compose(text: str, place: str, error: type[FaultError]) -> Node:
    """The root node; what `tree` raises is raised as `error`, `place` and line before it."""
    try:
        return tree(text)
    except DocumentError as fault:
        raise error(f"{start(place, fault.line)}{fault}") from None


def start(place: str, line: int) -> str:
    """`jobs/run.yaml:31: `, as editors and terminals know to open it, or less where less is known."""
    return f"{place}:{line}: " if place and line else f"{place}: " if place else ""


def tree(text: str) -> Node:
    """The root node.

    Raises:
        DocumentError: broken YAML, no document or several, an alias that cannot be meant.
    """
    try:
        root = yaml.compose(text, Loader)
        if root is None:
            raise DocumentError("is empty; start from one of the files in jobs/")
        _vet(root, {})
    except yaml.MarkedYAMLError as fault:
        raise DocumentError(_sentence(fault), fault.problem_mark.line + 1 if fault.problem_mark else 0) from None
    except yaml.YAMLError as fault:
        raise DocumentError(f"not YAML: {str(fault).splitlines()[0]}; remove it") from None
    except RecursionError:
        raise DocumentError(DEEP) from None
    return root


def from_json(text: str, place: str, error: type[FaultError]) -> Node:
    """The same kind of tree from JSON, several times faster; broken JSON is raised as `error`.

    Only the line numbers are missing in it. Source: RFC 8259, which knows neither NaN nor Infinity.
    """
    start = f"{place}: " if place else ""
    if _values(text) > JSON_LIMIT and _values(TEXT.sub("", text)) > JSON_LIMIT:
        raise error(f"{start}holds more than {JSON_LIMIT:,} values; no job needs as many")
    try:
        return _node(
            json.loads(
                text,
                object_pairs_hook=_mapping,
                parse_int=lambda number: ScalarNode(f"{TAG}int", number),
                parse_float=lambda number: ScalarNode(f"{TAG}float", number),
                parse_constant=_no_number,
            )
        )
    except json.JSONDecodeError as fault:
        raise error(f"{start}line {fault.lineno}: not JSON: {fault.msg}; mend it there or just before") from None
    except ValueError as fault:
        raise error(f"{start}{fault}") from None
    except RecursionError:
        raise error(f"{start}{DEEP}") from None


def kind(node: Node) -> str:
    """What YAML takes the node for, as a noun with its article."""
    return KINDS.get((type(node), node.tag.removeprefix(TAG)), "a special value")


def items(mapping: MappingNode) -> dict[str, Node]:
    """Keys and values; what `<<` merges in gives way to the mapping's own keys."""
    return {key.value: value for key, value in _pairs(mapping).values()}


def line(root: Node | None, place: str) -> int:
    """The line of a place such as `workerPoolSpecs[1].machineSpec`, or of the part of it that is there; 0 if none is.

    What an alias or `<<` brings along stands where it was written.
    """
    node, found = root, 0
    for part in PART.findall(place) if root and root.start_mark else ():
        node, mark = _below(node, part)
        if node is None or mark is None:
            break
        found = line_of(mark)
    return found


def lines_of_keys(mapping: MappingNode) -> dict[str, int]:
    """The line of every key."""
    return {name: line_of(key) for name, (key, _) in _pairs(mapping).items()}


def line_of(node: Node) -> int:
    """The line on which a node begins, 0 for a node from JSON."""
    return int(node.start_mark.line) + 1 if node.start_mark else 0


def at(root: Node, place: str) -> Node | None:
    """The node at a place such as `workerPoolSpecs[1].machineSpec`; None if the document has none there."""
    node: Node | None = root
    for part in PART.findall(place):
        node, _ = _below(node, part)
    return node


def repeated(mapping: MappingNode) -> Iterator[tuple[str, str, int]]:
    """Every key that is written more than once, where, "in lines 1 and 4" or of JSON "there 2 times", and a line."""
    written: dict[str, list[ScalarNode]] = defaultdict(list)
    for key, _ in mapping.value:
        written[key.value].append(key)
    for name, keys in written.items():
        if len(keys) > 1:
            lines = [str(line_of(key)) for key in keys if key.start_mark]
            shown = lines[:LINES_SHOWN] + ([f"{len(lines) - LINES_SHOWN:,} more"] if len(lines) > LINES_SHOWN else [])
            where = f"in lines {' and '.join(shown)}" if lines else f"there {len(keys)} times"
            yield name, where, line_of(keys[-1])


def plain(node: Node) -> Any:
    """What json.loads would make of it; a value that only YAML knows, such as a date, is text as written."""
    if isinstance(node, MappingNode):
        return {key: plain(value) for key, value in items(node).items()}
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.value]
    if kind(node) == "a number":
        return _number(node.value)
    if kind(node) == "nothing":
        return None
    return node.value.lower() == "true" if kind(node) == "a boolean" else node.value


def _below(node: Node | None, part: str) -> tuple[Node | None, Node | None]:
    """What lies below a node under a key or an index, and what marks its line: the key, or the item itself."""
    if isinstance(node, SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    if isinstance(node, MappingNode):
        for key, value in _pairs(node).values():
            if _bare(key.value) == _bare(part):
                return value, key
    return None, None


def _pairs(mapping: MappingNode) -> dict[str, tuple[ScalarNode, Node]]:
    """Keys and values by the key's name."""
    merged: dict[str, tuple[ScalarNode, Node]] = {}
    own: dict[str, tuple[ScalarNode, Node]] = {}
    for key, value in mapping.value:
        if key.tag == MERGE:
            for base in reversed(_bases(value)):
                merged |= _pairs(base)
        else:
            own[key.value] = key, value
    return merged | own


def _bare(key: str) -> str:
    """The same for camelCase and snake_case."""
    return key.replace("_", "").casefold()


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # YAML's 0x1F, or too many digits
        return text


def _node(value: Any) -> Node:
    """What json.loads returns; numbers and mappings are nodes already."""
    if isinstance(value, Node):
        return value
    if isinstance(value, list):
        return SequenceNode(f"{TAG}seq", [_node(item) for item in value])
    if value is None:
        return ScalarNode(f"{TAG}null", "null")
    if isinstance(value, bool):
        return ScalarNode(f"{TAG}bool", str(value).lower())
    return ScalarNode(f"{TAG}str", _whole(value))


def _mapping(pairs: list[tuple[str, Any]]) -> MappingNode:
    return MappingNode(f"{TAG}map", [(ScalarNode(f"{TAG}str", _whole(key)), _node(value)) for key, value in pairs])


def _whole(text: str) -> str:
    if not text.isascii() and HALF_CHARACTER.search(text):
        raise ValueError(f"{text!a} holds half a character, a lone surrogate; send whole ones")
    return text


def _values(text: str) -> int:
    """At least as many as there are values, if the text is JSON without strings: what stands before each of them."""
    return sum(text.count(mark) for mark in ",[{")


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON; write one that is finite")


def _vet(node: Node, sizes: dict[Node, int]) -> int:
    """How many values the node holds once aliases are written out; raises where that never ends."""
    if node not in sizes:
        sizes[node] = 0  # stays 0 only while the node is open, so meeting it means a circle
        sizes[node] = 1 + sum(_vet(child, sizes) for child in _children(node))
    if not sizes[node]:
        raise _fault(node, "an alias stands inside the value it repeats; write that part out")
    if sizes[node] > VALUES_LIMIT:
        raise _fault(node, f"its aliases unfold into more than {VALUES_LIMIT:,} values; write them out")
    return sizes[node]


def _children(node: Node) -> list[Node]:
    if kind(node) == "a special value" and not isinstance(node, ScalarNode):
        raise _fault(node, f"the tag {node.tag} has no meaning in a job; remove it")
    if not isinstance(node, MappingNode):
        return node.value if isinstance(node, SequenceNode) else []
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise _fault(key, "a key must be a plain name; quote the value if braces belong to it")
        if key.tag == MERGE and not all(isinstance(base, MappingNode) for base in _bases(value)):
            raise _fault(value, "<< merges mappings only; give it an alias of one, such as *pool")
    return [value for _, value in node.value]


def _bases(value: Node) -> list[Any]:
    return value.value if isinstance(value, SequenceNode) else [value]


def _fault(node: Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _sentence(fault: yaml.MarkedYAMLError) -> str:
    if fault.problem in CLEARER:
        return CLEARER[fault.problem]
    cure = "" if "; " in str(fault.problem) else "; mend the YAML there or just above"
    return f"{fault.problem}{cure}"
