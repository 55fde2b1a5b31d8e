"""The step on a machine with two devices, and who is in the cluster."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer import cluster, data, strategy, train
from trainer.config import Config
from trainer.strategy import World

CONFIG = Config(global_batch=10, steps=12, warmup=3)


def losses(folder: Path, devices: list[str], config: Config) -> list[float]:
    """The loss of each step on these devices of one machine."""
    world = World(tf.distribute.MirroredStrategy(devices), rank=0, size=1)
    state = train.start(config, (8, 8, 1), world)
    step = train.train_step(config, state, world)
    dataset = data.Dataset(folder, "train")
    found = []
    for batch in train.batches(config, dataset, state, world):
        found.append(train.means(step(batch, 1e-3))["loss"])
        state.step += 1
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    data.write_example("digits", folder)
    return folder


@pytest.mark.parametrize("size", [10, 11])
def test_two_devices_take_the_steps_of_one(size: int, folder: Path) -> None:
    config = Config(global_batch=size, steps=12, warmup=3)
    one, two = losses(folder, ["CPU:0"], config), losses(folder, ["CPU:0", "CPU:1"], config)
    assert len(one) == 12
    assert two == pytest.approx(one, abs=1e-5)


def test_micro_batches_change_nothing_but_memory(folder: Path) -> None:
    whole = losses(folder, ["CPU:0"], CONFIG)
    parts = losses(folder, ["CPU:0"], Config(global_batch=10, steps=12, warmup=3, micro_batches=3))
    assert parts == pytest.approx(whole, abs=1e-5)


def test_the_optimizer_does_not_sum_gradients_a_second_time() -> None:
    world = World(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), rank=0, size=1)
    with world.strategy.scope():
        variable = tf.Variable([0.0])
        optimizer = strategy.AdamW(1.0)
        optimizer.build([variable])
    world.strategy.run(lambda: optimizer.apply([tf.constant([2.0])], [variable]))
    # Adam's first moment is 0.1 x the gradient that arrived.
    moments = [np.asarray(v) for v in optimizer.variables if "momentum" in v.path]
    assert moments[0] == pytest.approx(0.2)


def test_a_reducer_is_not_in_the_cluster_that_the_strategy_waits_for() -> None:
    spec = '{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"], "workerpool2": ["c:1"]}, "task": %s}'
    worker = cluster.from_env({"CLUSTER_SPEC": spec % '{"type": "workerpool1", "index": 0}'})
    resolver = strategy.resolver(worker)
    assert resolver.cluster_spec().as_dict() == {"chief": ["a:1"], "worker": ["b:1"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
