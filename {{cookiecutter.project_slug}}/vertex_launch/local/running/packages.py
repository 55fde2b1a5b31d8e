"""Environments of a job's own: what a job installs is there for that job alone.

A job with a pythonPackageSpec, or with pip in a command, gets virtual environments in front of the launcher's: what
the launcher has counts as installed, and nothing that pip does reaches the launcher or the person's ~/.local.
"""

import os
import re
import site
import subprocess
import sysconfig
import threading
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import IO

from vertex_launch.addresses import object_path
from vertex_launch.errors import FaultError
from vertex_launch.local.running.namespaces import Isolation
from vertex_launch.replicas import Replica
from vertex_launch.spec import Job, Pool
from vertex_launch.state_dir import private, private_file

PIP = re.compile(r"\bpip3?\b")
PIP_ERROR = re.compile(r"^\s*(?:ERROR: |\u00d7 )(.+)$", re.MULTILINE)
PIP_SCRIPT = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'
PIPS_OWN = ("HOME", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")  # and PIP_*: its indexes, and passwords for them
NEVER = threading.Event()  # which nobody sets
POLL_SECONDS = 0.05
PIP_SECONDS = 900.0  # for one installation; a large dependency may have to be downloaded

# pip reads the switch upside down: a false value of NO_BUILD_ISOLATION turns isolation off (pip 23.2 to 26.3).
ISOLATION = "PIP_NO_BUILD_ISOLATION"
ON, OFF = "1", "0"

Variables = Mapping[str, str]


class PackageError(FaultError):
    """A package of the job cannot be fetched or installed."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment; what is installed in `beneath`, and in the launcher's, is seen in it too."""

    folder: Path
    beneath: "Environment | None" = None

    @property
    def packages(self) -> tuple[Path, ...]:
        """Folders with packages, those that go first at the front."""
        own = sysconfig.get_path("purelib", "venv", {"base": str(self.folder)})
        user = sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("user"), {"userbase": str(self._user)})
        return (Path(own), Path(user), *(self.beneath.packages if self.beneath else ()))

    def variables(self, env: Variables) -> dict[str, str]:
        """The variables of a process in this environment; `env` are its others."""
        # PYTHONPATH: scripts of the launcher's environment, such as tensorboard, start the launcher's Python.
        isolation = {ISOLATION: OFF} if _builds_wheels() else {}
        return {
            **env,
            **isolation,
            "PATH": _joined(self._scripts, env.get("PATH")),
            "PYTHONPATH": _joined(self.packages, env.get("PYTHONPATH")),
            "PYTHONUSERBASE": str(self._user),
            "VIRTUAL_ENV": str(self.folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",  # pip would keep a wheel of a package that is uploaded anew under its name
        }

    @property
    def _user(self) -> Path:
        """What `pip install --user` takes for the home folder."""
        return self.folder / "user"

    @property
    def _scripts(self) -> tuple[Path, ...]:
        return (self.folder / "bin", *(self.beneath._scripts if self.beneath else ()))


def create(folder: Path, beneath: Environment | None = None) -> Environment:
    """Make an environment; takes a few milliseconds, since it links what is there."""
    environment = Environment(folder, beneath)
    # With the system's packages, for without them `pip install --user` refuses; they come last.
    builder = venv.EnvBuilder(system_site_packages=True, symlinks=True, with_pip=not util.find_spec("pip"))
    builder.create(folder)
    others = [*map(str, environment.packages[2:]), *_launchers()]
    lines = [f"import site; site.addsitedir({other!a})\n" for other in others]
    (environment.packages[0] / "beneath.pth").write_text("".join(lines), encoding="ascii")
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(PIP_SCRIPT, encoding="ascii")
        script.chmod(0o755)
    return environment


def install(
    files: Sequence[Path], environment: Environment, env: Variables, log: Path, stopping: threading.Event = NEVER
) -> None:
    """Install packages, and what they need and is not there; all that pip says is added to the file `log`.

    Raises:
        PackageError: pip refuses, and the text is pip's last error; or it did not end before it was to stop.
    """
    variables = environment.variables(env)
    code, said = _pip(files, variables, log, stopping)
    if "BackendUnavailable" in said:  # it asks for a build system of its own, which pip can fetch
        code, said = _pip(files, {**variables, ISOLATION: ON}, log, stopping)
    if code:
        reason = (PIP_ERROR.findall(said) or said.splitlines() or ["it said nothing"])[-1].rstrip(".")
        names = ", ".join(file.name for file in files)
        raise PackageError(f"pip cannot install {names}: {reason}; mend the package, all that pip said is in {log}")


def needs_environment(job: Job) -> bool:
    """Whether the job installs something."""
    return any(map(_installs, job.pools))


def prepared(
    job: Job,
    everyone: Sequence[Replica],
    folder: Path,
    buckets: Path,
    environ: Variables,
    stopping: threading.Event = NEVER,
) -> list[Replica]:
    """The replicas, those that install something with environments of their own, and with the job's packages in them.

    Args:
        folder: of this run of the job; pip.log is written there, too.
        buckets: the folder of buckets from which packages are fetched.
        environ: the shell's environment; pip installs packageUris for the launcher, as the shell tells it to.
        stopping: is set when nobody wants the job any more.

    Raises:
        PackageError: a package is not in its bucket, or pip refuses it.
    """
    folder = folder.absolute()
    fetched = _fetched(job, buckets)
    if fetched:
        private(folder)
    packages: dict[tuple[Path, ...], Environment] = {}
    ready = []
    for one in everyone:
        if one.pool in fetched:
            files = fetched[one.pool]
            if files and files not in packages:
                packages[files] = create(folder / f"packages-{len(packages)}")
                variables = {**one.env, **_of_pip(environ)}
                _install(job, one.pool, files, packages[files], variables, folder / "pip.log", stopping)
            # One each: replicas that call pip at the same time must not meet in one folder.
            own = create(folder / "environments" / one.name, packages.get(files))
            one = replace(one, env=own.variables(one.env))
        ready.append(one)
    return ready


def _installs(pool: Pool) -> bool:
    container = pool.spec.container_spec
    words = (*container.command, *container.args)
    return pool.task == "pythonPackageSpec" or any(PIP.search(word) for word in words)


def _fetched(job: Job, buckets: Path) -> dict[int, tuple[Path, ...]]:
    """The packages of each pool that installs something, as files; all that are missing are named at once."""
    faults = []
    fetched = {}
    for pool in filter(_installs, job.pools):
        addresses = list(pool.spec.python_package_spec.package_uris)
        files = [object_path(address, buckets) for address in addresses]
        for i, (address, file) in enumerate(zip(addresses, files, strict=True)):
            if not (file and file.is_file()):
                place = pool.at("pythonPackageSpec", f"packageUris[{i}]")
                faults.append(f"{job.origin}: {place}: {address} is not in the local buckets; upload it first")
        fetched[pool.index] = tuple(file for file in files if file)
    if faults:
        raise PackageError(*faults)
    return fetched


def _of_pip(environ: Variables) -> dict[str, str]:
    """What the shell tells pip."""
    return {name: value for name, value in environ.items() if name in PIPS_OWN or name.startswith("PIP_")}


def _install(
    job: Job,
    pool: int,
    files: Sequence[Path],
    environment: Environment,
    env: Variables,
    log: Path,
    stopping: threading.Event,
) -> None:
    try:
        install(files, environment, env, log, stopping)
    except PackageError as error:
        raise PackageError(f"{job.origin}: workerPoolSpecs[{pool}].pythonPackageSpec: {error}") from None


def _pip(files: Sequence[Path], variables: Variables, log: Path, stopping: threading.Event) -> tuple[int, str]:
    """The exit code and all that was said."""
    command = ("python", "-m", "pip", "install", "--no-input", "--progress-bar=off", *map(str, files))
    with open(log, "ab+", opener=private_file) as output:
        start = output.tell()
        code = _run(command, variables, output, stopping)
        output.seek(start)
        return code, output.read().decode("utf-8", "replace")


def _run(command: tuple[str, ...], variables: Variables, output: IO[bytes], stopping: threading.Event) -> int:
    """The exit code of a command that ends, with all that it started, when it is to stop or the launcher is gone."""
    shim = Isolation().command(command)
    deadline = time.monotonic() + PIP_SECONDS
    with subprocess.Popen(
        shim, env=dict(variables), stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    ) as pip:  # whose standard input is closed at the end of this block: replica.py then ends everything
        while pip.poll() is None:
            if stopping.wait(POLL_SECONDS):
                raise PackageError("pip was stopped; nobody waits for the job any more")
            if time.monotonic() > deadline:
                raise PackageError(f"pip has not ended after {PIP_SECONDS:g} s; is the package index reachable?")
        return pip.returncode


def _launchers() -> list[str]:
    """The folders from which the launcher's own environment imports packages."""
    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _builds_wheels() -> bool:
    """Whether packages of the usual kind are built without a download: by setuptools, since 70.1 on its own."""
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        return False
    return [int(part) for part in version.split(".")[:2]] >= [70, 1] or util.find_spec("wheel") is not None


def _joined(folders: Sequence[Path], others: str | None) -> str:
    """A search path; an empty part would mean the current folder."""
    return os.pathsep.join([*map(str, folders), *([others] if others else [])])
