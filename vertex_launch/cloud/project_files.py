"""Writes new settings into a project: vertex.toml, and the job files, which name image and bucket, too."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vertex_launch.errors import FaultError, read_text
from vertex_launch.settings import REQUIRED, Settings

KEYS = (*REQUIRED, "service_account")


def account_domain(project: str) -> str:
    """Return the domain of a project's accounts: p.example.com.iam.gserviceaccount.com for example.com:p."""
    organization, _, id = project.rpartition(":")
    return f"{id}{organization and f'.{organization}'}.iam.gserviceaccount.com"


def renamed(old: Settings, new: Settings) -> Settings:
    """The new settings, with an image and an account of the new project where they are still the old one's."""
    before, after = (f"{version.region}-docker.pkg.dev/{version.project.replace(':', '/')}/" for version in (old, new))
    image, account = new.image, new.service_account
    if old.project and image.startswith(before):
        image = f"{after}{image.removeprefix(before)}"
    if old.project and account.endswith(home := f"@{account_domain(old.project)}"):
        account = f"{account.removesuffix(home)}@{account_domain(new.project)}"
    return replace(new, image=image, service_account=account)


def changed(path: Path, jobs: Path, old: Settings, new: Settings) -> Iterator[tuple[Path, str]]:
    """Each file whose text is another with the new settings, and that text; comments and order stay.

    Raises FaultError, before anything is yielded, for a vertex.toml that is written in a way that cannot be changed.
    """
    before = {file: read_text(file) if file.exists() else "" for file in (path, *sorted(jobs.glob("*.yaml")))}
    after = {file: _job(text, old, new) for file, text in before.items()} | {path: _toml(path, before[path], old, new)}
    return ((file, after[file]) for file in before if after[file] != before[file])


def _toml(path: Path, text: str, old: Settings, new: Settings) -> str:
    wanted = {key: getattr(new, key) for key in KEYS}
    head, *tables = re.split(r"^(?=\s*\[)", text, maxsplit=1, flags=re.MULTILINE)
    for key, value in wanted.items():
        line, old_line = f"{key} = {json.dumps(value)}", rf"^{key}\s*=\s*(\"[^\"]*\"|'[^']*')"
        head, count = re.subn(old_line, line.replace("\\", r"\\"), head, count=1, flags=re.MULTILINE)
        head = head if count else f"{line}\n{head}"
    text = "".join((head, *tables))
    of_commands = re.compile(rf'^"{re.escape(old.image)}"(?=\s*=)', re.MULTILINE)
    text = of_commands.sub(lambda _: json.dumps(new.image), text)
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        read = {}
    if {key: read.get(key) for key in KEYS} != wanted:
        lines = ", ".join(f"{key} = {json.dumps(value)}" for key, value in wanted.items())
        raise FaultError(f"{path}: cannot be changed as it is written; write {lines}")
    return text


def _job(text: str, old: Settings, new: Settings) -> str:
    """Replace image and bucket where the old name ends, as after gs://b or before the -cpu of an image's tag."""
    if old.image:
        text = re.sub(rf"{re.escape(old.image)}(?![\w.])", lambda _: new.image, text)
    if old.bucket:
        text = re.sub(rf"(?<=gs://){re.escape(old.bucket)}(?![\w.-])", lambda _: new.bucket, text)
    return text
