import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.training import PROJECT
from trainer.goodput import CHECKPOINTS, DATA, EXPORT, FIRST_STEP, START, TRAINING, Stopwatch
from trainer.telemetry import (
    JsonLines,
    Telemetry,
    TensorBoard,
    Values,
    describe,
    furthest,
    say,
    say_goodput,
    sinks,
    warn,
)
from trainer.utilization import peak_flops


@dataclass
class Memory:
    """A sink that keeps what it is given."""

    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    closed: bool = False

    def write(self, step: int, values: Values) -> None:
        self.reports.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


@dataclass
class Clock:
    """What time.monotonic shows: it stands still until a test moves it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in the folder's event files, by tensorboard's own loader."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    return curves


def lines(text: str) -> list[dict[str, Any]]:
    """JSON lines as Cloud Logging reads them: NaN and Infinity are not JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_tensorboard_reads_back_what_was_reported(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "logs")
    board.write(50, {"train/loss": 0.5, "train/accuracy": 0.25})
    board.write(100, {"train/loss": 0.125})
    board.close()
    assert read_curves(tmp_path / "logs") == {
        "train/loss": [(50, 0.5), (100, 0.125)],
        "train/accuracy": [(50, 0.25)],
    }


def test_a_resumed_run_adds_to_the_curves(tmp_path: Path) -> None:
    for step in (1, 2):
        board = TensorBoard(tmp_path)
        board.write(step, {"train/loss": 1.0})
        board.close()
    assert sorted(read_curves(tmp_path)["train/loss"]) == [(1, 1.0), (2, 1.0)]


def test_a_json_line_carries_message_severity_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines(600).write(50, {"train/loss": 0.5, "train/samples_per_second": 1520.2})
    (line,) = lines(capsys.readouterr().out)
    assert line == {
        "severity": "INFO",
        "message": "step 50/600  loss 0.5000  1520 samples/s",
        "step": 50,
        "train/loss": 0.5,
        "train/samples_per_second": 1520.2,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_still_writes_json(loss: float, capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines(10).write(1, {"train/loss": loss, "train/accuracy": 0.5})
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


def test_a_report_is_a_training_value_with_its_speed(clock: Clock) -> None:
    memory = Memory()
    telemetry = Telemetry(
        (memory,), start=10, per_step={"samples": 96, "tokens": 6144}, device_count=4, watch=Stopwatch(clock.now)
    )
    clock.now += 4
    telemetry.report(12, {"loss": 0.5})
    speed = {"step_seconds": 2.0, "samples_per_second": 48.0, "samples_per_second_per_device": 12.0}
    speed |= {"tokens_per_second": 3072.0}
    ((step, values),) = memory.reports
    assert (step, values) == (12, {"train/loss": 0.5} | {f"train/{name}": value for name, value in speed.items()})
    assert describe(values) == "loss 0.5000  48 samples/s  3072 tokens/s"


def test_each_report_counts_from_the_one_before(clock: Clock) -> None:
    memory = Memory()
    watch = Stopwatch(clock.now)
    telemetry = Telemetry((memory,), start=0, per_step={"samples": 1}, device_count=1, watch=watch)
    for step, seconds in ((1, 5), (2, 3)):
        clock.now += seconds
        telemetry.report(step, {})
    assert [values["train/step_seconds"] for _, values in memory.reports] == [5, 3]


def test_what_is_no_step_is_not_counted_as_one_and_waiting_for_data_is_told(clock: Clock) -> None:
    memory, watch = Memory(), Stopwatch(clock.now)
    telemetry = Telemetry((memory,), start=0, per_step={"samples": 4}, device_count=1, watch=watch)
    for part, seconds in ((DATA, 0.5), (FIRST_STEP, 1.0), (CHECKPOINTS, 100.0), (TRAINING, 0.5)):
        clock.now += seconds
        watch.lap(part)
    telemetry.report(2, {})
    values = memory.reports[0][1]
    assert (values["train/step_seconds"], values["train/data_seconds"]) == (1.0, 0.25)
    assert describe(values) == "4 samples/s  25% waiting for data"


@pytest.mark.parametrize(("seconds", "told"), [(0.04, ""), (0.3, "  30% communicating"), (7.0, "  100% communicating")])
def test_communication_is_told_where_it_is_a_notable_part_of_a_step(clock: Clock, seconds: float, told: str) -> None:
    memory = Memory()
    telemetry = Telemetry((memory,), start=0, per_step={"samples": 4}, device_count=1, watch=Stopwatch(clock.now))
    clock.now += 2.0
    telemetry.report(2, {"communication_seconds": seconds})
    assert describe(memory.reports[0][1]) == f"4 samples/s{told}"


def test_all_parts_are_the_whole_time_and_what_trained_is_the_goodput(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Stopwatch(clock.now)
    for part, seconds in ((START, 2.0), (DATA, 0.5), (TRAINING, 6.0), (EXPORT, 1.5)):
        clock.now += seconds
        watch.lap(part)
    say_goodput(watch)
    (told,) = lines(capsys.readouterr().out)
    assert told["message"] == "goodput 60%: of 10.0 s 6.0 trained; start 2.0, data 0.5, export 1.5"
    assert (told["goodput"], sum(told["seconds"].values())) == (0.6, 10.0)


def test_steps_that_a_start_before_had_taken_and_lost_train_nothing(clock: Clock, tmp_path: Path) -> None:
    before = TensorBoard(tmp_path)
    before.write(4, {"train/loss": 1.0})
    before.close()
    watch = Stopwatch(clock.now)
    after = Telemetry((), start=2, per_step={"samples": 1}, device_count=1, watch=watch, furthest=furthest(tmp_path))
    for step in (4, 6):
        clock.now += 3
        after.report(step, {})
    assert (watch.seconds["repeated"], watch.seconds["training"]) == (3.0, 3.0)


def test_mfu_is_the_share_of_what_the_devices_are_built_for(clock: Clock) -> None:
    memory = Memory()
    peak = 4 * peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16")
    telemetry = Telemetry(
        (memory,), start=0, per_step={"samples": 1}, device_count=4, watch=Stopwatch(clock.now), flops=312e12 / peak
    )
    clock.now += 1
    telemetry.report(2, {})
    assert memory.reports[0][1]["train/mfu"] == 0.5


@pytest.mark.parametrize(("device", "precision"), [("CPU", "float32"), ("NVIDIA A100", "float32"), ("GT1000", "")])
def test_of_a_device_whose_peak_is_not_known_there_is_no_mfu(device: str, precision: str) -> None:
    assert peak_flops(device, precision) == 0.0


def test_a_run_begins_with_its_process() -> None:
    before = time.monotonic()
    shown = "import time; from trainer import goodput; print(goodput.process_start(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", shown], cwd=PROJECT, capture_output=True, text=True, timeout=300)
    began, then = map(float, done.stdout.split())
    assert before - 0.1 <= began <= then  # ticks of the kernel are hundredths of a second


def test_an_evaluation_has_names_of_its_own() -> None:
    memory = Memory()
    Telemetry((memory,), start=0, per_step={"samples": 1}, device_count=1).evaluation(5, {"loss": 1.0})
    assert memory.reports == [(5, {"heldout/loss": 1.0})]


def test_only_the_chief_has_sinks_and_the_others_may_report_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with Telemetry((), start=0, per_step={"samples": 1}, device_count=1) as telemetry:
        telemetry.report(1, {"loss": 1.0})
        telemetry.evaluation(1, {"loss": 1.0})
    assert capsys.readouterr().out == ""


def test_sinks_are_closed_whatever_happens() -> None:
    memory = Memory()
    with pytest.raises(KeyError), Telemetry((memory,), start=0, per_step={"samples": 1}, device_count=1):
        raise KeyError
    assert memory.closed


def test_the_chief_of_a_cluster_writes_curves_and_json_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Telemetry(sinks(tmp_path, 4, 0), start=0, per_step={"samples": 1}, device_count=1) as telemetry:
        telemetry.report(1, {"loss": 0.5})
        telemetry.evaluation(1, {"accuracy": 0.25})
    curves = read_curves(tmp_path)
    assert (curves["train/loss"], curves["heldout/accuracy"]) == ([(1, 0.5)], [(1, 0.25)])
    assert [line["message"].partition("  ")[0] for line in lines(capsys.readouterr().out)] == ["step 1/4"] * 2
