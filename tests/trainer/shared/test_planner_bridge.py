"""The launcher and the trainer agree on needs and speed of a run, the peak of a GPU and the metrics of a trial."""

from dataclasses import fields
from pathlib import Path

from trainer.describe.estimate import ResourceEstimate
from trainer.reports.curves import TensorBoard
from trainer.reports.sinks import MetricFile
from trainer.reports.speed import peak_flops
from trainer.vertex.storage import Trial
from vertex_launch.facts import catalog
from vertex_launch.local.jobs import metric_file
from vertex_launch.plan import workload
from vertex_launch.plan.workload import Workload


def test_what_the_trainer_says_it_needs_is_what_the_planner_asks() -> None:
    assert {field.name for field in fields(ResourceEstimate)} == {field.name for field in fields(Workload)}


def test_the_speed_of_a_run_is_read_from_its_curves(tmp_path: Path) -> None:
    curves = TensorBoard(tmp_path / "logs")
    curves.write(1, {"train/samples_per_second_per_device": 400.0})
    assert workload.samples_per_second_per_gpu(tmp_path) == 400


def test_the_planner_and_the_trainer_measure_a_gpu_by_the_same_peak() -> None:
    cards = catalog.standard().accelerators
    peaks = {name: peak_flops(name.replace("_", " "), card.precision) for name, card in cards.items()}
    assert peaks == {name: card.tflops * 1e12 for name, card in cards.items()}


def test_what_a_trial_reports_is_what_the_search_reads(tmp_path: Path) -> None:
    file = MetricFile(Trial("3", tmp_path / "metrics"), steps=10)
    file.write(10, {"heldout/loss": 0.5, "heldout/accuracy": 0.25, "train/loss": 9.0})
    (one,) = metric_file.MetricFile(tmp_path / "metrics", ["accuracy", "loss"]).read(ended=True)
    assert (one.step, one.metrics) == (10, {"loss": 0.5, "accuracy": 0.25})
