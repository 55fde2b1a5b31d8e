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

from launch.faults import FaultError

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
DEEP = "is nested too deeply; no job needs more than ten levels"
TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')  # in JSON
STEP = re.compile(r"(?:^|[.])([^.\[\]]+)|\[([0-9]+)\]")  # of a place: a key or an index
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def compose(text: str, place: str, error: type[FaultError]) -> Node:
    """The root node; broken YAML, none or several documents and bad aliases are raised as `error`."""
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            raise error(f"{place}: is empty; start from one of the files in jobs/")
        _vet(root, {})
    except yaml.MarkedYAMLError as fault:
        raise error(f"{place}: {_sentence(fault)}") from None
    except yaml.YAMLError as fault:
        raise error(f"{place}: not YAML: {str(fault).splitlines()[0]}; remove it") from None
    except RecursionError:
        raise error(f"{place}: {DEEP}") from None
    return root


def from_json(text: str, place: str, error: type[FaultError]) -> Node:
    """The same kind of tree from JSON, several times faster; broken JSON is raised as `error`.

    Only the line numbers are missing in it. Source: RFC 8259, which knows neither NaN nor Infinity.
    """
    start = f"{place}: " if place else ""
    if text.count(",") > VALUES_LIMIT and TEXT.sub("", text).count(",") > VALUES_LIMIT:
        raise error(f"{start}holds more than {VALUES_LIMIT:,} values; no job needs as many")
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
    merged: dict[str, Node] = {}
    own: dict[str, Node] = {}
    for key, value in mapping.value:
        if key.tag == MERGE:
            for base in reversed(_bases(value)):
                merged |= items(base)
        else:
            own[key.value] = value
    return merged | own


def at(root: Node, place: str) -> Node | None:
    """The node at a place such as `workerPoolSpecs[1].machineSpec`; None if the document has none there."""
    node: Node | None = root
    for key, index in STEP.findall(place):
        if key:
            node = items(node).get(key) if isinstance(node, MappingNode) else None
        else:
            values = node.value if isinstance(node, SequenceNode) else []
            node = values[int(index)] if int(index) < len(values) else None
    return node


def repeated(mapping: MappingNode) -> Iterator[tuple[str, str]]:
    """Every key that is written more than once, and where: "in lines 1 and 4", or from JSON "there 2 times"."""
    written: dict[str, list[ScalarNode]] = defaultdict(list)
    for key, _ in mapping.value:
        written[key.value].append(key)
    for name, keys in written.items():
        if len(keys) > 1:
            lines = [str(_line(key)) for key in keys if key.start_mark]
            yield name, f"in lines {' and '.join(lines)}" if lines else f"there {len(keys)} times"


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


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _fault(node: Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _sentence(fault: yaml.MarkedYAMLError) -> str:
    line = f"line {fault.problem_mark.line + 1}" if fault.problem_mark else "somewhere"
    if fault.problem in CLEARER:
        return f"{line}: {CLEARER[fault.problem]}"
    cure = "" if "; " in str(fault.problem) else "; mend the YAML there or just above"
    return f"{line}: {fault.problem}{cure}"
