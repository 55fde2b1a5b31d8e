"""The command `lock`: write down the versions of all that the image installs."""

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vertex_launch import program
from vertex_launch.cli.calling import WithOptions, call
from vertex_launch.cli.options import app_of
from vertex_launch.errors import FaultError

FOLDER = Path("requirements")
# The image's platform, and the oldest Python of projects: Ubuntu's newer one takes the same versions.
TARGET = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28")
HOW = ("--quiet", "--no-annotate", "--index-strategy=unsafe-best-match")
NO_UV = "this Python has no uv, which resolves the versions; install it: {} -m pip install uv"


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """Write down the versions of all that the image installs; with --upgrade, the newest that fit."""

    click: typer.Context
    words: Annotated[
        list[str] | None, typer.Argument(metavar="UV OPTIONS", help="Options of uv pip compile, such as --upgrade.")
    ] = None
    custom_compile_command: Annotated[
        str, typer.Option(metavar="LINE", help="What the locks name in their header as their origin.")
    ] = f"{program.SCRIPT} lock"

    def act(self) -> None:
        if not importlib.util.find_spec("uv"):
            raise FaultError(NO_UV.format(sys.executable))
        words = (f"--custom-compile-command={self.custom_compile_command}", *(self.words or ()), *self.click.obj)
        resolve("lock.txt", str(FOLDER / "cuda.txt"), str(FOLDER / "trainer.txt"), *words)
        # The framework's share of the lock: its layer of the image is built again only where this file changes.
        resolve("cuda.lock.txt", str(FOLDER / "cuda.txt"), f"--constraint={FOLDER / 'lock.txt'}", *words)


def resolve(name: str, *words: str) -> None:
    """Write one of the locks."""
    path = FOLDER / name
    call(sys.executable, "-m", "uv", "pip", "compile", *TARGET, *HOW, f"--output-file={path}", *words)
    # cuda.txt and cpu.txt choose the build of a version, such as 2.13.0+cu126.
    path.write_text(re.sub(r"\+\w+$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


app = app_of(LockOptions, WithOptions)
