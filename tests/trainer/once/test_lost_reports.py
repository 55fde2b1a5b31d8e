"""Curves, metrics and traces that cannot be written cost a warning, and never a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_telemetry import lines, read_curves
from tests.training import DEADLINE, PROJECT
from trainer.reports.curves import TensorBoard
from trainer.reports.sinks import MetricFile, last_reported
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Trial

SMALL_DISK = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k none "$0" && exec "$@"')
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")


def said(text: str) -> list[str]:
    return [line["message"] for line in lines(text)]


def test_curves_whose_folder_is_removed_come_back_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    board = TensorBoard(logs)
    board.write(1, {"train/loss": 1.0})
    logs.rename(tmp_path / "aside")
    for step in (2, 3):
        board.write(step, {"train/loss": 1.0})
    (warning,) = said(capsys.readouterr().out)
    assert warning.startswith(f"{logs} can't be written (No such file or directory: {logs}/events.out.tfevents.")
    assert warning.endswith("; training continues without this output")
    logs.mkdir()
    for step in (4, 5):
        board.write(step, {"train/loss": 1.0})
    assert said(capsys.readouterr().out) == [f"{logs} can be written again"]
    assert read_curves(logs) == {"train/loss": [(4, 1.0), (5, 1.0)]}


def test_an_event_file_that_is_removed_is_followed_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = TensorBoard(tmp_path)
    for step in (1, 2):
        board.write(step, {"train/loss": 1.0})
        assert read_curves(tmp_path) == {"train/loss": [(step, 1.0)]}
        (file,) = tmp_path.iterdir()
        file.unlink()
    assert capsys.readouterr().out == ""


def test_a_folder_named_like_an_event_file_has_no_curves(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.a-host").mkdir()
    assert last_reported(tmp_path) == 0


def test_a_trial_ends_for_its_last_metric_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = MetricFile(Trial("3", tmp_path / "metrics/file"), steps=3)
    (tmp_path / "metrics").rmdir()
    for step in (1, 2):
        metrics.write(step, {"heldout/loss": 1.0})
    (warning,) = said(capsys.readouterr().out)
    assert warning.startswith(f"{tmp_path}/metrics/file can't be written (No such file or directory: ")
    with pytest.raises(TrainerError, match=f"^{tmp_path}/metrics/file can't be written"):
        metrics.write(3, {"heldout/loss": 1.0})
    (tmp_path / "metrics").mkdir()
    metrics.write(3, {"heldout/loss": 0.5})
    assert [line["global_step"] for line in lines((tmp_path / "metrics/file").read_text())] == ["1", "2", "3", "3"]


def run(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    if subprocess.run([*SMALL_DISK, str(folder), "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", **env}
    command = [*SMALL_DISK, str(folder), sys.executable, *words]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=DEADLINE)


@as_root
def test_a_full_disk_cuts_no_curve_short_that_was_written_before_or_after(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.test_telemetry import read_curves
from trainer.reports.curves import TensorBoard
folder, last = Path(sys.argv[1]), 0
board = TensorBoard(folder)
for step in range(1, 200):
    board.write(step, {"train/loss": 1.0})
    curve = [reached for reached, _ in read_curves(folder)["train/loss"]]
    assert curve == [*range(1, len(curve) + 1)], curve
assert len(curve) < 199, "the disk is not full"
next(folder.iterdir()).unlink()
board.write(200, {"train/loss": 1.0})
assert read_curves(folder) == {"train/loss": [(200, 1.0)]}
"""
    done = run(tmp_path, "-c", program, str(tmp_path))
    assert done.returncode == 0, done.stderr
    warning, back = said(done.stdout)
    assert f"{tmp_path} can't be written (No space left on device" in warning
    assert back == f"{tmp_path} can be written again"


@as_root
@pytest.mark.proof
def test_a_run_whose_logs_fill_up_their_disk_trains_to_its_end_and_says_so_once(tmp_path: Path) -> None:
    outputs = {"AIP_MODEL_DIR": "model", "AIP_CHECKPOINT_DIR": "checkpoints"}
    logs = tmp_path / "logs"
    logs.mkdir()
    flags = ("--steps", "40", "--warmup", "1", "--log-every", "1", "--profile", "30:32")
    places = {name: str(tmp_path / folder) for name, folder in outputs.items()} | {"AIP_TENSORBOARD_LOG_DIR": str(logs)}
    done = run(logs, "-m", "trainer.task", *flags, **places)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    warnings = [line["message"] for line in messages if line["severity"] == "WARNING"]
    assert done.returncode == 0, done.stdout + done.stderr
    curves, *trace = warnings
    assert curves.startswith(f"{logs} can't be written (No space left on device"), warnings
    assert [str(logs) in text and "No space left on device" in text for text in trace] == [True]
    assert (tmp_path / "checkpoints/step-000000040/committed.json").is_file()
    assert "Traceback" not in done.stdout + done.stderr
