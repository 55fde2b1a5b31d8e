"""The options that commands share: each command is a frozen value, whose fields are its options."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from vertex_launch.job.state_dir import StateDir
from vertex_launch.settings import VARIABLES, Settings, load

SETTINGS = Path("vertex.toml")
STATE_DIR = "VERTEX_STATE_DIR"
UNITS = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")
STATE = f"Folder of the local Vertex's state, by default {StateDir.folder}; or set {STATE_DIR}."

JobFile = Annotated[Path, Parameter(help="A job file.")]
StateFolder = Annotated[Path, Parameter(show_default=False, help=STATE)]
# Words behind a lone --, which cli/main.py fills in.
Passed = Annotated[tuple[str, ...], Parameter(parse=False)]


def _stand_in(meaning: str, variable: str) -> Any:
    return Parameter(help=f"{meaning}; or set {variable}.", group=Group(f"In place of {SETTINGS}"))


Bucket = Annotated[str, _stand_in("Bucket for data and results, without gs://", "VERTEX_BUCKET")]
Image = Annotated[str, _stand_in("Your container image", "VERTEX_IMAGE")]
Project = Annotated[str, _stand_in("ID of the Google Cloud project", "VERTEX_PROJECT")]


def seconds(_: type, words: Sequence[Any]) -> float:
    """Return the seconds of a word such as 90s, 20m or 1.5h; raises ValueError for others."""
    text = words[0].value
    if not (match := DURATION.fullmatch(text)):
        raise ValueError(f'"{text}" is no time; write such as 90s, 20m or 1.5h')
    return float(match[1]) * UNITS[match[2]]


def state_dir() -> StateDir:
    """The state of the local Vertex, unless --state-dir names another folder."""
    return StateDir(Path(os.environ.get(STATE_DIR) or StateDir.folder))


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """Fields that bear the name of a setting stand in for vertex.toml."""

    def settings(self) -> Settings:
        """Return the values of these options, else of vertex.toml, else of the environment."""
        return load(SETTINGS, os.environ, {key: getattr(self, key, "") for key in VARIABLES})


@dataclass(frozen=True, kw_only=True)
class ProjectOptions(StandIns):
    project: Project = ""
    region: Annotated[str, _stand_in("Region of the machines", "VERTEX_REGION")] = ""


@dataclass(frozen=True, kw_only=True)
class SettingsOptions(ProjectOptions):
    """All of vertex.toml, on every command that reads a job file."""

    bucket: Bucket = ""
    image: Image = ""
    service_account: Annotated[str, _stand_in("Account that the job runs as", "VERTEX_SERVICE_ACCOUNT")] = ""
