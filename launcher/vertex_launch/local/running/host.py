"""Provides replicas with the GPUs and environment variables that a cloud machine and its image would provide."""

import contextlib
import functools
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from vertex_launch.job.state_dir import StateDir, private
from vertex_launch.untrusted.regular_file import locked_elsewhere, open_regular

# The shell variables that every replica receives, for search paths, language, network, GPUs, and the compiler.
INHERITED = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GLOO_SOCKET_IFNAME", "CC", "CXX"),
        *("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"),  # direct storage clients to the local buckets
    )
)
# Without a GPU, Accelerate joins other processes only if this variable selects the CPU. The transformers Trainer uses
# Accelerate.
CPU = {"ACCELERATE_USE_CPU": "true"}
LAUNCHER_PACKAGES = "launcher.pth"  # in a home folder; adds the launcher's user packages to the search path


def image_environment(environ: Mapping[str, str], state_dir: StateDir, job_id: str) -> dict[str, str]:
    """Return environment variables that replace the image's environment. The launcher's Python comes first on PATH.

    Replicas don't use the user's home folder, because Google's clients, git, and other programs would use the
    credentials in it.
    """
    home = private(state_dir.of_replicas(job_id))
    return {
        **{name: value for name, value in environ.items() if name in INHERITED or name.startswith("LC_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(private(state_dir.caches)),
        "GCS_MOUNT": str(state_dir.buckets),
        "PYTHONUNBUFFERED": "1",
        **_user_packages(home / ".local"),
    }


def remove_home(state_dir: StateDir, job_id: str) -> None:
    """Remove an ended job's home folder, as Vertex AI removes the job's containers."""
    shutil.rmtree(state_dir.of_replicas(job_id), ignore_errors=True)


def remove_left_homes(state_dir: StateDir) -> None:
    """Remove the home folders of jobs whose launcher was killed. A running launcher locks its job's journal."""
    for home in state_dir.of_replicas("").glob("*"):
        # OSError: the journal doesn't exist, or the file system doesn't support locks, so the state is unknown.
        with contextlib.suppress(OSError), open_regular(state_dir.journal(home.name)) as journal:
            if not locked_elsewhere(journal):
                remove_home(state_dir, home.name)


def passed(environ: Mapping[str, str], named: Mapping[str, str | bool]) -> dict[str, str]:
    """Return the environment variables that [env] and `--pass-env` specify.

    If a variable doesn't have a fixed value, use its value from the shell.
    """
    shell = {name: environ[name] for name, value in named.items() if value is True and name in environ}
    return {name: value for name, value in named.items() if isinstance(value, str)} | shell


def not_set(environ: Mapping[str, str], named: Mapping[str, str | bool]) -> list[str]:
    """Return a sentence for each variable that can't be passed to replicas because this shell doesn't set it."""
    missing = [name for name, value in named.items() if value is True and name not in environ]
    return [
        f"{name} can't be passed to replicas because this shell doesn't set it; export it first" for name in missing
    ]


def _user_packages(base: Path) -> dict[str, str]:
    """Return the environment variables that make `pip install --user` install packages into `base`.

    Packages that the user has already installed with `pip install --user` stay importable.
    """
    if not site.ENABLE_USER_SITE:  # such as in a virtual environment
        return {}
    path = sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("user"), {"userbase": str(base)})
    line = f"import site; site.addsitedir({site.getusersitepackages()!a})\n"
    (private(Path(path)) / LAUNCHER_PACKAGES).write_text(line, encoding="ascii")
    return {"PYTHONUSERBASE": str(base)}


def shares(gpus: Sequence[str], count: int) -> list[dict[str, str]]:
    """Return environment variables that divide the CPU cores equally among `count` replicas.

    If there are enough GPUs, the variables also divide the GPUs equally.
    """
    threads = str(max((os.cpu_count() or 1) // count, 1))
    each = len(gpus) // count
    return [
        {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])}
        | ({} if each else CPU)
        for i in range(count)
    ]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the indices of the NVIDIA GPUs that this shell can use."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [gpu for gpu in environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
    return _installed_gpus()


@functools.cache
def _installed_gpus() -> list[str]:
    """Return the indices of all GPUs. The return value is cached because nvidia-smi takes up to a second."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]
