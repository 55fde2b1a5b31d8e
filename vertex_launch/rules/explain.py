"""What the rules say of themselves: one at length, or all as a page."""

from typing import Any

from vertex_launch.catalog import Catalog
from vertex_launch.errors import FaultError, nearest
from vertex_launch.rules import RULES
from vertex_launch.rules.rule import Rule

PAGE = """\
# The rules

What `vertex-launch check` finds in a job file. An error stands on a documented fact, and the local Vertex refuses the
same; what is only inferred or uncertain is a warning, and so is what the service would take but you may not want.
`vertex-launch check --explain CODE` says what would happen without the rule, and without a code it lists all.

This page is generated, by `python -m vertex_launch.rules`. The facts are of {compiled}.

{count} rules:

| Code | Severity | Certainty | Rule | Source |
|---|---|---|---|---|
{rows}
"""

EXPLANATION = """\
{rule.code}: {rule.text}

severity   {rule.severity}
certainty  {rule.certainty}
otherwise  {rule.consequence}
source     {source}"""


def explain(code: str, catalog: Catalog) -> str:
    """One rule in full; raises FaultError if there is no such rule."""
    if code not in RULES:
        guess = nearest(code, RULES)
        cure = f"did you mean {guess}?" if guess else "check --explain without a code lists all"
        raise FaultError(f'no rule is called "{code}"; {cure}')
    return EXPLANATION.format(rule=RULES[code], source=sources(RULES[code], catalog))


def overview() -> str:
    """All rules, a line each, below a line that says what they are."""
    width = max(map(len, RULES))
    lines = [f"{rule.code:{width}}  {rule.severity:7}  {rule.text}" for rule in RULES.values()]
    return "\n".join(["What must hold of a job, and whether it is an error or a warning if it does not:", *lines])


def page(catalog: Catalog) -> str:
    """All rules as a table in Markdown."""
    rows = (
        f"| `{rule.code}` | {rule.severity} | {rule.certainty} | {rule.text} | {sources(rule, catalog)} |"
        for rule in RULES.values()
    )
    return PAGE.format(compiled=catalog.compiled, count=len(RULES), rows="\n".join(rows))


def sources(rule: Rule[Any], catalog: Catalog) -> str:
    """The pages and files that a rule rests on."""
    return "; ".join(catalog.sources.get(source, source) for source in rule.sources)
