"""A strict parser for YAML and JSON documents. The parser preserves the text and the line number of each value.

PyYAML's own constructors don't preserve a value's text. For example, 10:30 becomes 630, `yes` becomes True, and
the last value of a repeated key replaces the earlier ones.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from vertex_launch.errors import FaultError, Finding, letters
from vertex_launch.untrusted import jsons

TAG = "tag:yaml.org,2002:"
KINDS = {"str": "text", "int": "a number", "float": "a number", "bool": "a boolean", "timestamp": "a date"}
CLEARER = {  # the start of PyYAML's message -> a clearer message
    "but found another document": ("a second document begins on this line", "keep only one job in a file"),
    "found character '\\t' that": ("this line contains a tab, but YAML requires spaces", "replace the tab"),
}
VALUES_LIMIT = 100_000  # in YAML, with all aliases expanded
JSON_LIMIT = 10_000  # values in one request, so that its job is checked within a second
TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')  # a string in JSON
PART = re.compile(r"[^.\[\]]+")  # one part of a path


class Scalar(str):
    """The original text of a YAML scalar or a JSON number, with its kind and its position in the document."""

    kind: str
    span: slice

    def __new__(cls, text: str, kind: str, span: slice = slice(0)) -> "Scalar":
        scalar = super().__new__(cls, text)
        scalar.kind, scalar.span = kind, span
        return scalar


class Items(list[Any]):
    """A YAML list with the line number of each item, keyed by the item's index."""

    def __init__(self, items: Sequence[Any], lines: Sequence[int]) -> None:
        super().__init__(items)
        self.lines = {str(index): line for index, line in enumerate(lines)}


class Mapping(dict[str, Any]):
    """A mapping that also stores the line number of each key, or all line numbers if the key is repeated."""

    def __init__(self, pairs: Sequence[tuple[str, Any]], written: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__(pairs)
        lines: dict[str, list[int]] = {}
        for key, line in written or [(key, 0) for key, _ in pairs]:
            lines.setdefault(key, []).append(line)
        self.lines = {key: where[-1] for key, where in lines.items()}
        self.repeated = {key: where for key, where in lines.items() if len(where) > 1}


def from_yaml(text: str) -> Any:
    """Parse YAML text. Raises FaultError if the text is empty, too large, or not a single valid document."""
    with _raising():
        value = jsons.shallow(lambda: yaml.load(text, _Loader))
        if value is None:
            raise _fault(None, "is empty", "write the workerPoolSpecs of a job")
        return value


def from_json(text: str) -> Any:
    """Parse JSON text without recording line numbers. Raises FaultError if the text isn't valid or is too large.

    This function is several times faster than `from_yaml`. In JSON, NaN and Infinity aren't valid values.
    Source: RFC 8259.
    """
    with _raising():
        if _values(text) > JSON_LIMIT and _values(TEXT.sub("", text)) > JSON_LIMIT:
            raise _fault(None, f"contains more than {JSON_LIMIT:,} values", "no job needs that many")
        number = partial(Scalar, kind="a number")
        hooks = {"parse_int": number, "parse_float": number, "parse_constant": _no_number}
        value = jsons.loads(text, object_pairs_hook=Mapping, **hooks)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value


@contextmanager
def _raising() -> Iterator[None]:
    """Convert the errors of the YAML and JSON parsers to FaultError."""
    try:
        yield
        return
    except yaml.MarkedYAMLError as fault:
        problem = str(fault.problem)
        clearer = (sentence for start, sentence in CLEARER.items() if problem.startswith(start))
        sentence = next(clearer, (problem, "fix the YAML on this line or just above this line"))
        finding = Finding("", *sentence, line=_line(fault.problem_mark))
    except yaml.YAMLError as fault:
        finding = Finding("", f"not valid YAML: {str(fault).splitlines()[0]}", "remove the character")
    except json.JSONDecodeError as fault:
        finding = Finding(
            "", f"line {fault.lineno}: not valid JSON: {fault.msg}", "fix the JSON at this position or just before it"
        )
    except UnicodeEncodeError as fault:
        half = fault.object[fault.start]
        finding = Finding(
            "", f"{half!a} is a lone surrogate, which is only half of a character", "send whole characters"
        )
    except FaultError as fault:
        (finding,) = fault.findings
    raise FaultError(finding)


def kind(value: Any) -> str:
    """Return the kind of a value as a noun with an article, such as "a mapping"."""
    if isinstance(value, Scalar):
        return value.kind
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean"}
    return next((noun for type, noun in kinds.items() if isinstance(value, type)), "nothing")


def plain(value: Any) -> Any:
    """Convert a value to the types that json.loads returns. YAML types, such as dates, become strings."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if not isinstance(value, Scalar):
        return value
    if value.kind == "a boolean":
        return value.lower() == "true"
    try:
        return json.loads(value) if value.kind == "a number" else str(value)
    except ValueError:  # YAML's 0x1F, or too many digits
        return str(value)


def line(document: Any, place: str) -> int:
    """Return the line number of a path such as `workerPoolSpecs[1].machineSpec`.

    If the document doesn't contain the whole path, return the line number of its last existing part. If no part of the
    path exists, return 0. For a value from an alias or `<<`, return the line number of its definition.
    """
    return [0, *(where for where, _ in _along(document, place))][-1]


def at(document: Any, place: str) -> Any:
    """Return the value at a path. Return None if the document doesn't contain the path."""
    values = [value for _, value in _along(document, place)]
    return values[-1] if len(values) == len(PART.findall(place)) else None


def _along(document: Any, place: str) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each existing part of a path. Keys can be in snake_case."""
    value = document
    for part in PART.findall(place):
        lines = getattr(value, "lines", {})
        key = next((key for key in lines if letters(key) == letters(part)), None)
        if key is None:
            return
        value = value[int(key) if isinstance(value, list) else key]
        yield lines[key], value


def _no_number(word: str) -> Any:
    raise _fault(None, f"{word} isn't a number in JSON", "write a finite number")


def _values(text: str) -> int:
    """Return an upper bound on the number of values in JSON text. The bound is tight if no value is a string."""
    return sum(text.count(mark) for mark in ",[{")


class _Loader(yaml.SafeLoader):
    """A YAML loader that creates `Mapping`, `Items`, and `Scalar` objects and stops if a document is too large."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[Node, int] = {}  # node -> number of its values, with aliases expanded
        self._keys = 0

    def compose_node(self, parent: Node | None, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        node: Any = super().compose_node(parent, index)
        if is_alias and node not in self._sizes:
            raise _fault(node, "an alias is inside the value that it refers to", "replace the alias with its value")
        inner = [] if isinstance(node, ScalarNode) else node.value
        self._sizes[node] = 1 + sum(self._sizes[child[1] if isinstance(child, tuple) else child] for child in inner)
        if self._sizes[node] > VALUES_LIMIT:
            raise _fault(node, f"this value's aliases expand to more than {VALUES_LIMIT:,} values", "use fewer aliases")
        self._keys += isinstance(parent, MappingNode) and index is None
        if len(self._sizes) - self._keys > VALUES_LIMIT:
            raise _fault(node, f"contains more than {VALUES_LIMIT:,} values", "no job needs that many")
        return node

    def _made(self, node: Node) -> Any:
        tag = node.tag.removeprefix(TAG)
        if isinstance(node, ScalarNode):
            span = slice(node.start_mark.index, node.end_mark.index)
            return None if tag == "null" else Scalar(node.value, KINDS.get(tag, "a special value"), span)
        if tag != ("map" if isinstance(node, MappingNode) else "seq"):
            raise _fault(node, f"the tag {node.tag} isn't supported in a job", "remove the tag")
        if isinstance(node, MappingNode):
            return self._mapping(node)
        lines = [_line(item.start_mark) for item in node.value]
        return Items([self.construct_object(item) for item in node.value], lines)

    def _mapping(self, node: MappingNode) -> Mapping:
        pairs = _merged(node)
        written = [(key.value, _line(key.start_mark)) for key, _ in node.value]
        mapping = Mapping([(name, self.construct_object(value)) for name, (_, value) in pairs.items()], written)
        mapping.lines = {name: _line(key.start_mark) for name, (key, _) in pairs.items()}
        return mapping

    yaml_constructors: ClassVar[dict[str | None, Any]] = {None: _made}


# PyYAML reads these values as text, but gcloud doesn't, and rejects them in fields that must be text.
# Source: YAML 1.1, yaml.org/type/bool.html; gcloud of 2026 with `args: [1e-3]`.
_Loader.add_implicit_resolver(f"{TAG}bool", re.compile("[yYnN]$"), list("yYnN"))
EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver(f"{TAG}float", EXPONENT, list("-+0123456789"))


def _merged(node: MappingNode) -> dict[str, tuple[Node, Node]]:
    """Return a mapping's key and value nodes, including merged ones, keyed by name.

    A mapping's own keys override merged ones. If several merged mappings contain a key, the first one is used.
    PyYAML 6.0.4 itself uses the last mapping of `<<: [a, b]` (yaml/pyyaml#953).
    Source: yaml.org/type/merge.html.
    """
    own: dict[str, tuple[Node, Node]] = {}
    merged: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise _fault(key, "a key must be a plain name", "if the braces belong to a value, quote it")
        if key.tag != f"{TAG}merge":
            own[key.value] = key, value
            continue
        for part in value.value if isinstance(value, SequenceNode) else [value]:
            if not isinstance(part, MappingNode):
                raise _fault(part, "<< can merge only mappings", "use an alias of a mapping, such as *pool")
            merged = _merged(part) | merged
    return merged | own


def _fault(node: Node | None, fault: str, cure: str) -> FaultError:
    return FaultError(Finding("", fault, cure, _line(node and node.start_mark)))


def _line(mark: Any) -> int:
    return mark.line + 1 if mark else 0
