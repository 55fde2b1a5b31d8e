"""Explains a rule, and generates the page that lists all rules and fields.

If a google-cloud-aiplatform release adds a field, launcher/tests/test_fields.py fails until fields.yaml lists the
field.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from google.cloud.aiplatform_v1 import types
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from vertex_launch.errors import FaultError
from vertex_launch.facts.catalog import OWN, Catalog, read
from vertex_launch.job.proto_validation import message_in, messages_below, short_name
from vertex_launch.rules import RULES, applied, house
from vertex_launch.rules.rule import Rule
from vertex_launch.settings import Settings

# API message -> its fields -> the codes of the rules, or a key of WORDS if no rule checks the field.
FIELDS: Mapping[str, Mapping[str, list[str] | str]] = read(Path(__file__).with_name("fields.yaml"))
WORDS = {
    "FORM": "Only `form` checks this field, because the documentation doesn't state other limits.",
    "OUTPUT": "No rule checks this field, because only Vertex AI sets it.",
    "HERE": "Job files don't contain this field. The local Vertex checks it in requests.",
    "BELOW": "The rules are in the table for the message type of this field.",
}

EXPLANATION = """\
{rule.code}: {rule.text}

severity   {rule.severity}{changed}
certainty  {rule.certainty}
otherwise  {rule.consequence}
source     {source}"""


def explain(code: str, settings: Settings) -> str:
    """Return a rule's full description. Raises FaultError if the rule doesn't exist."""
    rules = applied(settings)
    if code not in rules:
        raise FaultError("; ".join(house.unknown(code, rules)))
    changed = f", set under [rules] in {OWN}" if code in settings.rules else ""
    return EXPLANATION.format(rule=rules[code], changed=changed, source=sources(rules[code], settings.catalog))


def overview(settings: Settings) -> str:
    """Return a heading and a list of all rules. Each line contains one rule."""
    rules = applied(settings)
    width = max(map(len, rules))
    lines = [f"{rule.code:{width}}  {rule.severity:7}  {rule.text}" for rule in rules.values()]
    return "\n".join(["Rules for jobs, with the severity of their findings:", *lines])


def page(catalog: Catalog) -> str:
    """Return the Markdown page that lists all rules and fields."""
    rows = (
        f"| `{rule.code}` | {rule.severity} | {rule.certainty} | {rule.text} | {sources(rule, catalog)} |"
        for rule in RULES.values()
    )
    page = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return page.format(compiled=catalog.compiled, count=len(RULES), rows="\n".join(rows), fields="\n".join(_tables()))


def sources(rule: Rule, catalog: Catalog) -> str:
    """Return a semicolon-separated list of the pages and files on which a rule is based."""
    return "; ".join(catalog.sources.get(source, source) for source in rule.sources)


def fields_of_api() -> dict[str, list[str]]:
    """Return the field names of TrainingPipeline and of the API messages in job files, keyed by message."""
    kinds = (types.CustomJobSpec, types.HyperparameterTuningJob, types.TrainingPipeline)
    messages = messages_below([kind.pb(kind()).DESCRIPTOR for kind in kinds], _in_job_file)
    return {short_name(message): [field.json_name for field in message.fields] for message in messages}


def _in_job_file(field: FieldDescriptor) -> Descriptor | None:
    rules = FIELDS.get(short_name(field.containing_type), {}).get(field.json_name)
    return None if rules in ("OUTPUT", "HERE") else message_in(field)


def _tables() -> Iterator[str]:
    """Yield the lines of Markdown tables. Each table lists the fields and rules of one API message."""
    for message, fields in fields_of_api().items():
        yield from ("", f"### {message}", "", "| Field | Rules |", "|---|---|")
        for field in fields:
            rules = FIELDS[message][field]
            words = WORDS[rules] if isinstance(rules, str) else ", ".join(f"`{code}`" for code in rules)
            yield f"| {field} | {words} |"
