"""Creates virtual environments so that a package is visible only to the job that installs it.

Python searches the job's environment before the launcher's. pip treats the launcher's packages as
installed. The launcher creates environments only for jobs that have a pythonPackageSpec or run pip in a command. When
a job runs pip, pip never changes the launcher's environment or the user's ~/.local folder.
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
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import IO

from vertex_launch.errors import FaultError, Finding
from vertex_launch.job.addresses import object_path
from vertex_launch.job.contract import Replica
from vertex_launch.job.spec import Job, Pool
from vertex_launch.job.state_dir import private, private_file
from vertex_launch.local.running.namespaces import Isolation

PIP = re.compile(r"\bpip3?\b")
PIP_ERROR = re.compile(r"^\s*(?:ERROR: |\u00d7 )(.+)$", re.MULTILINE)
PIP_SCRIPT = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'
PIPS_OWN = ("HOME", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")  # with PIP_*: the indexes and their passwords
NEVER = threading.Event()  # an event that is never set
POLL_SECONDS = 0.05
PIP_SECONDS = 900.0  # for one installation; a large dependency may have to be downloaded

# pip 25 prints the name of the exception, and pip 26 prints the name of the error.
NO_BACKEND = re.compile("BackendUnavailable|backend-unavailable")

# pip 23.2 to 26.3 inverts this variable: a false value of NO_BUILD_ISOLATION turns isolation off.
ISOLATED, NOT_ISOLATED = {"PIP_NO_BUILD_ISOLATION": "1"}, {"PIP_NO_BUILD_ISOLATION": "0"}

Variables = Mapping[str, str]


def folders(environment: Path) -> tuple[Path, ...]:
    """Return the package folders of an environment in search order.

    `pip install --user` installs packages into the last of these folders.
    """
    own = sysconfig.get_path("purelib", "venv", {"base": str(environment)})
    user = sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("user"), {"userbase": f"{environment}/user"})
    return Path(own), Path(user)


def variables(environment: Path, env: Variables) -> dict[str, str]:
    """Return the variables in `env`, modified so that a process searches this virtual environment first."""
    return {
        **env,
        **(NOT_ISOLATED if _builds_wheels() else {}),
        "PATH": _before(env.get("PATH"), [environment / "bin"]),
        # Scripts in the launcher's environment, such as tensorboard, start the launcher's Python.
        "PYTHONPATH": _before(env.get("PYTHONPATH"), folders(environment)),
        "PYTHONUSERBASE": f"{environment}/user",
        "VIRTUAL_ENV": str(environment),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",  # otherwise, pip reuses an old wheel of a package that was uploaded again
    }


def create(environment: Path, beneath: Sequence[Path] = ()) -> Path:
    """Create an environment that Python searches before the folders in `beneath` and the launcher's packages.

    Creating an environment takes only milliseconds because its files are symbolic links.
    """
    # `pip install --user` works only in an environment with the system's packages, which come last.
    builder = venv.EnvBuilder(system_site_packages=True, symlinks=True, with_pip=not util.find_spec("pip"))
    builder.create(environment)
    launchers = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [f"import site; site.addsitedir({str(path)!a})\n" for path in (*beneath, *launchers)]
    (folders(environment)[0] / "beneath.pth").write_text("".join(lines), encoding="ascii")
    for name in ("pip", "pip3"):
        script = environment / "bin" / name
        script.write_text(PIP_SCRIPT, encoding="ascii")
        script.chmod(0o755)
    return environment


def install(
    place: str, files: Sequence[Path], environment: Path, env: Variables, log: Path, stopping: threading.Event
) -> None:
    """Install packages and their missing dependencies, and append pip's output to the `log` file.

    Raises FaultError if pip fails, is stopped, or takes too long. The error message begins with `place`, which is the
    location of the packages in the job file.
    """
    found = variables(environment, env)
    command = ("python", "-m", "pip", "install", "--no-input", "--progress-bar=off", *map(str, files))
    with open(log, "ab+", opener=private_file) as output:
        for more in ({}, ISOLATED):
            start = output.seek(0, os.SEEK_END)
            code = _run(place, command, found | more, output, stopping)
            output.seek(start)
            text = output.read().decode("utf-8", "replace")
            if not NO_BACKEND.search(text):  # otherwise, pip can download the build system that the package requires
                break
    if code:
        reason = (PIP_ERROR.findall(text) or text.splitlines() or ["pip printed no output"])[-1].rstrip(".")
        names = ", ".join(file.name for file in files)
        cure = f"fix the package. For pip's full output, see {log}"
        raise FaultError(f"{place}: pip can't install {names}: {reason}; {cure}")


def prepared(
    job: Job,
    everyone: Sequence[Replica],
    folder: Path,
    buckets: Path,
    environ: Variables,
    stopping: threading.Event = NEVER,
) -> list[Replica]:
    """Create a virtual environment for each replica that installs packages. Return all replicas.

    The environments and the pip.log file are created in `folder`. When pip installs packageUris, it uses the shell's
    pip settings from `environ`. Raises FaultError if a package isn't in its bucket or if pip can't install it.
    Raises FaultError if `stopping` is set, which means that the job is no longer needed.
    """
    folder = folder.absolute()
    of_pip = {name: value for name, value in environ.items() if name in PIPS_OWN or name.startswith("PIP_")}
    fetched = _fetched(job, buckets)
    if fetched:
        private(folder)
    shared: dict[tuple[Path, ...], Path] = {}  # packages -> environment
    ready = []
    for replica in everyone:
        if replica.pool in fetched:
            files = fetched[replica.pool]
            if files not in shared:
                shared[files] = create(folder / f"packages-{len(shared)}")
                if files:
                    place = f"{job.origin}: workerPoolSpecs[{replica.pool}].pythonPackageSpec"
                    install(place, files, shared[files], {**replica.env, **of_pip}, folder / "pip.log", stopping)
            # Each replica has its own environment because several replicas may call pip at the same time.
            own = create(folder / "environments" / replica.name, folders(shared[files]))
            replica = replace(replica, env=variables(own, variables(shared[files], replica.env)))
        ready.append(replica)
    return ready


def _installs(pool: Pool) -> bool:
    container = pool.spec.container_spec
    words = (*container.command, *container.args)
    return pool.task == "pythonPackageSpec" or any(PIP.search(word) for word in words)


def _fetched(job: Job, buckets: Path) -> dict[int, tuple[Path, ...]]:
    """Return the package files of each pool that installs packages.

    Raises FaultError if a package file isn't in its bucket. The error lists all missing files.
    """
    faults = []
    fetched: dict[int, tuple[Path, ...]] = {}
    for pool in filter(_installs, job.pools):
        fetched[pool.index] = ()
        for i, address in enumerate(pool.spec.python_package_spec.package_uris):
            file = object_path(address, buckets)
            if file and file.is_file():
                fetched[pool.index] += (file,)
            else:
                place = pool.at("pythonPackageSpec", f"packageUris[{i}]")
                faults.append(Finding(place, f"{address} isn't in the local buckets", "upload it first"))
    if faults:
        raise FaultError(*faults, file=job.origin)
    return fetched


def _run(
    place: str, command: tuple[str, ...], variables: Variables, output: IO[bytes], stopping: threading.Event
) -> int:
    """Run pip, and return its exit code.

    If the launcher exits or `stopping` is set, pip and its child processes are killed.
    """
    shim = Isolation().command(command)
    deadline = time.monotonic() + PIP_SECONDS
    with subprocess.Popen(
        shim, env=dict(variables), stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    ) as pip:  # the end of this block closes standard input, and the shim then kills all processes
        while pip.poll() is None:
            if stopping.wait(POLL_SECONDS):
                raise FaultError(f"{place}: pip was stopped because the job is no longer needed")
            if time.monotonic() > deadline:
                fault = f"pip is still running after {PIP_SECONDS:g} s; check that the package index is reachable"
                raise FaultError(f"{place}: {fault}")
        return pip.returncode


def _builds_wheels() -> bool:
    """Return whether setuptools can build wheels offline.

    Before version 70.1, setuptools requires the `wheel` package.
    """
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        return False
    return [int(part) for part in version.split(".")[:2]] >= [70, 1] or util.find_spec("wheel") is not None


def _before(path: str | None, folders: Sequence[Path]) -> str:
    """Return a search path that begins with these folders.

    The path doesn't contain empty entries, because an empty entry would mean the current folder.
    """
    return os.pathsep.join([*map(str, folders), *([path] if path else [])])
