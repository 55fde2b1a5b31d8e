"""A training loop of one's own under `python -m trainer.cluster.run`: who takes part, and who is to blame."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests import own_loop
from trainer.cluster import run
from trainer.cluster.spec import Cluster, Node

LOOP = """
import json
import os
import sys
import time

import tensorflow as tf

import mine  # beside this script

steps, fault = int(sys.argv[1]), sys.argv[2]
config = json.loads(os.environ["TF_CONFIG"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
size = strategy.num_replicas_in_sync
assert [*config["cluster"]] == ["chief", "worker"]
rank = config["task"]["index"] + (config["task"]["type"] == "worker")
with strategy.scope():
    weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

@tf.function
def step():
    def one():
        with tf.GradientTape() as tape:
            loss = (weight - mine.GOAL) ** 2
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(one), axis=None)

for number in range(steps):
    loss = float(step())
    if number == 2:
        print(f"process {os.getpid()} trains as rank {rank} of {size}", flush=True)
    if number == 5 and rank == 1 and fault == "error":
        raise KeyError("labels")
    time.sleep(0.01)
if rank == 0 and fault == "none":
    time.sleep(5)  # the others have ended, while the chief writes the model
print(f"loss {loss:.6f}", flush=True)
sys.exit({"none": 0, "exit": 3, "words": "the data are gone"}[fault])
"""
KERAS = """
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 fits on one machine alone

import json
import time

import numpy as np
import tensorflow as tf
import tf_keras as keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rows = np.linspace(-1, 1, 96, dtype=np.float32)[:, None]
dataset = tf.data.Dataset.from_tensor_slices((rows, 3 * rows + 1)).batch(24)
with strategy.scope():
    net = keras.Sequential([keras.layers.Dense(1, input_shape=(1,), kernel_initializer="zeros")])
    net.compile(keras.optimizers.SGD(0.1), "mse")

def report(epoch, logs):
    print(json.dumps({"epoch": epoch, "train/loss": logs["loss"]}), flush=True)
    time.sleep(0.1)

callbacks = [keras.callbacks.BackupAndRestore("backup"), keras.callbacks.LambdaCallback(on_epoch_end=report)]
net.fit(dataset, epochs=30, verbose=0, callbacks=callbacks)
kernel, bias = (value.item() for value in net.get_weights())
print(json.dumps({"kernel": kernel, "bias": bias}), flush=True)
"""
TRAINS = re.compile(r"process (\d+) trains as rank (\d) of 3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the script and what it imports."""
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "mine.py").write_text("GOAL = 3.0\n")
    return tmp_path


def test_the_script_finds_the_chief_and_the_workers_and_nobody_else() -> None:
    nodes = tuple(Node(name, f"{name}:2222") for name in ("workerpool0-0", "workerpool1-0", "workerpool1-1"))
    cluster = Cluster(nodes, "workerpool1-1", servers=(Node("workerpool2-0", "reducer:2222"),))
    assert json.loads(run.tf_config(cluster)) == {
        "cluster": {"chief": ["workerpool0-0:2222"], "worker": ["workerpool1-0:2222", "workerpool1-1:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(run.tf_config(replace(cluster, name="workerpool0-0")))["task"] == {"type": "chief", "index": 0}


@pytest.mark.proof
@pytest.mark.parametrize("words", [["loop.py"], ["-m", "loop"]])
def test_every_machine_of_a_job_takes_part_once(folder: Path, words: list[str]) -> None:
    done = own_loop.train(folder, *words, "20", "none")
    assert done.code == 0, done.output
    ranks = [TRAINS.findall("\n".join(lines)) for lines in done.lines.values()]
    assert sorted(rank for ((_, rank),) in ranks) == ["0", "1", "2"]


@pytest.mark.proof
def test_a_script_without_a_strategy_trains_alone_and_is_a_user_s_error(folder: Path) -> None:
    (folder / "alone.py").write_text("import tensorflow as tf; print(tf.reduce_sum(tf.ones(3)))")
    with own_loop.started(folder, "alone.py", count=2) as replicas:
        assert replicas.codes() == [1, 1]
    assert (
        "2 processes ran, but didn't form one world, so each one trained alone. Train in the scope"
        in replicas.printed(0)
    )


@pytest.mark.proof
def test_a_fault_of_the_script_is_a_user_s_error(folder: Path) -> None:
    with own_loop.started(folder, "loop.py", "20", "error") as replicas:
        assert replicas.codes() == [75, 1, 75]
    assert "KeyError: 'labels'" in replicas.printed(1)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("fault", "code", "words"), [("exit", 3, "exited with code 3"), ("words", 1, "the data are gone")]
)
def test_the_script_s_own_exit_code_is_kept(folder: Path, fault: str, code: int, words: str) -> None:
    with own_loop.started(folder, "loop.py", "5", fault) as replicas:
        assert replicas.codes() == [code] * 3
    assert words in replicas.printed(2)


@pytest.mark.proof
def test_a_lost_peer_is_named_and_ends_the_others_within_seconds_with_a_code_that_restarts(folder: Path) -> None:
    with own_loop.started(folder, "loop.py", "100000", "none", reducers=2) as replicas:
        replicas.wait_for("trains as rank")
        ((victim, _),) = TRAINS.findall(replicas.printed(2))
        os.kill(int(victim), signal.SIGKILL)
        assert replicas.codes(60) == [75, 75, 128 + signal.SIGKILL]
    assert "2 reducers are not used: this run uses CPUs" in replicas.printed(0)
    for rank, name in enumerate(("workerpool0-0", "workerpool1-0")):
        assert f"{name} lost a peer: " in replicas.printed(rank)
        assert "Traceback" not in replicas.printed(rank)


@pytest.mark.proof
def test_a_script_with_fit_of_keras_starts_again_with_all_its_machines_and_ends_where_it_would_have(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tf_keras")
    (tmp_path / "keras_fit.py").write_text(KERAS)
    done = own_loop.train_losing_one(tmp_path, "keras_fit.py")
    # All replicas are stopped soon after the fault, on a busy machine before the slower peer has noticed it.
    assert any(f"{peer} lost a peer: " in done.output for peer in ("workerpool0-0", "workerpool1-0"))
    losses = {report["epoch"]: report["train/loss"] for report in done.reports if "epoch" in report}
    assert [*losses] == [*range(30)]
    assert [*losses.values()] == sorted(losses.values(), reverse=True)  # it goes on from its backup
    assert done.reports[-1] == pytest.approx({"kernel": 3, "bias": 1}, abs=0.05)
