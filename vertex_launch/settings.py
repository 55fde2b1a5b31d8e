"""Where jobs run, as whom, and from which image: from flags, from vertex.toml, or from the environment."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from vertex_launch import catalog
from vertex_launch import labels as of_jobs
from vertex_launch.catalog import OWN, Catalog
from vertex_launch.errors import FaultError, Finding, Findings, did_you_mean, read_text

# The keys that a flag or a variable may give in place of the file; Google's own variables come last.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "project": ("VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
    "region": ("VERTEX_REGION", "CLOUDSDK_AI_REGION"),
    "bucket": ("VERTEX_BUCKET",),
    "image": ("VERTEX_IMAGE",),
    "service_account": ("VERTEX_SERVICE_ACCOUNT",),
}
REQUIRED = ("project", "region", "bucket", "image")  # in a file
LOCAL = {"project": "local-project", "region": "us-central1", "bucket": "local-bucket"}

# The service sets these in every replica, or sees to it that they are not set.
CONTRACT = re.compile(
    "CLUSTER_SPEC|TF_CONFIG|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|AIP_.*|CLOUD_ML_.*", re.DOTALL
)
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def _variable(name: str) -> str:
    if not VARIABLE.fullmatch(name):
        fault = f'"{name}" cannot be the name of a variable'
        raise FaultError(Finding("", fault, "use letters, digits and _, and no digit at first"))
    if CONTRACT.fullmatch(name):
        raise FaultError(Finding("", f"{name} is for the service alone to set", "remove it"))
    return name


def _bucket(name: str) -> str:
    if name.startswith("gs://"):
        raise FaultError(Finding("", "has gs:// before its name", "write the name alone"))
    return name


def _true(value: bool) -> bool:
    assert value, "a variable that is not to be passed has no line"
    return value


def _priced(name: str) -> str:
    """A machine type or a GPU that has a price of its own."""
    machines, accelerators = catalog.standard().machines, catalog.standard().accelerators
    if name not in {**machines, **accelerators}:
        cure = did_you_mean(name, [*machines, *accelerators])
        raise FaultError(Finding("", f'"{name}" is no machine type or GPU', cure))
    with_it = [machine for machine in machines.values() if name in machine.gpus]
    if name in accelerators and all(machine.needs_gpus for machine in with_it):
        example = f", such as {with_it[0].name}" if with_it else ""
        raise FaultError(
            Finding("", f'"{name}" is not billed alone', f"price the machine types that come with it{example}")
        )
    return name


Text = Annotated[str, Field(min_length=1)]
Figure = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
ShellsOwn = Annotated[bool, Field(strict=True), AfterValidator(_true)]
Command = Annotated[list[str], Field(min_length=1)]
Labels = Mapping[Annotated[str, AfterValidator(of_jobs.key)], Annotated[str, AfterValidator(of_jobs.value)]]


class MachineRow(TypedDict, total=False):
    """What the user knows of a machine type."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    vcpus: Figure
    memory_gb: Figure
    gbps: Figure
    fabric_gbps: Figure
    gpus: dict[str, Annotated[list[int], Field(min_length=1)]]


@dataclass(frozen=True)
class VertexToml:
    """The keys of vertex.toml; "" where nobody gave a value."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    project: Text = ""
    region: Text = ""
    bucket: Annotated[Text, AfterValidator(_bucket)] = ""  # its name alone, without gs://
    image: Text = ""
    service_account: str = ""  # "" is Vertex AI's own service agent
    launcher: Text = ""  # the release that made the project
    # Image -> its entry point, for this machine.
    commands: Mapping[str, Command] = field(default_factory=dict)
    # Of replicas here; True is the shell's own value.
    env: Mapping[Annotated[str, AfterValidator(_variable)], str | ShellsOwn] = field(default_factory=dict)
    # Of jobs that are sent.
    labels: Annotated[Labels, AfterValidator(of_jobs.counted)] = field(default_factory=dict)
    # Machine or GPU type -> USD per hour, as billed.
    prices: Mapping[Annotated[str, AfterValidator(_priced)], Usd] = field(default_factory=dict)
    machines: Mapping[str, MachineRow] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings(VertexToml):
    """What is known of the cloud, and who said it."""

    origins: Mapping[str, str] = field(default_factory=dict)  # key -> where its value was given, unless in vertex.toml

    @property
    def catalog(self) -> Catalog:
        """What Vertex AI offers, with what this file knows better."""
        return catalog.with_own(catalog.standard(), self.machines, self.prices)

    def origin(self, key: str) -> str:
        """Where a value was given: vertex.toml, --region, or VERTEX_REGION."""
        return self.origins.get(key, OWN)


def load(path: Path, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None) -> Settings:
    """What the flags say, else the file, else the environment; without a file, much may be unknown.

    Raises:
        FaultError: the file is broken, incomplete, or has a key or a type of its own.
    """
    table = _table(path) if path.exists() else {}
    told, origins = _told(flags or {}, environ or {}, table)
    settings = {**table, **told}
    found = [*_findings(settings)]
    missing = [key for key in REQUIRED if key not in settings] if path.exists() else []
    found += [Finding("", f"the key {key} is missing", f'add a line {key} = "..."') for key in missing]
    if found:
        places = {key: f"{path}: {key}" for key in table} | origins | {"": str(path)}
        raise FaultError(*(replace(one, place=places[one.place]) for one in found))
    return Settings(**settings, origins=origins)


def require(settings: Settings, *keys: str) -> None:
    """Raise a FaultError that says how to give the values that are not known, if any is not."""
    if unknown := [key for key in keys if not getattr(settings, key)]:
        cure = 'add --{0}, set VERTEX_{1}, or write {0} = "..." in ' + OWN
        raise FaultError(*(Finding("", f"the {key} is not known", cure.format(key, key.upper())) for key in unknown))


def for_local(settings: Settings) -> Settings:
    """The settings for the local Vertex, where any name of a project, a region and a bucket will do."""
    project, region, bucket = (getattr(settings, key) or name for key, name in LOCAL.items())
    return replace(settings, project=project, region=region, bucket=bucket)


def passing(settings: Settings, names: Sequence[str]) -> Settings:
    """The settings, with more variables of the shell that reach replicas on this machine.

    Raises:
        FaultError: one of them cannot be passed.
    """
    passed = dict.fromkeys(names, True)
    if found := [replace(one, place="--pass-env") for one in _findings({"env": passed})]:
        raise FaultError(*found)
    return replace(settings, env={**settings.env, **passed})


def typed_labels(words: Sequence[str]) -> dict[str, str]:
    """Read labels that are written KEY=VALUE.

    Raises:
        FaultError: one of them is not, or Google would refuse it.
    """
    if found := [Finding("--label", f"{word} has no =", "write KEY=VALUE") for word in words if "=" not in word]:
        raise FaultError(*found)
    labels = {key: value for key, _, value in (word.partition("=") for word in words)}
    if found := [replace(one, place="--label") for one in _findings({"labels": labels})]:
        raise FaultError(*found)
    return labels


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise FaultError(f'{path}: is not TOML: {error}; write lines such as bucket = "name"') from None


def _told(
    flags: Mapping[str, str], environ: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """What flags say, and the environment where the file says nothing; and which flag or variable it was."""
    told, origins = {}, {}
    for key, names in VARIABLES.items():
        variables = {name: environ.get(name) for name in names if key not in file}
        sources = {f"--{key.replace('_', '-')}": flags.get(key), **variables}
        for origin, value in [(origin, value) for origin, value in sources.items() if value][:1]:
            told[key], origins[key] = value, origin
    return told, origins


def _findings(table: Mapping[str, Any]) -> Findings:
    """What is wrong; the place is a key, "" for the file as a whole."""
    try:
        TypeAdapter(VertexToml).validate_python(table)
    except ValidationError as error:
        yield from dict.fromkeys(_finding(one, table) for one in error.errors(include_url=False))
    machines = table.get("machines")
    for name, row in machines.items() if isinstance(machines, dict) else ():
        known = name in catalog.standard().machines or not isinstance(row, dict)
        if not (known or {"vcpus", "memory_gb", "gbps"} <= row.keys()):
            yield Finding("machines", f'"{name}" is a new type', "write its vcpus, memory_gb and gbps")


def _finding(error: ErrorDetails, table: Mapping[str, Any]) -> Finding:
    """What pydantic found, with a cure."""
    key, *names = map(str, error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        return Finding("", f'unknown key "{key}"', _known(key, table[key]))
    # What TOML makes of dots without quotes; labels have no dots, machines are tables.
    if names and isinstance(table[key][names[0]], dict) and key not in ("labels", "machines"):
        meaning, line, _ = TABLES[key]
        return Finding(key, f"the {meaning.lower()} {names[0]}... is not in quotes", f"write {line.format(meaning)}")
    if error["type"] == "value_error":
        own: FaultError = error["ctx"]["error"]
        return replace(own.findings[0], place=key)
    if names:
        return _in_table(error, key, *names[:2])
    if key in TABLES:
        meaning, line, _ = TABLES[key]
        cure = f"write [{key}] and below it {line.format(meaning)}"
        return Finding(key, f"must be a table, not {_kind(table[key])}", cure)
    wrong = "is empty" if error["type"] == "string_too_short" else f"must be text, not {_kind(table[key])}"
    return Finding(key, wrong, f'write {key} = "..."')


def _in_table(error: ErrorDetails, key: str, name: str, inner: str = "") -> Finding:
    """The same of a line in one of the tables; `inner` is a machine's key."""
    _, line, wanted = TABLES[key]
    if not (key == "machines" and inner):
        return Finding(key, f'"{name}": must be {wanted}', f"write {line.format(name)}")
    if error["type"] == "extra_forbidden":
        return Finding(key, f'"{name}": unknown key {inner}', did_you_mean(inner, MachineRow.__annotations__))
    if inner == "gpus":
        return Finding(key, f'"{name}": gpus must have lists of counts', "write gpus = {NVIDIA_L4 = [1, 2]}")
    return Finding(key, f'"{name}": {inner} must be a number above 0', f"write {inner} = 4")


# The tables: what their keys are, a line, and what stands in it.
TABLES = {
    "commands": ("IMAGE", '"{}" = ["python", "-m", "trainer.task"]', "a list of words"),
    "env": ("VARIABLE", "{} = true", "a text, or true for the value that your shell has"),
    "labels": ("LABEL", '{} = "vision"', "a text"),
    "prices": ("TYPE", '"{}" = 1.25', "a number of USD per hour"),
    "machines": ("TYPE", "[machines.{}]", "a table"),
}


def _known(key: str, value: object) -> str:
    if isinstance(value, dict):
        return f"the tables are {', '.join(f'[{name}]' for name in TABLES)}, so remove the line [{key}]"
    return did_you_mean(key, [one.name for one in fields(VertexToml)])


def _kind(value: object) -> str:
    kinds = {str: "text", bool: "a boolean", list: "a list", dict: "a table", int: "a number", float: "a number"}
    return kinds.get(type(value), "a date")
