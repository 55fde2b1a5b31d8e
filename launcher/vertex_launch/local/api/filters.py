"""The parameters of list calls: `filter`, `orderBy`, `pageSize`, and `pageToken`.

The filter language is the subset of AIP-160 that Vertex AI and Cloud Logging document. The filter language supports
comparisons, `:` with `*`, AND, OR, NOT, and parentheses. A space means AND, and OR has a higher precedence than AND.
Metadata filters also support metadata.FIELD.KIND and the in_context("NAME") function.
Source: google.aip.dev/160, 2026; google-cloud-aiplatform 2.7.0, types/metadata_service.py.
"""

import base64
import contextlib
import fnmatch
import functools
import json
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

from vertex_launch.errors import Finding
from vertex_launch.job.job_resource import Resource, camel
from vertex_launch.local.api.errors import ApiError, invalid

Predicate = Callable[[Resource], bool]
LAST = "~"  # sorts after every time


class Filter(NamedTuple):
    """A parsed filter: its predicate, and its `timestamp` bounds as UTC times in the API's format."""

    matches: Predicate
    since: str = ""
    until: str = LAST
    part: str = ""  # text that the lowercase JSON of each match contains; JSON doesn't escape it


PAGE_SIZE = 100
LARGEST_PAGE = 1000
DEPTH = 50  # the maximum nesting of parentheses and NOTs
LONGEST_FILTER = 20_000  # characters; source: Cloud Logging documentation, "Quotas and limits", 2026
MOST_ORDERS = 10  # the maximum number of fields to order by; each field sorts the whole list again

# Severities of log entries, lowest first. Source: Cloud Logging API v2, LogSeverity.
SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")

BARE = r"""[^\s()=<>:!"']+"""
QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
TOKEN = re.compile(
    rf"\s*(?:(?P<symbol>[()]|>=|<=|!=|[=<>:])|(?P<text>(?:{BARE}\.)?{QUOTED}(?:\.{BARE})?|{BARE})|(?P<other>\S))"
)
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

TIME, PAYLOAD = "timestamp", "jsonPayload"  # fields of a log entry
PLAIN = r"[a-z0-9 ,;:=_+/-]*"  # characters that JSON doesn't escape
IN_CONTEXT = "inContext"  # a field that only the function in_context("NAME") reads
METADATA = "metadata"  # a field that contains values of any kind
# The kinds of metadata values in a filter -> JSON types, text format and example.
KINDS: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "number_value": ((int, float), r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", "1.5"),
    "string_value": ((str,), "(?s:.*)", '"text"'),
    "bool_value": ((bool,), "true|false", "true"),
}


def page(resources: Sequence[Resource], fields: Container[str], /, **query: str) -> tuple[list[Resource], str]:
    """Return one page of a list, and the token for the next page. For the last page, the token is "".

    Clients can filter and sort by `fields`, which are in camelCase. `query` contains the call's parameters. Raises
    ApiError INVALID_ARGUMENT if a parameter isn't valid.
    """
    matches = predicate(query.get("filter", ""), fields)
    ordered = _ordered([resource for resource in resources if matches(resource)], query.get("orderBy", ""), fields)
    begin = _after(ordered, query.get("pageToken", ""))
    end = begin + page_size(query.get("pageSize", ""))
    last = _identity(ordered[end - 1]) if end < len(ordered) else ""
    return ordered[begin:end], base64.urlsafe_b64encode(last.encode()).decode()


def predicate(expression: str, fields: Container[str]) -> Predicate:
    """Return a function that tests whether a resource matches a filter. The filter "" matches every resource.

    Raises ApiError INVALID_ARGUMENT if the filter isn't valid.
    """
    return parsed(expression, fields).matches


def parsed(expression: str, fields: Container[str]) -> Filter:
    """Parse a filter, and derive bounds for `timestamp` from it.

    Raises ApiError INVALID_ARGUMENT if the filter isn't valid.
    """
    if len(expression) > LONGEST_FILTER:
        raise _fault("filter", f"has {len(expression)} characters", f"shorten it to {LONGEST_FILTER}")
    return _Parser(expression, fields).parse() if expression.strip() else Filter(lambda resource: True)


class _Parser:
    """A recursive-descent parser for filters, with one method for each level of precedence."""

    def __init__(self, expression: str, fields: Container[str]) -> None:
        self._expression = expression
        self._fields = fields
        self._tokens = deque(_tokens(expression))
        self._depth = 0

    def parse(self) -> Filter:
        parsed = self._sequence()
        if self._tokens:
            fault = f'"{self._expression}" has an unexpected "{self._tokens[0]}"'
            raise _fault("filter", fault, "remove this token, or correct the text before it")
        return parsed

    def _sequence(self) -> Filter:
        terms = [self._alternatives()]
        while self._tokens and self._tokens[0] != ")":
            self._take("AND")
            terms.append(self._alternatives())
        since, until = max(term.since for term in terms), min(term.until for term in terms)
        part = max((term.part for term in terms), key=len)
        return Filter(lambda resource: all(term.matches(resource) for term in terms), since, until, part)

    def _alternatives(self) -> Filter:
        terms = [self._term()]
        while self._take("OR"):
            terms.append(self._term())
        if len(terms) == 1:
            return terms[0]
        since, until = min(term.since for term in terms), max(term.until for term in terms)
        return Filter(lambda resource: any(term.matches(resource) for term in terms), since, until)

    def _term(self) -> Filter:
        nested = self._take("NOT", "(")
        if not nested:
            return self._comparison()
        self._depth += 1
        if self._depth > DEPTH:
            raise _fault("filter", f"is nested deeper than {DEPTH} levels", "simplify it")
        inner = self._term() if nested == "NOT" else self._sequence()
        self._depth -= 1
        if nested == "NOT":
            return Filter(lambda resource: not inner.matches(resource))
        if not self._take(")"):
            raise _fault("filter", f'"{self._expression}" has no closing parenthesis', 'add a ")"')
        return inner

    def _comparison(self) -> Filter:
        text = self._text("a field")
        if PAYLOAD in self._fields and (not self._tokens or self._tokens[0] not in (":", *COMPARISONS)):
            return _anywhere(text.lower())
        field = _checked_field(text, self._fields, "filter")
        if field == IN_CONTEXT:
            return Filter(self._membership())
        symbol = self._take(":", *COMPARISONS)
        if not symbol:
            raise _fault("filter", f'"{field}" has no comparison after it', f'use {field}="value"')
        value = self._text("a value")
        if field.startswith(f"{METADATA}."):
            return Filter(_of_metadata(field, symbol, value))
        test = functools.partial(_has, value) if symbol == ":" else _comparing(symbol, value)
        return Filter(lambda resource: test(_value(resource, field)), *(_span(symbol, value) if field == TIME else ()))

    def _membership(self) -> Predicate:
        context = self._text("a context") if self._take("(") else None
        if context is None or not self._take(")"):
            cure = 'use in_context("NAME") with a context\'s full resource name'
            raise _fault("filter", "in_context needs one argument in parentheses", cure)
        return lambda resource: context in resource.get(IN_CONTEXT, ())

    def _take(self, *wanted: str) -> str:
        """Consume and return the next token if `wanted` contains it. Otherwise, return "" without consuming a token."""
        return self._tokens.popleft() if self._tokens and self._tokens[0] in wanted else ""

    def _text(self, wanted: str) -> str:
        """Consume a string token, such as "team/name" in labels."team/name", and return it without quotes.

        Raises ApiError if the next token isn't a string.
        """
        if not self._tokens or self._tokens[0] in ("(", ")", ":", *COMPARISONS):
            raise _fault("filter", f'"{self._expression}" is missing {wanted}', 'use a filter such as display_name="x"')
        return re.sub(QUOTED, lambda quoted: re.sub(r"\\(.)", r"\1", quoted[0][1:-1]), self._tokens.popleft())


def _anywhere(text: str) -> Filter:
    """Return a filter that searches all fields of a log entry. Source: Cloud Logging, "Global restrictions", 2026."""
    part = text if re.fullmatch(PLAIN, text) else ""
    return Filter(lambda entry: text in json.dumps(entry, ensure_ascii=False).lower(), part=part)


def _tokens(expression: str) -> Iterator[str]:
    for match in TOKEN.finditer(expression.rstrip()):
        if match["other"]:
            raise _fault("filter", f"has a syntax error at character {match.start() + 1}", "put the text in quotes")
        yield match["symbol"] or match["text"]


def _span(symbol: str, text: str) -> tuple[str, str]:
    """Return the time bounds that a comparison implies. A resource whose time equals a bound might not match."""
    try:
        time = utc(text)
    except ApiError:  # a pattern, such as 2026*
        return "", LAST
    return (time if symbol in ("=", ">", ">=") else "", time if symbol in ("=", "<", "<=") else LAST)


def _value(resource: Any, field: str) -> Any:
    """Return the value of a field such as `labels.team`, or None if the field is missing. Labels can contain dots."""
    if not isinstance(resource, Mapping):
        return None
    outer, dot, below = field.partition(".")
    inner = resource.get(outer, resource.get(camel(outer)))
    return resource.get(field, _value(inner, below) if dot else inner)


def _of_metadata(field: str, symbol: str, wanted: str) -> Predicate:
    """Return a comparison with metadata.FIELD.KIND. A metadata value of a different kind is treated as missing."""
    path, _, kind = field.rpartition(".")
    if path == METADATA or kind not in KINDS:
        raise _fault("filter", f'"{field}" doesn\'t end with a value type', f"add one of .{', .'.join(KINDS)}")
    types, form, example = KINDS[kind]
    if (symbol, wanted) != (":", "*") and not re.fullmatch(form, wanted):
        raise _fault("filter", f'"{wanted}" isn\'t a {kind}', f"use a filter such as {field}{symbol}{example}")
    test = _comparing("=" if symbol == ":" else symbol, wanted, as_text=str in types)
    return lambda resource: test(value if type(value := _value(resource, path)) in types else None)


def _comparing(symbol: str, wanted: str, *, as_text: bool = False) -> Callable[[Any], bool]:
    """Return a function that compares a value with `wanted` as a severity, time, number, or string.

    The returned function uses the first of these types to which it can convert both values.
    """
    compare = COMPARISONS[symbol]
    readings: list[tuple[Callable[[Any], Any], Any]] = []
    for read in () if as_text else (SEVERITIES.index, _moment, float):
        with contextlib.suppress(ValueError, OverflowError):
            readings.append((read, read(wanted)))

    def compares(actual: Any) -> bool:
        if actual is None:
            return symbol == "!="
        if symbol in ("=", "!=") and "*" in wanted:
            return _like(actual, wanted) == (symbol == "=")
        for read, value in readings:
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # a number may be too large for a float
                return compare(read(actual), value)
        return compare(_written(actual), wanted)

    return compares


def _has(wanted: str, actual: Any) -> bool:
    """Apply the `:` operator, which searches for a key in a map, a member in a list, or a case-insensitive substring.

    Source: Cloud Logging documentation, "Logging query language", comparison operators, 2026.
    """
    if isinstance(actual, Mapping):
        return wanted in actual or wanted == "*"
    if isinstance(actual, list):
        return any(_like(member, wanted) for member in actual)
    return actual is not None and _like(str(actual).lower(), f"*{wanted.lower()}*")


def _like(actual: Any, pattern: str) -> bool:
    """Return whether a value matches a pattern in which * matches any text."""
    return fnmatch.fnmatchcase(_written(actual), re.sub(r"([\[?])", r"[\1]", pattern))


def _written(value: Any) -> str:
    """Return the text that represents a value in a filter, such as "true" for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def utc(text: str) -> str:
    """Convert a time to the API's format. Raises ApiError if the text isn't a valid time."""
    try:
        return f"{_moment(text).astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    except (ValueError, OverflowError):
        raise _fault(TIME, f'"{text[:50]}" isn\'t a valid time', "use a time such as 2026-11-23T12:30:00Z") from None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _ordered(resources: list[Resource], order: str, fields: Container[str]) -> list[Resource]:
    clauses = [clause.split() for clause in order.split(",", MOST_ORDERS) if clause.strip()]
    if len(clauses) > MOST_ORDERS:
        raise _fault("orderBy", f"has more than {MOST_ORDERS} fields", "remove some fields")
    for clause in reversed(clauses):
        if clause[1:] not in ([], ["asc"], ["desc"]):
            raise _fault("orderBy", f'"{" ".join(clause)}" isn\'t an order', "use an order such as create_time desc")
        key = functools.partial(_key, field=_checked_field(clause[0], fields, "orderBy"))
        resources = sorted(resources, key=key, reverse=clause[1:] == ["desc"])
    return resources


def _checked_field(field: str, fields: Container[str], parameter: str) -> str:
    """Convert the name of a field to camelCase. Raises ApiError if the resource doesn't have this field."""
    first, dot, below = field.partition(".")
    if camel(first) not in fields:
        raise _fault(parameter, f'"{field}" isn\'t a field of this resource', "use a field such as display_name")
    return f"{camel(first)}{dot}{below}"


def _key(resource: Resource, field: str) -> tuple[int, float, str]:
    """Return a sort key that orders missing values first, then numbers, then all other values as text."""
    value = _value(resource, field)
    if isinstance(value, int | float):
        return (1, value, "")
    return (0, 0, "") if value is None else (2, 0, str(value))


def page_size(text: str) -> int:
    if not re.fullmatch("[0-9]{0,9}", text):
        raise _fault("pageSize", f'"{text}" isn\'t a whole number', f"use a number from 1 to {LARGEST_PAGE}")
    return min(int(text or 0) or PAGE_SIZE, LARGEST_PAGE)


def _after(resources: Sequence[Resource], token: str) -> int:
    """Return the index at which a page begins. The token identifies a resource, so new resources don't shift pages."""
    try:
        last = base64.urlsafe_b64decode(token).decode()
        return [*map(_identity, resources)].index(last) + 1 if token else 0
    except ValueError:  # the token isn't base64 or UTF-8, or the resource isn't in the list
        raise _fault("pageToken", "doesn't belong to this list", "request the first page, without a token") from None


def _identity(resource: Resource) -> str:
    """Return the text that identifies a list entry in a page token: a resource's name or a point's step."""
    return str(resource.get("name") or resource.get("step"))


def _fault(parameter: str, fault: str, cure: str) -> ApiError:
    return invalid([Finding(parameter, fault, cure)])
