import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.samples import batch
from tests.training import PROJECT
from trainer.config import Config, Job
from trainer.reports.curves import TensorBoard
from trainer.reports.reports import Reporter
from trainer.reports.sinks import Lines, describe
from trainer.reports.speed import CHECKPOINTS, DATA, FIRST_STEP, TRAINING, Clock, peak_flops
from trainer.samples.batches import per_step
from trainer.vertex.log import say, warn
from trainer.vertex.storage import Storage, Trial


@dataclass
class Time:
    """A replacement for time.monotonic that advances only when a test changes `now`."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Time:
    stopped = Time()
    monkeypatch.setattr(time, "monotonic", stopped)
    return stopped


def reporter(
    folder: Path,
    trial: Trial | None = None,
    *,
    is_chief: bool = True,
    start: int = 0,
    device_count: int = 1,
    flops: float = 0.0,
    **flags: Any,
) -> Reporter:
    """Return the Reporter for a run that starts now, with these flags and with logs under `folder`."""
    job = Job(Config(**flags), Storage(logs=folder / "logs", trial=trial), folder)
    return Reporter(
        job,
        Clock(time.monotonic(), TRAINING),
        batch(1),
        is_chief=is_chief,
        start=start,
        device_count=device_count,
        flops=flops,
    )


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all scalars in the folder's event files, which TensorBoard's own loader reads."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    return curves


def lines(text: str) -> list[dict[str, Any]]:
    """Parse JSON lines as Cloud Logging does, and reject NaN and Infinity."""
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_tensorboard_reads_back_what_was_reported(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "logs")
    board.write(50, {"train/loss": 0.5, "train/accuracy": 0.25})
    board.write(100, {"train/loss": 0.125})
    assert read_curves(tmp_path / "logs") == {
        "train/loss": [(50, 0.5), (100, 0.125)],
        "train/accuracy": [(50, 0.25)],
    }


def test_a_resumed_run_adds_to_the_curves(tmp_path: Path) -> None:
    for step in (1, 2):
        board = TensorBoard(tmp_path)
        board.write(step, {"train/loss": 1.0})
    assert sorted(read_curves(tmp_path)["train/loss"]) == [(1, 1.0), (2, 1.0)]


def test_a_json_line_carries_message_severity_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(600).write(50, {"train/loss": 0.5, "train/samples_per_second": 1520.2})
    (line,) = lines(capsys.readouterr().out)
    assert line == {
        "severity": "INFO",
        "message": "step 50/600  loss 0.5000  1520 samples/s",
        "step": 50,
        "steps": 600,
        "metric": "train/loss",
        "train/loss": 0.5,
        "train/samples_per_second": 1520.2,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_still_writes_json(loss: float, capsys: pytest.CaptureFixture[str]) -> None:
    Lines(10).write(1, {"train/loss": loss, "train/accuracy": 0.5})
    (line,) = lines(capsys.readouterr().out)
    assert (line["train/loss"], line["train/accuracy"]) == (str(loss), 0.5)


@pytest.mark.parametrize("text", ["two\nlines", 'a "quote"', "é ✓", "[bold]", "{}", ""])
def test_a_sentence_is_one_json_line_whatever_it_holds(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(text)
    warn(text)
    assert lines(capsys.readouterr().out) == [
        {"severity": severity, "message": text} for severity in ("INFO", "WARNING")
    ]


def test_what_threads_say_at_the_same_time_are_lines_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(4) as threads:
        for step in range(1000):
            threads.submit(say, "saved", step=step)
    assert sorted(line["step"] for line in lines(capfd.readouterr().out)) == list(range(1000))


def test_at_a_glance_one_sees_loss_accuracy_and_speed() -> None:
    assert describe({"train/loss": 0.1234, "train/accuracy": 0.5, "train/learning_rate": 1.0}) == (
        "loss 0.1234  accuracy 0.5000"
    )
    assert describe({"heldout/accuracy": 0.97219}) == "heldout accuracy 0.9722"


def test_a_report_is_a_training_value_with_its_speed(
    stopped: Time, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = reporter(tmp_path, start=10, device_count=4, global_batch=96, steps=600)
    stopped.now += 4
    reports.training(12, {"loss": 0.5})
    (line,) = lines(capsys.readouterr().out)
    counts = per_step(Config(global_batch=96), batch(1))
    speed = {"step_seconds": 2.0, "samples_per_second_per_device": 12.0}
    speed |= {f"{name}_per_second": count / 2 for name, count in counts.items()}
    assert line.pop("message").startswith("step 12/600  loss 0.5000  48 samples/s")
    event = {"severity": "INFO", "step": 12, "steps": 600, "metric": "train/loss", "train/loss": 0.5}
    assert line == event | {f"train/{name}": value for name, value in speed.items()}
    assert line["train/samples_per_second"] == 48


def test_of_several_counts_one_sees_each_speed() -> None:
    speeds = {"train/samples_per_second": 48.0, "train/tokens_per_second": 3072.0}
    assert describe({"train/loss": 0.5, **speeds}) == "loss 0.5000  48 samples/s  3072 tokens/s"


def test_each_report_counts_from_the_one_before(
    stopped: Time, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = reporter(tmp_path)
    for step, seconds in ((1, 5), (2, 3)):
        stopped.now += seconds
        reports.training(step, {})
    assert [line["train/step_seconds"] for line in lines(capsys.readouterr().out)] == [5, 3]


def test_what_is_no_step_is_not_counted_as_one_and_waiting_for_data_is_told(
    stopped: Time, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(stopped.now)
    job = Job(Config(), Storage(logs=tmp_path), tmp_path)
    reports = Reporter(job, clock, batch(1), is_chief=True, start=0, device_count=1)
    for phase, seconds in ((DATA, 0.5), (FIRST_STEP, 1.0), (CHECKPOINTS, 100.0), (TRAINING, 0.5)):
        clock.begin(phase)
        stopped.now += seconds
    reports.training(2, {})
    (line,) = lines(capsys.readouterr().out)
    assert (line["train/step_seconds"], line["train/data_seconds"]) == (1.0, 0.25)
    assert line["message"].endswith("/s  25% waiting for data")


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.04, "/s"), (0.3, "/s  30% communicating"), (7.0, "/s  100% communicating")]
)
def test_communication_is_told_where_it_is_a_notable_part_of_a_step(
    stopped: Time, seconds: float, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = reporter(tmp_path)
    stopped.now += 2.0
    reports.training(2, {"computing_seconds": 1 - seconds, "communication_seconds": seconds})
    assert lines(capsys.readouterr().out)[0]["message"].endswith(told)


def test_steps_that_a_start_before_had_taken_and_lost_are_counted_and_train_nothing(
    stopped: Time, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = TensorBoard(tmp_path)
    before.write(4, {"train/loss": 1.0})
    clock = Clock(stopped.now, TRAINING)
    job = Job(Config(), Storage(logs=tmp_path), tmp_path)
    after = Reporter(job, clock, batch(1), is_chief=True, start=2, device_count=1)
    for step, seconds in ((3, 1), (4, 2), (5, 4), (6, 8)):
        stopped.now += seconds
        after.took(step)
        clock.begin(TRAINING)
    assert (clock.seconds["repeated"], clock.seconds["training"]) == (3.0, 12.0)
    assert lines(capsys.readouterr().out)[0]["message"] == "resumed at step 2, so 2 finished steps must be repeated"


def test_mfu_is_the_share_of_what_the_devices_are_built_for(
    stopped: Time, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peak = 4 * peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16")
    reports = reporter(tmp_path, device_count=4, flops=312e12 / peak)
    stopped.now += 1
    reports.training(2, {})
    assert lines(capsys.readouterr().out)[0]["train/mfu"] == 0.5


@pytest.mark.parametrize(("device", "precision"), [("CPU", "float32"), ("NVIDIA A100", "float32"), ("GT1000", "")])
def test_of_a_device_whose_peak_is_not_known_there_is_no_mfu(device: str, precision: str) -> None:
    assert peak_flops(device, precision) == 0.0


def test_a_run_begins_with_its_process() -> None:
    before = time.monotonic()
    shown = "import time; from trainer.reports import speed; print(speed.process_start(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", shown], cwd=PROJECT, capture_output=True, text=True, timeout=300)
    began, then = map(float, done.stdout.split())
    assert before - 0.1 <= began <= then  # the kernel's clock ticks are hundredths of a second


def test_an_evaluation_has_names_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = reporter(tmp_path, steps=9)
    reports.heldout(5, {"loss": 1.0})
    (line,) = lines(capsys.readouterr().out)
    assert line.pop("message") == "step 5/9  heldout loss 1.0000"
    assert line == {"severity": "INFO", "step": 5, "steps": 9, "metric": "heldout/loss", "heldout/loss": 1.0}


def test_only_the_chief_has_sinks_and_the_others_may_report_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = reporter(tmp_path, is_chief=False)
    reports.training(1, {"loss": 1.0})
    reports.heldout(1, {"loss": 1.0})
    assert capsys.readouterr().out == ""
    assert not [*tmp_path.iterdir()]


def test_the_chief_writes_curves_and_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = reporter(tmp_path, steps=4)
    reports.training(1, {"loss": 0.5})
    reports.heldout(1, {"accuracy": 0.25})
    curves = read_curves(tmp_path / "logs")
    assert (curves["train/loss"], curves["heldout/accuracy"]) == ([(1, 0.5)], [(1, 0.25)])
    assert [line["message"].partition("  ")[0] for line in lines(capsys.readouterr().out)] == ["step 1/4"] * 2
