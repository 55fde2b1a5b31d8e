"""The model of a real training, served as Vertex AI does it: by a process of its own, asked over HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from launcher.tests.running import deadline
from launcher.tests.vertex import service
from tests.samples import batch
from tests.training import DEADLINE, PROJECT
from trainer import export
from trainer.serving import folder
from trainer.vertex.errors import TrainerError

pytestmark = pytest.mark.proof

INPUTS = batch(3).inputs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of two steps."""
    where = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "trainer.task", "--steps", "2", "--warmup", "0"]
    environ = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return where / "output/model"


def test_predict_asks_the_exported_model_as_the_service_would(model: Path, tmp_path: Path) -> None:
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps({"instances": INPUTS.tolist()}))
    command = [sys.executable, "-m", "vertex_launch", "predict", str(model), str(sample), "--serve"]
    answer = tmp_path / "answer.json"  # which of a model of text is longer than what a pipe holds unread
    with answer.open("w") as output:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=output, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        with deadline(DEADLINE):
            said = next(line for line in process.stderr if line.startswith("send a request with: "))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(said.split()[-1], b'{"instances": [[[[[1]]]]]}', DEADLINE)
        assert json.load(refused.value)["error"].startswith(
            "the instances have the shape (1, 1, 1, 1, 1), but they must have the shape (any, "
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 0
    assert np.allclose(json.loads(answer.read_text())["predictions"], export.load(model).answer(INPUTS), atol=1e-5)


def test_a_model_in_a_bucket_is_copied_as_no_bucket_is_mounted_there(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as vertex:
        there = vertex.state_dir / "gcs/b/served"
        there.parent.mkdir(parents=True, exist_ok=True)
        model.rename(there)
        try:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", vertex.endpoint)
            (tmp_path / "copy").mkdir()
            copy = folder("gs://b/served/", {"GCS_MOUNT": "/nowhere"}, tmp_path / "copy")
            assert np.allclose(export.load(copy).answer(INPUTS), export.load(there).answer(INPUTS))
            with pytest.raises(TrainerError, match=r"^gs://no-such-bucket/model can't be read: 404"):
                folder("gs://no-such-bucket/model", {"GCS_MOUNT": "/nowhere"}, tmp_path)
        finally:
            there.rename(model)
