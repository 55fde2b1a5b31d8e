"""Parameter servers, for real: accuracy, the loss of a worker and of a server, checkpoints for all strategies."""

import contextlib
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import keras
import pytest
import tensorflow as tf

from tests.training import DEADLINE, eventually, processes, signal_trainer, started, train
from trainer.cluster.preemption import LastMoment
from trainer.cluster.spec import Cluster, Node
from trainer.cluster.world import World
from trainer.parallel import multi_worker_mirrored, parameter_server
from trainer.parallel.parameter_server import served
from trainer.parallel.strategy import StrategyFlags
from trainer.vertex.errors import TrainerError

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
SERVED = ("--strategy", "parameter_server")
CHIEF, WORKER, SERVER = (Node(f"workerpool{pool}-0", "h:1") for pool in range(3))


def lose(folder: Path, replica: str, step: int, for_good: bool = False) -> Callable[[], None]:
    """Kills this replica once, as soon as that checkpoint is whole; freezes whatever replaces it, if for good."""
    seal = folder / f".vertex/gcs/b/run/checkpoints/step-{step:09d}/committed.json"
    killed: list[bool] = []

    def watch() -> None:
        if not killed and seal.exists():
            killed.append(signal_trainer(folder, replica, signal.SIGKILL))
        elif killed and for_good:
            signal_trainer(folder, replica, signal.SIGSTOP)

    return watch


@linux
@pytest.mark.proof
def test_lost_workers_cost_no_accuracy_and_are_not_waited_for_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")  # of these tests; how much is said is the trainer's choice
    flags = [
        "--global-batch",
        "96",
        "--warmup",
        "50",
        "--steps",
        "200",
        "--log-every",
        "50",
        "--checkpoint-every",
        "50",
    ]
    mirrored = train(tmp_path / "mirrored", 1, *flags)
    folder = tmp_path / "served"
    # One comes back. At the end both are lost, and what replaces them never gets as far as to serve.
    losses = [lose(folder, "workerpool1-0", 50)]
    losses += [lose(folder, f"workerpool1-{index}", 200, for_good=True) for index in range(2)]

    def watch() -> None:
        for one in losses:
            one()

    served = train(folder, 3, *SERVED, *flags, servers=1, options=["--restarts"], watch=watch)
    assert served.code == 0, served.output
    assert "workerpool1-0 is gone; the other workers take over its work until it returns" in served.output
    assert "workerpool1-1 was killed by SIGKILL (exit code 137)" in served.output
    assert "workerpool1-0 was killed by SIGKILL (exit code 137). Restarting this replica (restart 1 of" in served.output
    assert "Failed to connect" not in served.output  # TensorFlow's words for it
    assert "resumed" not in served.output  # the chief went on
    assert [report["step"] for report in served.reports if "train/loss" in report] == [50, 100, 150, 200]
    expected, found = (run.result["accuracy"] for run in (mirrored, served))
    assert found > expected - 0.04
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(folder)))


@linux
@pytest.mark.proof
def test_a_lost_parameter_server_ends_the_run_and_every_strategy_resumes_it(tmp_path: Path) -> None:
    flags = ("--checkpoint-every", "20", "--steps")
    kill = lose(tmp_path, "workerpool2-0", 20)
    broken = train(tmp_path, 2, *SERVED, *flags, "2000", servers=2, watch=kill)
    assert broken.code == 1
    assert (
        "workerpool2-0, a parameter server, is gone, and its variables are lost; after a restart, training resumes"
        in broken.output
    )
    assert "Traceback" not in broken.output
    assert eventually(lambda: not processes("CLUSTER_SPEC", str(tmp_path)))

    seals = (broken.output_folder / "checkpoints").glob("step-*/committed.json")
    last = max(int(seal.parent.name.removeprefix("step-")) for seal in seals)
    mirrored = train(tmp_path, 1, *flags, str(last + 40))
    assert f"resumed at step {last}" in mirrored.output
    served = train(tmp_path, 2, *SERVED, *flags, str(last + 60), servers=2)
    assert served.code == 0, served.output
    assert f"resumed at step {last + 40}" in served.output
    early, later, latest = (fmean(run.losses[:10]) for run in (broken, mirrored, served))
    assert latest < later < early - 0.2


@pytest.mark.proof
def test_when_all_are_told_to_end_the_servers_stay_until_the_chief_has_saved_what_they_hold(tmp_path: Path) -> None:
    flags = ("--checkpoint-every", "5000", "--steps")
    with started(tmp_path, 2, *SERVED, *flags, "5000", servers=2) as (launcher, shown):
        assert eventually(lambda: "step 20/" in shown.read_text()), shown.read_text()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(DEADLINE) == 130
    told = re.search(r"workerpool0-0: saved step (\d+), because this replica was asked to stop", shown.read_text())
    assert told, shown.read_text()
    last = int(told[1])
    resumed = train(tmp_path, 2, *SERVED, *flags, str(last + 10), servers=2)
    assert resumed.code == 0, resumed.output
    assert f"resumed at step {last}" in resumed.output
    assert [step for step, _ in resumed.losses_by_step] == [*range(last + 1, last + 11)]


@pytest.mark.proof
def test_a_parameter_server_that_is_told_alone_to_end_costs_no_step(tmp_path: Path) -> None:
    flags = ("--checkpoint-every", "5000", "--steps", "5000")
    ended = train(tmp_path, 2, *SERVED, *flags, servers=2, options=["--fault", "workerpool2-1:term@step=10"])
    assert "workerpool2-1, a parameter server, was asked to stop, so the run stops" in ended.output
    told = re.search(r"workerpool0-0: saved step (\d+), because workerpool2-1 was asked to stop", ended.output)
    assert told, ended.output
    assert "Job failed: workerpool2-1 was killed by SIGTERM (exit code 143)" in ended.output
    assert (ended.output_folder / f"checkpoints/step-{int(told[1]):09d}/committed.json").exists()
    assert ended.code == 1


def test_a_chief_hears_of_its_end_at_the_very_next_step_however_fast_those_before_were() -> None:
    last = LastMoment(Cluster(), World(), timeout=1.0)
    with last:
        assert [last.by(step) for step in (1, 2, 3)] == [""] * 3
        signal.raise_signal(signal.SIGTERM)
        assert last.by(4) == "workerpool0-0"


class Lost:
    """A result that was on a worker which is gone, until another one has computed it again."""

    def __init__(self, times: int) -> None:
        self.times = times

    def fetch(self) -> str:
        self.times -= 1
        if self.times >= 0:
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        return "totals"


class Coordinator:
    """TensorFlow's, as far as it tells what it has given up on."""

    def __init__(self, error: tf.errors.OpError | None = None) -> None:
        self.error = error

    def done(self) -> bool:
        if self.error:
            raise self.error
        return False


def test_a_result_that_is_lost_with_its_worker_is_waited_for() -> None:
    assert served.fetched(Lost(times=2), Coordinator()) == "totals"


def test_a_result_that_nobody_will_compute_again_is_an_error() -> None:
    error = tf.errors.InvalidArgumentError(None, None, "a label is out of range")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label is out of range"):
        served.fetched(Lost(times=1), Coordinator(error))


@pytest.mark.parametrize(("taken", "count"), [(0, 1), (2, 3), (9, 3)])
def test_a_port_that_another_process_took_meanwhile_is_looked_for_again(
    taken: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def strategy(*_: object) -> str:
        asked.append(1)
        if len(asked) <= taken:
            raise tf.errors.UnknownError(None, None, "Could not start gRPC server")
        return "servers"

    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", strategy)
    with pytest.raises(tf.errors.UnknownError) if taken > count else contextlib.nullcontext():
        assert parameter_server.connected(Cluster((CHIEF, WORKER), servers=(SERVER,))) == "servers"
    assert len(asked) == count


def test_a_run_with_parameter_servers_needs_workers_and_servers() -> None:
    for lacking in (Cluster(), Cluster((CHIEF, WORKER)), Cluster((CHIEF,), servers=(SERVER,))):
        with pytest.raises(TrainerError, match="requires workers in pool 1 and parameter servers in pool 2"):
            parameter_server.STRATEGY.lay_out(StrategyFlags(), lacking, Path())
    whole = Cluster((CHIEF, WORKER), servers=(SERVER,))
    assert parameter_server.STRATEGY.lay_out(StrategyFlags(), whole, Path()).data_size == 1
    assert parameter_server.STRATEGY.servers(whole) == (SERVER,)


def test_the_chief_alone_reads_the_data() -> None:
    replicas = [Cluster((CHIEF, WORKER), node.name, (SERVER,)) for node in (CHIEF, WORKER, SERVER)]
    assert [parameter_server.STRATEGY.reads_data(replica) for replica in replicas] == [True, False, False]


def test_pool_2_is_told_what_it_lacks_when_it_runs_the_trainer_without_the_flag() -> None:
    reducers = Cluster((CHIEF, WORKER), SERVER.name, (SERVER,))
    with pytest.raises(TrainerError, match=r"workerpool2-0: only pools 0 and 1 train; .* --strategy parameter_server"):
        multi_worker_mirrored.STRATEGY.lay_out(multi_worker_mirrored.Flags(), reducers, Path())
    assert multi_worker_mirrored.STRATEGY.servers(Cluster((CHIEF, WORKER), servers=(SERVER,))) == ()


def test_the_net_of_a_worker_drops_other_numbers_in_each_call() -> None:
    net = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dropout(0.5)])
    worker = served.ServedNet(net)
    call = tf.function(lambda: worker(tf.ones((1, 64)), training=True) != 0)
    assert len({call().numpy().tobytes() for _ in range(4)}) == 4
