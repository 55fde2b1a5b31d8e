"""The usages with earlier releases of the SDK, and calls of Node's client."""

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.tests.vertex import custom_job, service
from tests.conftest import kept_folder
from tests.fidelity import releases
from tests.fidelity.page import verdicts
from tests.fidelity.themes import usages

pytestmark = [pytest.mark.slow, pytest.mark.proof]


def test_earlier_releases_have_the_verdicts_of_the_page(tmp_path: Path) -> None:
    known = {usage.id: verdict for usage, verdict in zip(usages(), verdicts(), strict=True)}
    assert releases.differences(tmp_path, known) == releases.recorded()


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_the_client_of_node_works_in_a_replica(tmp_path: Path) -> None:
    home = kept_folder(f"node-{releases.NODE}", tmp_path)
    package = f"@google-cloud/aiplatform@{releases.NODE}"
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home, package], check=True)
    script = shutil.copy(Path(__file__).with_name("client.cjs"), home)
    with service(tmp_path, "--grace-seconds", "0.5") as vertex:
        vertex.wait(vertex.create(custom_job("node", script)), "SUCCEEDED")
