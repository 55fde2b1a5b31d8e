"""Options that several commands share. Each command is a frozen dataclass whose fields are its options."""

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
STATE = f"Folder for the local Vertex's state (default {StateDir.folder}). You can also set the variable {STATE_DIR}."

JobFile = Annotated[Path, Parameter(help="A job file.")]
StateFolder = Annotated[Path, Parameter(show_default=False, help=STATE)]
# The arguments after a lone --, which cli/main.py fills in.
Passed = Annotated[tuple[str, ...], Parameter(parse=False)]


def _stand_in(meaning: str, variable: str) -> Any:
    return Parameter(help=f"{meaning}. You can also set {variable}.", group=Group(f"Overrides of {SETTINGS}"))


Bucket = Annotated[str, _stand_in("Bucket for data and results, without gs://", "VERTEX_BUCKET")]
Image = Annotated[str, _stand_in("Your container image", "VERTEX_IMAGE")]
Project = Annotated[str, _stand_in("Google Cloud project ID", "VERTEX_PROJECT")]


def seconds(_: type, words: Sequence[Any]) -> float:
    """Convert a duration such as 90s, 20m, or 1.5h to seconds. Raises ValueError if the duration isn't valid."""
    text = words[0].value
    if not (match := DURATION.fullmatch(text)):
        raise ValueError(f'"{text}" is not a valid duration; use a value such as 90s, 20m, or 1.5h')
    return float(match[1]) * UNITS[match[2]]


def state_dir() -> StateDir:
    """Return the default state folder of the local Vertex. The --state-dir option selects a different folder."""
    return StateDir(Path(os.environ.get(STATE_DIR) or StateDir.folder))


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """The options that override the vertex.toml settings of the same name."""

    def settings(self) -> Settings:
        """Return the settings. Options override vertex.toml, and vertex.toml overrides environment variables."""
        return load(SETTINGS, os.environ, {key: getattr(self, key, "") for key in VARIABLES})


@dataclass(frozen=True, kw_only=True)
class ProjectOptions(StandIns):
    project: Project = ""
    region: Annotated[str, _stand_in("Region of the machines", "VERTEX_REGION")] = ""


@dataclass(frozen=True, kw_only=True)
class SettingsOptions(ProjectOptions):
    """The options that override vertex.toml in commands that read a job file."""

    bucket: Bucket = ""
    image: Image = ""
    service_account: Annotated[str, _stand_in("Service account that the job runs as", "VERTEX_SERVICE_ACCOUNT")] = ""
