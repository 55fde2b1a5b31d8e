"""New settings in the files of a project: vertex.toml, and the job files, which name image and bucket, too."""

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
    """What stands behind the @ of a project's own accounts; that of example.com:p begins with p.example.com."""
    organization, _, id = project.rpartition(":")
    return f"{id}{organization and f'.{organization}'}.iam.gserviceaccount.com"


def renamed(old: Settings, new: Settings) -> Settings:
    """The new settings, with an image and an account of the new project where they are still the old one's."""
    before, after = (f"{one.region}-docker.pkg.dev/{one.project.replace(':', '/')}/" for one in (old, new))
    image, account = new.image, new.service_account
    if old.project and image.startswith(before):
        image = f"{after}{image.removeprefix(before)}"
    if old.project and account.endswith(home := f"@{account_domain(old.project)}"):
        account = f"{account.removesuffix(home)}@{account_domain(new.project)}"
    return replace(new, image=image, service_account=account)


def changed(path: Path, jobs: Path, old: Settings, new: Settings) -> Iterator[tuple[Path, str]]:
    """Each file whose text is another with the new settings, and that text; comments and order stay.

    Raises:
        FaultError: vertex.toml is written in a way that cannot be changed.
    """
    text = read_text(path) if path.exists() else ""
    texts = {path: (text, _toml(path, text, old, new))}
    for job in sorted(jobs.glob("*.yaml")):
        text = read_text(job)
        texts[job] = text, _job(text, old, new)
    return ((path, after) for path, (before, after) in texts.items() if before != after)


def _toml(path: Path, text: str, old: Settings, new: Settings) -> str:
    wanted = {key: getattr(new, key) for key in KEYS}
    for key, value in wanted.items():
        line = f"{key} = {json.dumps(value)}"
        table = re.search(r"^\s*\[", text, re.MULTILINE)
        there = re.compile(rf"^{key}\s*=\s*(\"[^\"]*\"|'[^']*')", re.MULTILINE).search(
            text, 0, table.start() if table else len(text)
        )
        text = f"{text[: there.start()]}{line}{text[there.end() :]}" if there else f"{line}\n{text}"
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
    """Neither name may go on behind the old one, but for what follows an image's tag, as in :1-cpu."""
    if old.image:
        text = re.sub(rf"{re.escape(old.image)}(?![\w.])", lambda _: new.image, text)
    if old.bucket:
        text = re.sub(rf"(?<=gs://){re.escape(old.bucket)}(?![\w.-])", lambda _: new.bucket, text)
    return text
