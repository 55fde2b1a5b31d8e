"""All usages with earlier releases of Google's SDK, each in an environment of its own.

The launcher runs in it, too, as where a team has pinned the SDK. python -m tests.fidelity.releases FILE writes the
verdicts with the SDK of its own environment.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import LAUNCHER, MODULES, ROOT, kept_folder
from tests.fidelity.environments import environment
from tests.fidelity.themes import run, serving, usages

EARLIER = ("2.6.0", "2.5.0", "2.4.0")  # the minor releases before that of launcher/constraints.txt
RECORD = ROOT / "tests/fidelity/releases.json"
SDK = "google-cloud-aiplatform"
NODE = "6.11.0"  # of Node's client, for tests/fidelity/client.cjs
TESTS = ("cloudml-hypertune==0.1.0.dev6", "gcsfs==2026.10.1", "pytest==9.2.0")  # as noxfile.py has them


def differences(folder: Path, known: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return, by release and by a usage's id, each verdict that is another than the known one."""
    with ThreadPoolExecutor() as pool:  # the runs wait more than they compute
        found = zip(EARLIER, pool.map(lambda release: _verdicts(release, folder), EARLIER), strict=True)
    return {
        release: {id: verdict for id, verdict in verdicts.items() if verdict != known[id]}
        for release, verdicts in found
    }


def recorded() -> Mapping[str, Mapping[str, str]]:
    """Return the differences that were kept."""
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _verdicts(release: str, folder: Path) -> dict[str, str]:
    """Run all usages with a release; returns their verdicts by their ids."""
    python = environment(kept_folder(f"sdk-{release}", folder), _packages(release))
    written = folder / f"{release}.json"
    environ = os.environ | {"PYTHONPATH": MODULES, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([python, "-m", "tests.fidelity.releases", str(written)], cwd=ROOT, env=environ, check=True)
    found: dict[str, str] = json.loads(written.read_text(encoding="utf-8"))
    return found


def _packages(release: str) -> list[str]:
    pinned = (LAUNCHER / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [f"{SDK}=={release}", *(line for line in pinned if not line.startswith((SDK, "#"))), *TESTS]


def _here() -> dict[str, str]:
    """Run all usages in this environment."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as vertex:
        return dict(zip([usage.id for usage in usages()], run(vertex), strict=True))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(_here()), encoding="utf-8")
