"""What pool 3 does: folders that come and go, and a training, for real, that is evaluated beside it."""

import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import damage, whole
from tests.training import DEADLINE, PROJECT, Run, eventually, train
from trainer.checkpoints import commit_marker
from trainer.config import Config, Job
from trainer.evaluator import follow as evaluator
from trainer.evaluator.__main__ import scorer
from trainer.evaluator.follow import Metrics, follow
from trainer.parallel import choice
from trainer.samples import shards
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

STEPS = 40
EVERY = ("--steps", str(STEPS), "--checkpoint-every", "10", "--evaluate-every", "10", "--keep", "9")
FLAGS = ("--global-batch", "24", "--warmup", "5", *EVERY)  # as tests/training.py has them


class Following:
    """An evaluator of folders: it knows what each is worth, and notes in which order it was asked and what it told."""

    def __init__(self, root: Path, **losses: float) -> None:
        self.root, self.asked, self.told = root, list[int](), dict[int, Metrics]()
        self._losses = {int(name.removeprefix("step_")): loss for name, loss in losses.items()}

    def score(self, folder: Path) -> Metrics:
        self.asked.append(commit_marker.number(folder))
        return {"loss": self._losses.get(commit_marker.number(folder), 0.5), "accuracy": 0.5}

    def report(self, step: int, metrics: Metrics) -> None:
        assert step not in self.told
        self.told[step] = metrics

    def follow(self, steps: int, timeout: float = DEADLINE) -> None:
        follow(Config(steps=steps), self.root, self.score, self.report, timeout)

    @property
    def best(self) -> Any:
        return json.loads((self.root / evaluator.BEST).read_text())


def test_each_whole_checkpoint_is_scored_once_in_the_order_of_steps(tmp_path: Path) -> None:
    for step in (30, 10, 20):
        whole(tmp_path, step)
    (whole(tmp_path, 15) / "weights").unlink()
    one = Following(tmp_path)
    one.follow(30)
    assert one.asked == list(one.told) == [10, 20, 30]


def test_a_training_that_takes_its_time_is_followed_to_its_last_step(tmp_path: Path) -> None:
    one = Following(tmp_path / "checkpoints")  # which is not there yet
    following = threading.Thread(target=one.follow, args=(20,), daemon=True)
    following.start()
    whole(one.root, 10)
    assert eventually(lambda: 10 in one.told)
    time.sleep(evaluator.LOOK_SECONDS)
    assert following.is_alive()
    whole(one.root, 20)
    following.join(DEADLINE)
    assert not following.is_alive()
    assert one.asked == [10, 20]


def test_an_evaluator_that_restarts_does_nothing_twice(tmp_path: Path) -> None:
    whole(tmp_path, 10)
    Following(tmp_path, step_10=0.1).follow(10)
    whole(tmp_path, 20)
    again = Following(tmp_path, step_20=0.2)
    again.follow(20)
    assert again.asked == [20]
    assert again.best["step"] == 10


@pytest.mark.parametrize("text", ["", "[]", '{"ten": {}}'])
def test_results_that_cannot_be_read_are_made_again(tmp_path: Path, text: str) -> None:
    whole(tmp_path, 10)
    (tmp_path / evaluator.RESULTS).write_text(text)
    one = Following(tmp_path)
    one.follow(10)
    assert one.asked == [10]


def test_the_one_with_the_smallest_loss_is_marked(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        whole(tmp_path, step)
    one = Following(tmp_path, step_10=0.3, step_20=0.2, step_30=0.1, step_40=0.4)
    one.follow(40)
    assert one.best == {"step": 30, "metrics": one.told[30]}


@pytest.mark.parametrize("losses", [(math.nan, 0.9, 0.8), (0.9, math.nan, 0.8), (math.inf, 0.8, math.nan)])
def test_a_loss_that_is_no_number_is_not_the_smallest(losses: tuple[float, ...], tmp_path: Path) -> None:
    for step in (10, 20, 30):
        whole(tmp_path, step)
    one = Following(tmp_path, **{f"step_{step}": loss for step, loss in zip((10, 20, 30), losses, strict=True)})
    one.follow(30)
    assert one.best["metrics"]["loss"] == 0.8


def test_the_mark_keeps_a_checkpoint_and_goes_to_the_next_best_when_it_is_gone_all_the_same(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        whole(tmp_path, step)
    one = Following(tmp_path, step_10=0.1, step_20=0.3, step_30=0.2)
    one.follow(30)
    commit_marker.prune(tmp_path, 1)
    assert [commit_marker.number(folder) for folder in commit_marker.folders(tmp_path)] == [10, 30]
    shutil.rmtree(commit_marker.numbered(tmp_path, 10))
    one.follow(30)
    assert one.best["step"] == 30


def test_a_checkpoint_that_is_removed_while_it_is_read_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Late(Following):
        def score(self, folder: Path) -> Metrics:
            if commit_marker.number(folder) == 10:
                shutil.rmtree(folder)
                (folder / "weights").read_bytes()
            return super().score(folder)

    whole(tmp_path, 10)
    whole(tmp_path, 20)
    one = Late(tmp_path)
    one.follow(20)
    assert list(one.told) == [20]
    assert "step-000000010: it was removed during the evaluation" in capsys.readouterr().out


def test_a_whole_checkpoint_that_cannot_be_read_is_an_error_after_some_attempts(tmp_path: Path) -> None:
    class Broken(Following):
        def score(self, folder: Path) -> Metrics:
            super().score(folder)
            raise OSError("stale file handle")

    whole(tmp_path, 10)
    one = Broken(tmp_path)
    with pytest.raises(OSError, match="stale"):
        one.follow(10)
    assert one.asked == [10] * evaluator.ATTEMPTS


def test_a_damaged_checkpoint_is_named_and_never_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole(tmp_path, 10)
    damaged = whole(tmp_path, 20)
    damage(damaged / "weights")
    one = Following(tmp_path)
    one.follow(20)
    assert one.asked == [10]
    assert one.best["step"] == 10
    assert f"skipped {damaged}: weights is damaged" in capsys.readouterr().out


def test_no_checkpoint_for_too_long_ends_it_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Following(tmp_path).follow(10, timeout=0.1)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["severity"] == "WARNING"
    assert "for 0.1 s; the evaluator stops, but the job continues" in said["message"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A chief, a worker and an evaluator."""
    return train(tmp_path_factory.mktemp("evaluated"), 2, *EVERY, evaluated=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same training by one process, without an evaluator."""
    return train(tmp_path_factory.mktemp("alone"), 1, *EVERY)


def heldout(reports: list[dict[str, Any]]) -> list[tuple[int, Any, Any]]:
    """Step, loss and accuracy of each evaluation, in the order of the reports."""
    found = [report for report in reports if "heldout/loss" in report]
    return [(report["step"], report["heldout/loss"], report["heldout/accuracy"]) for report in found]


@pytest.mark.proof
def test_the_evaluator_reports_what_the_trainers_report_of_each_checkpoint_once(evaluated: Run) -> None:
    assert evaluated.code == 0, evaluated.output
    ours, theirs = heldout(evaluated.reports_of("workerpool3-0")), heldout(evaluated.reports)
    assert [step for step, *_ in ours] == [10, 20, 30, 40]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert any((evaluated.output_folder / "logs/evaluator").iterdir())


@pytest.mark.proof
def test_the_best_checkpoint_of_a_training_is_marked(evaluated: Run) -> None:
    best = json.loads((evaluated.output_folder / "checkpoints/best.json").read_text())
    reports = {step: (loss, accuracy) for step, loss, accuracy in heldout(evaluated.reports_of("workerpool3-0"))}
    assert best["metrics"]["loss"] == min(loss for loss, _ in reports.values())
    assert (best["metrics"]["loss"], best["metrics"]["accuracy"]) == reports[best["step"]]


@pytest.mark.proof
def test_an_evaluator_changes_nothing_for_those_that_train(evaluated: Run, alone: Run) -> None:
    assert len(evaluated.losses) == STEPS
    assert evaluated.losses == pytest.approx(alone.losses, abs=1e-4)
    assert not any("training on 3" in line for line in evaluated.lines["workerpool0-0"])


def scored(alone: Run, folder: Path, *flags: str) -> list[tuple[int, Any, Any]]:
    """What an evaluator with these flags makes of real checkpoints, long after they were written."""
    shutil.copytree(alone.output_folder / "checkpoints", folder / "checkpoints")
    shards.write_example(Config.data, folder / "shards")
    (_, config), told = choice.parse([*FLAGS, *flags]), dict[int, Metrics]()
    job = Job(config, Storage(checkpoints=folder / "checkpoints"), folder / "shards")
    follow(config, folder / "checkpoints", scorer(job), told.__setitem__)
    return [(step, metrics["loss"], metrics["accuracy"]) for step, metrics in told.items()]


@pytest.mark.proof
def test_real_checkpoints_are_scored_without_a_training(alone: Run, tmp_path: Path) -> None:
    assert scored(alone, tmp_path) == [pytest.approx(one, abs=1e-5) for one in heldout(alone.reports)]


@pytest.mark.proof
def test_checkpoints_of_another_model_are_refused_in_one_sentence(alone: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="doesn't match this model"):
        scored(alone, tmp_path, "--size", "small")


@pytest.mark.proof
def test_an_evaluator_that_is_stopped_says_so_and_ends(tmp_path: Path) -> None:
    spec = {"cluster": {"workerpool0": ["a:1"], "workerpool3": ["b:1"]}, "task": {"type": "workerpool3", "index": 0}}
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": json.dumps(spec)}
    printed = tmp_path / "printed.txt"
    with printed.open("wb") as output:
        command = [sys.executable, "-m", "trainer.evaluator"]
        process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=output, stderr=output)
    try:
        assert eventually(lambda: "evaluating the checkpoints" in printed.read_text()), printed.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 143
        assert "the evaluator was stopped by SIGTERM" in printed.read_text()
        assert "Traceback" not in printed.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.proof
def test_a_second_evaluator_and_pool_3_with_the_trainers_command_are_told_what_to_write(tmp_path: Path) -> None:
    pools = {"workerpool0": ["a:1"], "workerpool3": ["b:1", "c:1"]}
    for program, index, words in (
        ("evaluator", 1, "workerpool3-1: a single evaluator scores all checkpoints; set pool 3's replicaCount to 1"),
        ("task", 0, "workerpool3-0: only pools 0 and 1 train; use the evaluator's command in pool 3"),
    ):
        spec = json.dumps({"cluster": pools, "task": {"type": "workerpool3", "index": index}})
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "CLUSTER_SPEC": spec}
        command = [sys.executable, "-m", f"trainer.{program}"]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
        (line,) = done.stdout.splitlines()
        assert (done.returncode, json.loads(line)["message"].startswith(words)) == (1, True), done.stdout + done.stderr
