"""Tests that the trainer accepts a tuning job's flags, and writes metrics in the format that Vertex AI reads."""

import math
import time
from pathlib import Path

import yaml

import vertex_launch
from tests.test_telemetry import lines, reporter
from tests.training import PROJECT
from trainer.parallel.choice import parse
from trainer.reports.sinks import MetricFile
from trainer.vertex.storage import Trial


def test_the_trainer_takes_what_the_tuning_job_tries() -> None:
    chief, *workers = vertex_launch.replicas(PROJECT / "jobs/tuning.yaml")
    parameters = yaml.safe_load((PROJECT / "jobs/tuning.yaml").read_text())["studySpec"]["parameters"]
    tried = dict(word.removeprefix("--").split("=") for word in chief.command if "=" in word)
    assert [*tried] == [parameter["parameterId"] for parameter in parameters]
    _, config = parse(chief.command[3:])  # after python -m trainer.task
    assert {name: getattr(config, name) for name in tried} == {name: float(value) for name, value in tried.items()}
    assert all(worker.command == chief.command for worker in workers)


def test_a_trial_reports_its_held_out_metrics_in_the_librarys_format(tmp_path: Path) -> None:
    file, began = tmp_path / "hypertune" / "output.metrics", time.time()
    reports = reporter(tmp_path, Trial("3", file))
    reports.training(5, {"loss": 9.0, "accuracy": 0.0})
    assert not file.exists()  # training values don't count
    reports.heldout(5, {"loss": 0.5, "accuracy": 0.25})
    reports.heldout(10, {"loss": math.nan})
    entries = lines(file.read_text())
    assert [list(entry) for entry in entries] == [sorted(entry) for entry in entries]
    assert all(began <= entry.pop("timestamp") <= time.time() for entry in entries)
    common = {"checkpoint_path": "", "trial": "3"}
    assert entries == [
        {"loss": "0.5", "global_step": "5", **common},
        {"accuracy": "0.25", "global_step": "5", **common},
        {"loss": "nan", "global_step": "10", **common},
    ]


def test_the_metric_file_keeps_the_last_hundred_evaluations(tmp_path: Path) -> None:
    metrics = MetricFile(Trial("3", tmp_path / "m"), steps=150)
    for step in range(1, 151):
        metrics.write(step, {"heldout/loss": 1.0, "heldout/accuracy": 0.5})
    entries = lines((tmp_path / "m").read_text())
    for name in ("loss", "accuracy"):
        assert [int(entry["global_step"]) for entry in entries if name in entry] == [*range(51, 151)]


def test_only_a_trial_of_a_tuning_job_has_a_metric_file(tmp_path: Path) -> None:
    trial = Trial("3", tmp_path / "m")
    for known in (None, trial):
        reports = reporter(tmp_path, known)
        reports.heldout(1, {"accuracy": 0.25})
        assert trial.metric_file.exists() == (known is not None)
