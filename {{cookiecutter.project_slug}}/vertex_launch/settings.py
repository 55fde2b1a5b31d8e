"""The only cloud settings, vertex.toml: where jobs run, under which account, from which image."""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vertex_launch import catalog
from vertex_launch.catalog import Catalog
from vertex_launch.errors import FaultError, did_you_mean, read_text

# The service sets these in every replica, or sees to it that they are not set.
CONTRACT = re.compile(
    "CLUSTER_SPEC|TF_CONFIG|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|AIP_.*|CLOUD_ML_.*", re.DOTALL
)
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class SettingsError(FaultError):
    """vertex.toml cannot be used; one line for each fault."""


@dataclass(frozen=True)
class Settings:
    """What vertex.toml says."""

    project: str
    region: str
    bucket: str  # its name alone, without gs://
    image: str
    service_account: str = ""  # "" is Vertex AI's own service agent
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)  # image -> its entry point, for this machine
    env: Mapping[str, str | bool] = field(default_factory=dict)  # of replicas here; True is the shell's own value
    prices: Mapping[str, float] = field(default_factory=dict)  # machine or GPU type -> USD per hour, as billed
    machines: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # machine type -> what vertex_launch/ should know

    @property
    def catalog(self) -> Catalog:
        """What Vertex AI offers, with what this file knows better."""
        return catalog.with_own(catalog.standard(), self.machines, self.prices)


def load(path: Path) -> Settings:
    """Read vertex.toml.

    Raises:
        SettingsError: it is missing, broken, incomplete, or has a key or a type of its own.
    """
    if not path.exists():
        raise SettingsError(f"{path}: there is no such file here; run this in the project's folder, where it lies")
    try:
        table = tomllib.loads(read_text(path, SettingsError))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f'{path}: is not TOML: {error}; write lines such as bucket = "name"') from None
    faults = [f"{path}: {fault}" for fault in _faults(table)]
    if faults:
        raise SettingsError(*faults)
    return Settings(**table)


def passing(settings: Settings, names: Sequence[str]) -> Settings:
    """The settings, with more variables of the shell that reach replicas on this machine.

    Raises:
        SettingsError: one of them cannot be passed.
    """
    if faults := [f"--pass-env: {fault}" for name in names for fault in _variable_faults(name)]:
        raise SettingsError(*faults)
    return replace(settings, env={**settings.env, **dict.fromkeys(names, True)})


def _faults(table: Mapping[str, Any]) -> Iterator[str]:
    known = {one.name: one for one in fields(Settings)}
    for key, value in table.items():
        if key not in known:
            yield f'unknown key "{key}"; {_cure(key, value, known)}'
        elif key in TABLES:
            yield from _table_faults(key, value)
        elif not isinstance(value, str):
            yield f'{key}: must be text, not {_kind(value)}; write {key} = "..."'
        elif not value and _required(known[key]):
            yield f'{key}: is empty; write {key} = "..."'
    for key, definition in known.items():
        if key not in table and _required(definition):
            yield f'the key {key} is missing; add a line {key} = "..."'
    if str(table.get("bucket", "")).startswith("gs://"):
        yield "bucket: has gs:// before its name; write the name alone"


def _table_faults(key: str, table: object) -> Iterator[str]:
    meant, example, faults = TABLES[key]
    if not isinstance(table, dict):
        yield f"{key}: must be a table, not {_kind(table)}; write [{key}] and below it {example}"
        return
    for name, value in table.items():
        if isinstance(value, dict) and key != "machines":  # what TOML makes of dots without quotes
            yield f"{key}: the {meant} {name}... is not in quotes; write {example}"
        else:
            yield from faults(name, value)


def _command_faults(image: str, command: object) -> Iterator[str]:
    if not (isinstance(command, list) and command and all(isinstance(word, str) for word in command)):
        yield f'commands: "{image}": must be a list of words; write "{image}" = {COMMAND}'


def _env_faults(name: str, value: object) -> Iterator[str]:
    yield from (f"env: {fault}" for fault in _variable_faults(name))
    if not isinstance(value, str) and value is not True:
        fault = "must be a text, or true for the value that your shell has"
        yield f'env: "{name}": {fault}; write {ENV}, or {name} = true'


def _variable_faults(name: str) -> Iterator[str]:
    if not VARIABLE.fullmatch(name):
        yield f'"{name}" cannot be the name of a variable; use letters, digits and _, and no digit at first'
    elif CONTRACT.fullmatch(name):
        yield f"{name} is for the service alone to set; remove it"


def _price_faults(name: str, price: object) -> Iterator[str]:
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
        yield f'prices: "{name}": must be a number of USD per hour; write "{name}" = 1.25'
    elif name not in {**catalog.standard().machines, **catalog.standard().accelerators}:
        guess = did_you_mean(name, [*catalog.standard().machines, *catalog.standard().accelerators])
        yield f'prices: "{name}" is no machine type or GPU; {guess}'
    elif name in catalog.standard().accelerators:
        with_it = [machine for machine in catalog.standard().machines.values() if name in machine.gpus]
        if all(machine.needs_gpus for machine in with_it):
            example = f", such as {with_it[0].name}" if with_it else ""
            yield f'prices: "{name}" is not billed alone; price the machine types that come with it{example}'


def _machine_faults(name: str, row: object) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f'machines: "{name}": must be a table; write [machines.{name}] and below it vcpus = 4'
        return
    for key, value in row.items():
        if key not in MACHINE_KEYS:
            yield f"machines.{name}: unknown key {key}; {did_you_mean(key, MACHINE_KEYS)}"
        elif key == "gpus":
            yield from _gpu_faults(name, value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            yield f"machines.{name}: {key} must be a number above 0; write {key} = 4"
    if name not in catalog.standard().machines and not {"vcpus", "memory_gb", "gbps"} <= row.keys():
        yield f"machines.{name}: is a new type; write its vcpus, memory_gb and gbps"


def _gpu_faults(name: str, gpus: object) -> Iterator[str]:
    counts = gpus.values() if isinstance(gpus, dict) else [None]
    if not all(isinstance(count, list) and count and all(type(one) is int for one in count) for count in counts):
        yield f"machines.{name}: gpus must have lists of counts; write gpus = {{NVIDIA_L4 = [1, 2]}}"


COMMAND = '["python", "-m", "trainer.task"]'
ENV = 'NAME = "value"'
MACHINE_KEYS = ("vcpus", "memory_gb", "gbps", "fabric_gbps", "gpus")

# The tables: what their keys are, a line of one, and what finds the faults of a line.
TABLES: Mapping[str, tuple[str, str, Callable[[str, object], Iterator[str]]]] = {
    "commands": ("image", f'"IMAGE" = {COMMAND}', _command_faults),
    "env": ("variable", ENV, _env_faults),
    "prices": ("type", '"n1-highcpu-16" = 0.65', _price_faults),
    "machines": ("type", "[machines.c3-standard-8]", _machine_faults),
}


def _required(definition: "Field[Any]") -> bool:
    return definition.default is MISSING and definition.default_factory is MISSING


def _cure(key: str, value: object, known: Mapping[str, object]) -> str:
    if isinstance(value, dict):
        return f"the tables are {', '.join(f'[{name}]' for name in TABLES)}, so remove the line [{key}]"
    return did_you_mean(key, known)


def _kind(value: object) -> str:
    kinds = {str: "text", bool: "a boolean", list: "a list", dict: "a table", int: "a number", float: "a number"}
    return kinds.get(type(value), "a date")
