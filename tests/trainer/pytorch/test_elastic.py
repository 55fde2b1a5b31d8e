"""Replicas that train on while others are lost and return: no step and no sample is lost, and the curve stays."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.changed import change
from tests.training import DEADLINE, Run, train

ELASTIC = ("--strategy", "elastic", "--quorum-timeout", f"{DEADLINE:.0f}")
STEPS = ("--steps", "60")
EVENTS = ("gone", "back")
SAME = 1e-6  # a sum in another order rounds differently
WORKER, OTHER, CHIEF = "workerpool1-0", "workerpool1-1", "workerpool0-0"
# Those who go on wait for the others, without whom they would have finished long before.
UNHURRIED = """

_train_step = train_step


def train_step(config, strategy, state, batch, world):
    import time

    if world.size < 3:
        time.sleep(2)
    return _train_step(config, strategy, state, batch, world)
"""


@pytest.fixture(autouse=True)
def unhurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(tmp_path / "project", "trainer/train.py", UNHURRIED, monkeypatch)


def broken(folder: Path, *faults: str, flags: Sequence[str] = ()) -> Run:
    """Train with three replicas and these faults; a lost replica restarts alone."""
    options = [word for fault in faults for word in ("--fault", fault)]
    run = train(folder / "run", 3, *ELASTIC, *STEPS, *flags, options=("--restarts", *options))
    assert run.code == 0, run.output
    assert all(f"fault: {fault.partition(':')[0]}" in run.output for fault in faults)
    assert "must be repeated" not in run.output
    assert run.output.count("step 60/60  loss") == 1
    return run


def test_two_replicas_go_on_without_a_third_which_returns_and_receives_the_state_of_another(tmp_path: Path) -> None:
    run = broken(tmp_path, f"{WORKER}:kill@step=10")
    (gone,) = re.findall(rf"{WORKER} is gone; 2 of 3 go on at step (\d+) with all 24 samples", run.output)
    (back,) = re.findall(rf"{WORKER} is back at step (\d+), state from {CHIEF} in \d+\.\d s", run.output)
    assert 10 <= int(gone) <= int(back) < 60
    assert (named(run, "gone"), named(run, "back")) == ({WORKER}, {WORKER})
    assert re.findall(r"training on (\d) x CPU, elastic", run.output) == ["3", "2", "3"]
    assert {report["train/replicas"] for report in run.reports if "train/replicas" in report} == {2, 3}
    assert {*re.findall(r"  replicas (\S+ of \S+)  ", run.output)} == {"2 of 3", "3 of 3"}
    steps = [step for step, _ in run.losses_by_step]
    assert steps == sorted({*steps})  # none twice
    assert int(gone) + 1 in steps


def named(run: Run, event: str) -> set[str]:
    """Return the replicas that the chief's messages of this kind name."""
    return {name for report in run.reports for name in report.get(event, [])}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("unbroken"), 3, *ELASTIC, *STEPS)


class Row(NamedTuple):
    """Faults, the flags of their run, and what is said of it."""

    faults: Sequence[str]
    gone: Sequence[str] = ()
    back: Sequence[str] = ()
    flags: Sequence[str] = ()
    restarts: int = 1


ROWS = {
    "kill": Row([f"{WORKER}:kill@step=20"], [WORKER], [WORKER]),
    "kill twice": Row([f"{WORKER}:kill@step=10", f"{WORKER}:kill@step=30"], [WORKER], [WORKER], restarts=2),
    "term": Row([f"{WORKER}:term@step=20"], [WORKER], [WORKER]),
    "freeze": Row([f"{WORKER}:freeze=30@step=20"], [WORKER], [WORKER], ["--collective-timeout", "10"], restarts=0),
    "slow": Row([f"{WORKER}:slow=3@step=20"], restarts=0),
    "late": Row([f"{WORKER}:late=40"], [WORKER], [WORKER], ["--rollcall-timeout", "10"], restarts=0),
    "two": Row([f"{each}:kill@step=20" for each in (WORKER, OTHER)], [WORKER, OTHER], [WORKER, OTHER], restarts=2),
    "chief": Row([f"{CHIEF}:kill@step=20"], back=[CHIEF]),
    "chief term": Row([f"{CHIEF}:term@step=20"], back=[CHIEF]),
    "chief and worker": Row([f"{each}:kill@step=20" for each in (CHIEF, WORKER)], back=[CHIEF, WORKER], restarts=2),
    "in checkpoints": Row([f"{WORKER}:kill@step=20"], [WORKER], [WORKER], ["--checkpoint-every", "1"]),
    "in evaluations": Row([f"{WORKER}:kill@step=20"], [WORKER], [WORKER], ["--evaluate-every", "1"]),
    "chief in checkpoints": Row([f"{CHIEF}:kill@step=20"], back=[CHIEF], flags=["--checkpoint-every", "1"]),
}


@pytest.mark.proof
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_fault_costs_no_step_and_the_result_is_that_of_the_unbroken_run(
    tmp_path: Path, unbroken: Run, row: Row
) -> None:
    run = broken(tmp_path, *row.faults, flags=row.flags)
    same_result(run, unbroken)
    assert (named(run, "gone"), named(run, "back")) == ({*row.gone}, {*row.back})
    assert run.output.count("Restarting this replica") == row.restarts


@pytest.mark.proof
@pytest.mark.parametrize("fault", ["raise", "exit0"])
def test_an_error_of_the_code_ends_the_job_because_a_restart_would_fail_again(tmp_path: Path, fault: str) -> None:
    options = ("--restarts", "--fault", f"{WORKER}:{fault}@step=10")
    run = train(tmp_path / "run", 3, *ELASTIC, *STEPS, options=options)
    assert run.code == 1
    assert f"Job failed: {WORKER} exited with code 1" in run.output
    assert "Restarting" not in run.output


def same_result(run: Run, unbroken: Run) -> None:
    assert run.result["loss"] == pytest.approx(unbroken.result["loss"], rel=0, abs=SAME)


DIES = """

_{method} = Elastic.{method}


def die(self, *arguments):
    marker, ranks, steps = self._job.storage.checkpoints / "died", self._generation.ranks, self._generation.steps
    if self._client.rank == {rank} and steps and {rank} {condition} and not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        say("another replica is killed")
        os._exit(137)  # as after SIGKILL, which the first process of a namespace can't send to itself
    return _{method}(self, *arguments)


Elastic.{method} = die
"""
BEFORE_THE_GROUP, AFTERWARDS = "_connect", "_receive"


@pytest.mark.proof
@pytest.mark.parametrize("method", [BEFORE_THE_GROUP, AFTERWARDS])
def test_a_replica_that_is_killed_while_it_joins_joins_at_its_next_start(
    tmp_path: Path, unbroken: Run, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = DIES.format(method=method, rank=1, condition="not in steps")
    change(tmp_path / "project", "trainer/parallel/elastic.py", dies, monkeypatch)
    run = broken(tmp_path, f"{WORKER}:kill@step=10")
    assert run.output.count("another replica is killed") == 1
    assert run.output.count("Restarting this replica") == 2
    assert run.output.count(f"{WORKER} is back at step") == 1
    same_result(run, unbroken)


@pytest.mark.proof
@pytest.mark.parametrize("rank", [0, 2])
def test_a_second_replica_that_is_killed_while_the_others_regroup_holds_nobody_up(
    tmp_path: Path, unbroken: Run, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = DIES.format(method=BEFORE_THE_GROUP, rank=rank, condition="in ranks and 1 not in ranks")
    change(tmp_path / "project", "trainer/parallel/elastic.py", dies, monkeypatch)
    run = broken(tmp_path, f"{WORKER}:kill@step=10")
    assert run.output.count("another replica is killed") == 1
    assert run.output.count("Restarting this replica") == 2
    same_result(run, unbroken)


INTERRUPTED = """

_write = write


def write(copy, folder, keep, world, samples, buffers):
    if folder.name.endswith("60") and not (marker := folder.parent / "died").exists():
        world.wait()
        if world.is_chief:
            marker.touch()
            os._exit(137)
    _write(copy, folder, keep, world, samples, buffers)
"""


@pytest.mark.proof
def test_the_last_checkpoint_is_written_again_if_its_writer_was_killed(
    tmp_path: Path, unbroken: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/checkpoints/saver.py", INTERRUPTED, monkeypatch)
    run = broken(tmp_path)
    assert f"{CHIEF} is back at step 60" in run.output
    assert run.output.count("Restarting this replica") == 1
    same_result(run, unbroken)


COUNTS = """

_build = build


def build(config, example):
    net = _build(config, example)
    net.register_buffer("seen", torch.zeros(()))

    def count(net, inputs):
        if net.training and torch.is_grad_enabled():
            net.seen += inputs[0].shape[0]

    net.register_forward_pre_hook(count)
    return net
"""


@pytest.mark.proof
def test_buffers_change_once_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the statistics of BatchNorm do; this one counts the samples of the chief's slices."""
    change(tmp_path / "project", "trainer/model.py", COUNTS, monkeypatch)
    run = broken(tmp_path, f"{WORKER}:kill@step=10")
    (gone,), (back,) = (map(int, re.findall(rf"{WORKER} is {word}.* at step (\d+)", run.output)) for word in EVENTS)
    seen = torch.load(run.output_folder / "model/weights.pt")["seen"]
    assert int(seen) == 24 // 3 * (60 - (back - gone)) + 24 // 2 * (back - gone)
