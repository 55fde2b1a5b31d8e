"""Autologging by the SDK in a replica, whose package must name the mlflow that it needs.

The SDK asks for mlflow 1.27 to 2.16, which need an older protobuf than the launcher has. pip keeps what is there and
goes back through all releases of either: pip 26.3 gave up after 13 minutes, or took an mlflow of 2022 that does not
run. With mlflow==2.16.0 it takes an older protobuf at once, for this job alone. Source: google-cloud-aiplatform 2.7.0,
CustomJob.from_local_script and the extra "autologging".
"""

import contextlib
import re
import tarfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from vertex_launch.addresses import object_path
from vertex_launch.errors import Finding, Findings
from vertex_launch.regular_file import open_regular
from vertex_launch.spec import Job

PACKAGE = re.compile(r"(?:gs://|/gcs/)(\S+\.tar\.gz)")
MLFLOW = "mlflow==2.16.0"
LARGEST = 10**6  # bytes of requirements


def findings(job: Job, buckets: Path) -> Findings:
    """Yield which packages that a job installs ask for autologging without an mlflow."""
    if util.find_spec("mlflow"):
        return
    for pool in job.pools:
        container, uris = pool.spec.container_spec, pool.spec.python_package_spec.package_uris
        for name in PACKAGE.findall(" ".join((*container.command, *container.args, *uris))):
            package = object_path(f"gs://{name}", buckets)
            wanted = [*_requirements(package)] if package else []
            if any("[autologging]" in line for line in wanted) and not any(
                line.startswith("mlflow") for line in wanted
            ):
                place = pool.at("pythonPackageSpec.packageUris" if uris else "containerSpec.command")
                fault = "installs a package for autologging that names no mlflow, so that pip looks for one in vain"
                yield Finding(place, fault, f'add "{MLFLOW}" to requirements')


def _requirements(package: Path) -> Iterator[str]:
    """Yield the lines of a source distribution's requirements; none where it is no such file."""
    unreadable = contextlib.suppress(tarfile.TarError, EOFError, OSError)
    with unreadable, open_regular(package) as file, tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.name.endswith(".egg-info/requires.txt") and (text := archive.extractfile(member)):
                yield from text.read(LARGEST).decode("utf-8", "replace").splitlines()
