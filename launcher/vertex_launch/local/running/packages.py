"""Virtual environments for jobs that install packages: no other job, nor the launcher, sees what a job installs.

They stand in front of the launcher's environment, whose packages count as installed. A job gets them if it has a
pythonPackageSpec, or pip in a command; nothing that its pip does reaches the launcher or the user's ~/.local.
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
PIPS_OWN = ("HOME", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")  # with PIP_*: pip's indexes and their passwords
NEVER = threading.Event()  # is never set
POLL_SECONDS = 0.05
PIP_SECONDS = 900.0  # for one installation; a large dependency may have to be downloaded

# pip 25 prints the name of the exception, pip 26 that of the error.
NO_BACKEND = re.compile("BackendUnavailable|backend-unavailable")

# pip inverts this variable: a false value of NO_BUILD_ISOLATION turns isolation off (pip 23.2 to 26.3).
ISOLATED, NOT_ISOLATED = {"PIP_NO_BUILD_ISOLATION": "1"}, {"PIP_NO_BUILD_ISOLATION": "0"}

Variables = Mapping[str, str]


def folders(environment: Path) -> tuple[Path, ...]:
    """Return where an environment has packages, in the order of the search; `pip install --user` goes to the last."""
    own = sysconfig.get_path("purelib", "venv", {"base": str(environment)})
    user = sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("user"), {"userbase": f"{environment}/user"})
    return Path(own), Path(user)


def variables(environment: Path, env: Variables) -> dict[str, str]:
    """Return the variables `env` of a process, changed so that it finds this environment first."""
    return {
        **env,
        **(NOT_ISOLATED if _builds_wheels() else {}),
        "PATH": _before(env.get("PATH"), [environment / "bin"]),
        # Scripts of the launcher's environment, such as tensorboard, start the launcher's Python.
        "PYTHONPATH": _before(env.get("PYTHONPATH"), folders(environment)),
        "PYTHONUSERBASE": f"{environment}/user",
        "VIRTUAL_ENV": str(environment),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",  # else pip reuses the wheel of a package that was uploaded again under its name
    }


def create(environment: Path, beneath: Sequence[Path] = ()) -> Path:
    """Make an environment in front of these packages and the launcher's; milliseconds, because files are linked."""
    # Without the system's packages, `pip install --user` refuses; they come last.
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
    """Install packages and their missing dependencies; pip's output goes to the file `log`.

    Raises FaultError, which begins with the `place` in the job, with pip's last error, or because pip was stopped.
    """
    found = variables(environment, env)
    command = ("python", "-m", "pip", "install", "--no-input", "--progress-bar=off", *map(str, files))
    with open(log, "ab+", opener=private_file) as output:
        for more in ({}, ISOLATED):
            start = output.seek(0, os.SEEK_END)
            code = _run(place, command, found | more, output, stopping)
            output.seek(start)
            text = output.read().decode("utf-8", "replace")
            if not NO_BACKEND.search(text):  # else pip can fetch the build system that the package names
                break
    if code:
        reason = (PIP_ERROR.findall(text) or text.splitlines() or ["it said nothing"])[-1].rstrip(".")
        names = ", ".join(file.name for file in files)
        cure = f"mend the package, all that pip said is in {log}"
        raise FaultError(f"{place}: pip cannot install {names}: {reason}; {cure}")


def prepared(
    job: Job,
    everyone: Sequence[Replica],
    folder: Path,
    buckets: Path,
    environ: Variables,
    stopping: threading.Event = NEVER,
) -> list[Replica]:
    """Return the replicas; each that installs packages gets its own environment, with the job's packages in it.

    The environments and pip.log go to `folder`, and pip has the shell's settings, from `environ`, for packageUris.
    Raises FaultError: a package is not in its bucket, pip refuses it, or nobody wants the job: `stopping` is set.
    """
    folder = folder.absolute()
    of_pip = {name: value for name, value in environ.items() if name in PIPS_OWN or name.startswith("PIP_")}
    fetched = _fetched(job, buckets)
    if fetched:
        private(folder)
    shared: dict[tuple[Path, ...], Path] = {}  # environments by the packages in them
    ready = []
    for replica in everyone:
        if replica.pool in fetched:
            files = fetched[replica.pool]
            if files not in shared:
                shared[files] = create(folder / f"packages-{len(shared)}")
                if files:
                    place = f"{job.origin}: workerPoolSpecs[{replica.pool}].pythonPackageSpec"
                    install(place, files, shared[files], {**replica.env, **of_pip}, folder / "pip.log", stopping)
            # One environment for each replica: several may call pip at the same time.
            own = create(folder / "environments" / replica.name, folders(shared[files]))
            replica = replace(replica, env=variables(own, variables(shared[files], replica.env)))
        ready.append(replica)
    return ready


def _installs(pool: Pool) -> bool:
    container = pool.spec.container_spec
    words = (*container.command, *container.args)
    return pool.task == "pythonPackageSpec" or any(PIP.search(word) for word in words)


def _fetched(job: Job, buckets: Path) -> dict[int, tuple[Path, ...]]:
    """Return the package files of each pool that installs packages; one FaultError names all missing files."""
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
                faults.append(Finding(place, f"{address} is not in the local buckets", "upload it first"))
    if faults:
        raise FaultError(*faults, file=job.origin)
    return fetched


def _run(
    place: str, command: tuple[str, ...], variables: Variables, output: IO[bytes], stopping: threading.Event
) -> int:
    """Run pip; returns its exit code. pip and its children end with the launcher, or once `stopping` is set."""
    shim = Isolation().command(command)
    deadline = time.monotonic() + PIP_SECONDS
    with subprocess.Popen(
        shim, env=dict(variables), stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    ) as pip:  # at the end of this block its standard input is closed, and the shim kills everything
        while pip.poll() is None:
            if stopping.wait(POLL_SECONDS):
                raise FaultError(f"{place}: pip was stopped; nobody waits for the job any more")
            if time.monotonic() > deadline:
                fault = f"pip has not ended after {PIP_SECONDS:g} s; is the package index reachable?"
                raise FaultError(f"{place}: {fault}")
        return pip.returncode


def _builds_wheels() -> bool:
    """Whether setuptools can build wheels offline: from 70.1 on by itself, before that with the package wheel."""
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        return False
    return [int(part) for part in version.split(".")[:2]] >= [70, 1] or util.find_spec("wheel") is not None


def _before(path: str | None, folders: Sequence[Path]) -> str:
    """Return a search path with these folders first; an empty part would mean the current folder."""
    return os.pathsep.join([*map(str, folders), *([path] if path else [])])
