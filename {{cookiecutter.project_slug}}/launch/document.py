"""One YAML (or JSON) document as a tree of nodes, which still knows how each value was written.

PyYAML's own constructors forget that: 10:30 becomes 630, `yes` becomes True, and of a repeated key
only the last value stays.
"""

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
VALUES_LIMIT = 100_000  # with every alias written out


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
        raise error(f"{place}: is nested too deeply; no job needs more than ten levels") from None
    return root


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


def repeated(mapping: MappingNode) -> Iterator[tuple[str, list[int]]]:
    """Every key that is written more than once, and in which lines."""
    lines: dict[str, list[int]] = defaultdict(list)
    for key, _ in mapping.value:
        lines[key.value].append(_line(key))
    return ((key, where) for key, where in lines.items() if len(where) > 1)


def plain(node: Node) -> Any:
    """Dicts, lists, booleans and, for all else, text as written; protobuf reads numbers from text."""
    if isinstance(node, MappingNode):
        return {key: plain(value) for key, value in items(node).items()}
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.value]
    return node.value.lower() == "true" if kind(node) == "a boolean" else node.value


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
