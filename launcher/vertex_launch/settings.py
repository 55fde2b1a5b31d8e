"""Reads settings such as the project, region, and image from flags, vertex.toml, and environment variables."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vertex_launch.errors import FaultError, Finding, Findings, did_you_mean, read_text
from vertex_launch.facts import aliases, catalog, labels
from vertex_launch.facts.catalog import OWN, Catalog

Texts = Mapping[str, str]

# The keys that a flag or an environment variable can set instead of the file. Google's own variables come last.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "project": ("VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
    "region": ("VERTEX_REGION", "CLOUDSDK_AI_REGION"),
    "bucket": ("VERTEX_BUCKET",),
    "image": ("VERTEX_IMAGE",),
    "service_account": ("VERTEX_SERVICE_ACCOUNT",),
}
REQUIRED = ("project", "region", "bucket", "image")  # required in a file
TEXTS = (*REQUIRED, "service_account", "launcher")
MACHINE = ("vcpus", "memory_gb", "gbps", "fabric_gbps", "gpus")  # the fields of a machine that a user can set
FOLDERS = ("project", "region", "bucket")  # these become folder names in the local Vertex
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9.:_-]*")
LOCAL = {"project": "local-project", "region": "us-central1", "bucket": "local-bucket"}

# The variables that the service controls in every replica: it either sets or removes each one.
CONTRACT = re.compile(
    "CLUSTER_SPEC|TF_CONFIG|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|AIP_.*|CLOUD_ML_.*", re.DOTALL
)
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Settings:
    """The keys of vertex.toml, and the origin of each value that a flag or an environment variable sets.

    If a text key isn't set, its value is "".
    """

    project: str = ""
    region: str = ""
    bucket: str = ""  # the name without gs://
    image: str = ""
    service_account: str = ""  # "" is Vertex AI's own service agent
    launcher: str = ""  # the release that generated the project
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)  # image -> its entry point, for local runs
    env: Mapping[str, str | bool] = field(default_factory=dict)  # of local replicas; True passes the shell's value
    labels: Texts = field(default_factory=dict)  # of submitted jobs
    prices: Mapping[str, float] = field(default_factory=dict)  # machine or GPU type -> USD per hour, as billed
    machines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # type -> fields of catalog.Machine
    rules: Mapping[str, Any] = field(default_factory=dict)  # code -> severity, as vertex_launch/rules/house.py reads it
    origins: Mapping[str, str] = field(default_factory=dict)  # key -> origin of a value from outside vertex.toml

    @property
    def catalog(self) -> Catalog:
        """The catalog of facts about Vertex AI. Prices and machines in vertex.toml override the catalog's values."""
        return catalog.with_own(catalog.standard(), self.machines, self.prices)

    @property
    def parent(self) -> str:
        """The name of the parent resource of all jobs: projects/PROJECT/locations/REGION."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def host(self) -> str:
        """The hostname of the Vertex AI API in the region."""
        several = "-" not in self.region  # us and eu. Source: google-cloud-aiplatform 2.7.0, utils/__init__.py
        return f"aiplatform.{self.region}.rep.googleapis.com" if several else f"{self.region}-aiplatform.googleapis.com"

    def origin(self, key: str) -> str:
        """Return the origin of a setting's value, such as vertex.toml, --region, or VERTEX_REGION."""
        return self.origins.get(key, OWN)


def load(path: Path, environ: Texts | None = None, flags: Texts | None = None) -> Settings:
    """Return the settings. Flags override values in the file, and values in the file override environment variables.

    Raises FaultError if a setting isn't valid.
    """
    table = _table(path) if path.exists() else {}
    sources = {key: source for key in VARIABLES for source in _sources(key, flags or {}, environ or {}, table)[:1]}
    settings = table | {key: value for key, (_, value) in sources.items()}
    origins = {key: origin for key, (origin, _) in sources.items()}
    findings = [*_findings(settings)]
    missing = [key for key in REQUIRED if key not in settings] if path.exists() else []
    findings += [Finding("", f"the key {key} is missing", f'add {key} = "..."') for key in missing]
    if findings:
        places = {key: f"{path}: {key}" for key in table} | origins | {"": str(path)}
        raise FaultError(*(replace(finding, place=places[finding.place]) for finding in findings))
    return Settings(**settings, origins=origins)


def require(settings: Settings, *keys: str) -> None:
    """Raise FaultError if any of these settings has no value. The error message explains how to set the value."""
    if unknown := [key for key in keys if not getattr(settings, key)]:
        cure = 'add --{0}, set VERTEX_{1}, or write {0} = "..." in ' + OWN
        raise FaultError(*(Finding("", f"the {key} isn't set", cure.format(key, key.upper())) for key in unknown))


def for_local(settings: Settings) -> Settings:
    """Return settings for the local Vertex: missing values get defaults, and your organization's rules are removed."""
    project, region, bucket = (getattr(settings, key) or name for key, name in LOCAL.items())
    return replace(settings, project=project, region=region, bucket=bucket, rules={})


def passing(settings: Settings, names: Sequence[str]) -> Settings:
    """Return settings that also pass the shell variables `names` to local replicas.

    Raises FaultError if the name of a variable isn't allowed.
    """
    passed = dict.fromkeys(names, True)
    if findings := [replace(finding, place="--pass-env") for name in passed for finding in _of_variable(name)]:
        raise FaultError(*findings)
    return replace(settings, env={**settings.env, **passed})


def _table(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with thousands of digits
        raise FaultError(f'{path}: the file is not valid TOML: {error}; use lines such as bucket = "name"') from None


def _sources(key: str, flags: Texts, environ: Texts, file: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and value of each flag and environment variable that sets a key, in order of precedence.

    If the file sets the key, ignore environment variables.
    """
    variables = [(name, environ.get(name)) for name in VARIABLES[key] if key not in file]
    both = ((f"--{key.replace('_', '-')}", flags.get(key)), *variables)
    return [(origin, value) for origin, value in both if value]


def _findings(toml: Mapping[str, Any]) -> Findings:
    """Yield the findings for vertex.toml. The location of a finding is a key, or "" for the whole file."""
    for key, value in toml.items():
        if key in TABLES:
            yield from _of_table(key, value)
        elif key not in TEXTS:
            tables = ", ".join(f"[{name}]" for name in TABLES)
            cure = f"remove [{key}]; the valid tables are {tables}"
            meant = did_you_mean(key, [*TEXTS, *TABLES])
            yield Finding("", f'unknown key "{key}"', cure if isinstance(value, dict) else meant)
        elif not isinstance(value, str) or not (value or key == "service_account"):
            fault = "is empty" if value == "" else f"must be text, not {_kind(value)}"
            yield Finding(key, fault, f'write {key} = "..."')
        elif key == "bucket" and value.startswith("gs://"):
            yield Finding(key, "starts with gs://", "write only the bucket name")
        elif key in FOLDERS and not NAME.fullmatch(value):
            yield Finding(key, f"{json.dumps(value)} isn't a {key} name", "use only letters, digits, -, and _")


def _of_table(key: str, value: Any) -> Findings:
    table = TABLES[key]
    if not isinstance(value, dict):
        cure = f"write [{key}], followed by lines such as {table.line.format(table.names)}"
        yield Finding(key, f"must be a table, not {_kind(value)}", cure)
        return
    for name, inner in value.items():
        if isinstance(inner, dict) and key not in ("labels", "machines"):  # TOML reads dots without quotes as tables
            fault = f"the {table.names.lower()} {name}... isn't in quotes"
            yield Finding(key, fault, f"write {table.line.format(table.names)}")
            continue
        if not table.fits(inner):
            yield Finding(key, f'"{name}": must be {table.wanted}', f"write {table.line.format(name)}")
        elif key == "machines":
            yield from _of_machine(name, inner)
        elif key == "labels":
            yield from labels.of_label(name, inner)
        if key == "env":
            yield from _of_variable(name)
        if key == "prices":
            yield from _of_price(name)
    if key == "labels":
        yield from labels.too_many(value)


def _of_variable(name: str) -> Findings:
    if not VARIABLE.fullmatch(name):
        fault = f'"{name}" is not a valid variable name'
        yield Finding("env", fault, "use only letters, digits, and _, and start the name with a letter or _")
    elif CONTRACT.fullmatch(name):
        yield Finding("env", f"only the service can set {name}", "remove it")


def _of_price(name: str) -> Findings:
    """Yield a finding if the name is neither a machine type nor a GPU type that is billed separately."""
    machines, accelerators = catalog.standard().machines, catalog.standard().accelerators
    with_it = [machine for machine in machines.values() if name in machine.gpus]
    if name not in {**machines, **accelerators}:
        guess = aliases.accelerator(name, accelerators)
        cure = f"did you mean {guess}?" if guess else aliases.machine_cure(name, catalog.standard())
        yield Finding("prices", f'"{name}" is not a known machine type or GPU', cure)
    elif name in accelerators and all(machine.needs_gpus for machine in with_it):
        example = f", such as {with_it[0].name}" if with_it else ""
        cure = f"set the price of a machine type that includes this GPU{example}"
        yield Finding("prices", f'"{name}" is not billed separately', cure)


def _of_machine(name: str, row: Mapping[str, Any]) -> Findings:
    for key, value in row.items():
        if key not in MACHINE:
            yield Finding("machines", f'"{name}": unknown key {key}', did_you_mean(key, MACHINE))
        elif key != "gpus" and not (_is_amount(value) and value):
            yield Finding("machines", f'"{name}": {key} must be a number above 0', f"write {key} = 4")
        elif key == "gpus" and not (isinstance(value, dict) and all(_is_list(item, int) for item in value.values())):
            cure = "write gpus = {NVIDIA_L4 = [1, 2]}"
            yield Finding("machines", f'"{name}": gpus must contain lists of counts', cure)
    if name not in catalog.standard().machines and not row.keys() >= {"vcpus", "memory_gb", "gbps"}:
        yield Finding("machines", f'"{name}" is a new type', "set its vcpus, memory_gb, and gbps")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is kind for item in value)


@dataclass(frozen=True)
class _Table:
    names: str  # noun for its keys
    line: str  # an example line for a name
    wanted: str  # the expected kind of value
    fits: Callable[[Any], bool]


WORDS = '"{}" = ["python", "-m", "trainer.task"]'
TABLES = {
    "commands": _Table("IMAGE", WORDS, "a list of strings", lambda value: _is_list(value, str)),
    "env": _Table(
        "VARIABLE",
        "{} = true",
        "text, or true to pass your shell's value",
        lambda value: isinstance(value, str) or value is True,
    ),
    "labels": _Table("LABEL", '{} = "vision"', "text", lambda value: isinstance(value, str)),
    "prices": _Table("TYPE", '"{}" = 1.25', "a number in USD per hour", _is_amount),
    "machines": _Table("TYPE", "[machines.{}]", "a table", lambda value: isinstance(value, dict)),
    "rules": _Table("CODE", '{} = "error"', "", lambda value: True),
}


def _kind(value: object) -> str:
    kinds = {str: "text", bool: "a boolean", list: "a list", dict: "a table", int: "a number", float: "a number"}
    return kinds.get(type(value), "a date")
