"""The only cloud settings, vertex.toml: where jobs run, under which account, from which image."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
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
    known = {field.name: field.default for field in fields(Settings)}
    for key, value in table.items():
        if key not in known:
            yield f'unknown key "{key}"; {_cure(key, value, known)}'
        elif not isinstance(value, str):
            yield f'{key}: must be text, not {_kind(value)}; write {key} = "..."'
        elif not value and known[key] is MISSING:
            yield f'{key}: is empty; write {key} = "..."'
    for key, default in known.items():
        if key not in table and default is MISSING:
            yield f'the key {key} is missing; add a line {key} = "..."'
    if str(table.get("bucket", "")).startswith("gs://"):
        yield "bucket: has gs:// before its name; write the name alone"


def _cure(key: str, value: object, known: Mapping[str, object]) -> str:
    if isinstance(value, dict):
        return f"the file has no tables, so remove the line [{key}]"
    return did_you_mean(key, known)


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", list: "a list", dict: "a table", int: "a number", float: "a number"}
    return kinds.get(type(value), "a date")
