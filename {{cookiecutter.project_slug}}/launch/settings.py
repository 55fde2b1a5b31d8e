"""The only cloud settings, vertex.toml: where jobs run, under which account, from which image."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from launch.faults import FaultError, did_you_mean, read_text


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


def load(path: Path) -> Settings:
    """Read vertex.toml.

    Raises:
        SettingsError: it is missing, broken, incomplete, or has a key or a type of its own.
    """
    try:
        table = tomllib.loads(read_text(path, SettingsError))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f'{path}: is not TOML: {error}; write lines such as bucket = "name"') from None
    faults = [f"{path}: {fault}" for fault in _faults(table)]
    if faults:
        raise SettingsError(*faults)
    return Settings(**table)


def _faults(table: Mapping[str, Any]) -> Iterator[str]:
    known = {one.name: one for one in fields(Settings)}
    for key, value in table.items():
        if key not in known:
            yield f'unknown key "{key}"; {_cure(key, value, known)}'
        elif key == "commands":
            yield from _command_faults(value)
        elif not isinstance(value, str):
            yield f'{key}: must be text, not {_kind(value)}; write {key} = "..."'
        elif not value and _required(known[key]):
            yield f'{key}: is empty; write {key} = "..."'
    for key, definition in known.items():
        if key not in table and _required(definition):
            yield f'the key {key} is missing; add a line {key} = "..."'
    if str(table.get("bucket", "")).startswith("gs://"):
        yield "bucket: has gs:// before its name; write the name alone"


def _command_faults(commands: object) -> Iterator[str]:
    example = '["python", "-m", "trainer.task"]'
    if not isinstance(commands, dict):
        yield f'commands: must be a table, not {_kind(commands)}; write [commands] and below it "IMAGE" = {example}'
        return
    for image, command in commands.items():
        if isinstance(command, dict):  # what TOML makes of dots without quotes
            yield f'commands: the image {image}... is not in quotes; write "IMAGE" = {example}'
        elif not (isinstance(command, list) and command and all(isinstance(word, str) for word in command)):
            yield f'commands: "{image}": must be a list of words; write "{image}" = {example}'


def _required(definition: "Field[Any]") -> bool:
    return definition.default is MISSING and definition.default_factory is MISSING


def _cure(key: str, value: object, known: Mapping[str, object]) -> str:
    if isinstance(value, dict):
        return f"the only table is [commands], so remove the line [{key}]"
    return did_you_mean(key, known)


def _kind(value: object) -> str:
    kinds = {str: "text", bool: "a boolean", list: "a list", dict: "a table", int: "a number", float: "a number"}
    return kinds.get(type(value), "a date")
