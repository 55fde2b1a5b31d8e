"""Where jobs run, as whom, and from which image: from flags, from vertex.toml, or from the environment."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from vertex_launch import catalog
from vertex_launch.catalog import OWN, Catalog
from vertex_launch.errors import FaultError, did_you_mean, read_text

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
        raise ValueError(f'"{name}" cannot be the name of a variable; use letters, digits and _, and no digit at first')
    if CONTRACT.fullmatch(name):
        raise ValueError(f"{name} is for the service alone to set; remove it")
    return name


def _bucket(name: str) -> str:
    if name.startswith("gs://"):
        raise ValueError("has gs:// before its name; write the name alone")
    return name


def _true(value: bool) -> bool:
    assert value, "a variable that is not to be passed has no line"
    return value


def _priced(name: str) -> str:
    """A machine type or a GPU that has a price of its own."""
    machines, accelerators = catalog.standard().machines, catalog.standard().accelerators
    if name not in {**machines, **accelerators}:
        raise ValueError(f'"{name}" is no machine type or GPU; {did_you_mean(name, [*machines, *accelerators])}')
    with_it = [machine for machine in machines.values() if name in machine.gpus]
    if name in accelerators and all(machine.needs_gpus for machine in with_it):
        example = f", such as {with_it[0].name}" if with_it else ""
        raise ValueError(f'"{name}" is not billed alone; price the machine types that come with it{example}')
    return name


Text = Annotated[str, Field(min_length=1)]
Figure = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
ShellsOwn = Annotated[bool, Field(strict=True), AfterValidator(_true)]
Command = Annotated[list[str], Field(min_length=1)]


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
    # Image -> its entry point, for this machine.
    commands: Mapping[str, Command] = field(default_factory=dict)
    # Of replicas here; True is the shell's own value.
    env: Mapping[Annotated[str, AfterValidator(_variable)], str | ShellsOwn] = field(default_factory=dict)
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
    faults = [*_faults(settings)]
    missing = [key for key in REQUIRED if key not in settings] if path.exists() else []
    faults += [("", f'the key {key} is missing; add a line {key} = "..."') for key in missing]
    if faults:
        places = {key: f"{path}: {key}" for key in table} | origins | {"": str(path)}
        raise FaultError(*(f"{places[key]}: {fault}" for key, fault in faults))
    return Settings(**settings, origins=origins)


def require(settings: Settings, *keys: str) -> None:
    """Raise a FaultError that says how to give the values that are not known, if any is not."""
    if unknown := [key for key in keys if not getattr(settings, key)]:
        cure = 'add --{0}, set VERTEX_{1}, or write {0} = "..." in ' + OWN
        raise FaultError(*(f"the {key} is not known; {cure.format(key, key.upper())}" for key in unknown))


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
    if faults := [f"--pass-env: {fault}" for _, fault in _faults({"env": passed})]:
        raise FaultError(*faults)
    return replace(settings, env={**settings.env, **passed})


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


def _faults(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each fault with its key, "" for the file as a whole."""
    try:
        TypeAdapter(VertexToml).validate_python(table)
    except ValidationError as error:
        yield from dict.fromkeys(_fault(one, table) for one in error.errors(include_url=False))
    machines = table.get("machines")
    for name, row in machines.items() if isinstance(machines, dict) else ():
        known = name in catalog.standard().machines or not isinstance(row, dict)
        if not (known or {"vcpus", "memory_gb", "gbps"} <= row.keys()):
            yield "machines", f'"{name}" is a new type; write its vcpus, memory_gb and gbps'


def _fault(error: ErrorDetails, table: Mapping[str, Any]) -> tuple[str, str]:
    """One of pydantic's findings, as the key and a sentence of fault and cure."""
    key, *names = map(str, error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        return "", f'unknown key "{key}"; {_known(key, table[key])}'
    if names:
        return key, _entry_fault(error, key, names, table[key][names[0]])
    if key in TABLES:
        meaning, line, _ = TABLES[key]
        return key, f"must be a table, not {_kind(table[key])}; write [{key}] and below it {line.format(meaning)}"
    if error["type"] == "value_error":
        return key, str(error["ctx"]["error"])
    wrong = "is empty" if error["type"] == "string_too_short" else f"must be text, not {_kind(table[key])}"
    return key, f'{wrong}; write {key} = "..."'


def _entry_fault(error: ErrorDetails, key: str, names: Sequence[str], value: object) -> str:
    """The same of a line in one of the tables: its name, and for a machine what is in the line."""
    name, inner, (meaning, line, wanted) = names[0], "".join(names[1:2]), TABLES[key]
    if isinstance(value, dict) and key != "machines":  # what TOML makes of dots without quotes
        return f"the {meaning.lower()} {name}... is not in quotes; write {line.format(meaning)}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if not (key == "machines" and inner):
        return f'"{name}": must be {wanted}; write {line.format(name)}'
    if error["type"] == "extra_forbidden":
        return f'"{name}": unknown key {inner}; {did_you_mean(inner, MachineRow.__annotations__)}'
    if inner == "gpus":
        return f'"{name}": gpus must have lists of counts; write gpus = {{NVIDIA_L4 = [1, 2]}}'
    return f'"{name}": {inner} must be a number above 0; write {inner} = 4'


# The tables: what their keys are, a line, and what stands in it.
TABLES = {
    "commands": ("IMAGE", '"{}" = ["python", "-m", "trainer.task"]', "a list of words"),
    "env": ("VARIABLE", "{} = true", "a text, or true for the value that your shell has"),
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
