"""The step on a machine with two devices, and who is in the cluster."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.samples import batch
from tests.training import DEADLINE, PROJECT
from trainer import model, train
from trainer.checkpoints.saver import Checkpoints
from trainer.cluster import devices, processes, spec, world
from trainer.cluster.world import Mesh, World
from trainer.config import Config, Job
from trainer.parallel import choice, model_parallel, placed, placement
from trainer.parallel.model_parallel import ModelParallel
from trainer.parallel.multi_worker_mirrored import Flags, MultiWorkerMirrored
from trainer.parallel.strategy import Loop, Strategy, shares
from trainer.reports.speed import Clock
from trainer.samples import shards
from trainer.samples.batches import Data
from trainer.samples.fingerprint import Fingerprint
from trainer.step import state as states
from trainer.step.state import State
from trainer.step.totals import means, names
from trainer.vertex.errors import LostPeerError, TrainerError
from trainer.vertex.storage import Storage

NO_SAMPLES = Fingerprint(11, 0, {}, {})
CONFIG = Flags(global_batch=11, steps=12, warmup=3)  # a batch that two devices do not share evenly


def losses(folder: Path, devices: list[str], config: Config, layers: int = 0) -> list[float]:
    """The mean loss of each step on these devices of one machine; the layers of a model on so many of its parts."""
    world, strategy = on(devices, layers), ModelParallel() if layers else MultiWorkerMirrored()
    job, state = Job(config, Storage(), folder), train.new_state(config, strategy, batch(1), world)
    spread = strategy.wrap(loop(config, state), state, world)
    losses = []
    for parts in shares(Data(job), 0, world):
        losses.append(means(spread.take(parts), spread.loop.names)["loss"])
        state.step += 1
    return losses


def loop(config: Config, state: State) -> Loop:
    return Loop(config, names(state.net, batch(1)), train.train_step, states.new_optimizer)


def on(devices: list[str], layers: int = 0) -> World:
    mesh = {"replicate": len(devices)} | ({"layers": layers} if layers else {})
    return World(mesh=Mesh(mesh), strategy=tf.distribute.MirroredStrategy(devices))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    shards.write_example(Config.data, folder)
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> list[float]:
    """The losses of one device."""
    return losses(folder, ["CPU:0"], CONFIG)


@pytest.mark.proof
def test_two_devices_take_the_steps_of_one(one: list[float], folder: Path) -> None:
    two = losses(folder, ["CPU:0", "CPU:1"], CONFIG)
    assert len(one) == 12
    assert two == pytest.approx(one, abs=1e-5)


@pytest.mark.proof
def test_micro_batches_change_nothing_but_memory(one: list[float], folder: Path) -> None:
    parts = losses(folder, ["CPU:0"], replace(CONFIG, micro_batches=3))
    assert parts == pytest.approx(one, abs=1e-5)


@pytest.mark.proof
def test_layers_on_two_devices_take_the_steps_of_one_device(folder: Path) -> None:
    config = replace(CONFIG, steps=50)
    mirrored = losses(folder, ["CPU:0"], config)
    config = replace(config, micro_batches=2)
    spread = losses(folder, ["CPU:0"], config, layers=2)
    assert spread == pytest.approx(mirrored, abs=1e-4)


def test_each_device_has_the_variables_and_the_moments_of_its_layers() -> None:
    state = train.new_state(CONFIG, ModelParallel(), batch(1), on(["CPU:0"], layers=2))
    layers: dict[int, keras.Layer] = {}  # of each variable the first that has it
    for layer in state.net.layers:
        layers |= {id(v): layer for v in layer.trainable_variables if id(v) not in layers}
    devices: dict[keras.Layer, set[str]] = {}
    for variable in state.net.trainable_variables:
        devices.setdefault(layers[id(variable)], set()).add(placed.device_of(variable)[-5:])
    # The embedding and two blocks, two blocks and the head.
    assert [devices[one] for one in state.net.layers if one in devices] == [{"CPU:0"}] * 3 + [{"CPU:1"}] * 3
    moments = [v for v in state.optimizer.variables if v.path.endswith("_velocity")]
    for moment, variable in zip(moments, state.net.trainable_variables, strict=True):
        assert placed.device_of(moment) == placed.device_of(variable)


def test_the_backward_pass_of_a_layer_runs_on_its_device() -> None:
    config, strategy, world = replace(CONFIG, micro_batches=2), ModelParallel(), on(["CPU:0"], layers=2)
    state = train.new_state(config, strategy, batch(1), world)
    spread = strategy.wrap(loop(config, state), state, world)
    parts = world.distribute(devices.on_host([batch(10)]))
    graph = spread._take.get_concrete_function(parts, tf.constant(0.1)).graph
    products = [one for one in graph.get_operations() if "MatMul" in one.type]
    forward = Counter(one.device[-5:] for one in products if "grad" not in one.name)
    backward = Counter(one.device[-5:] for one in products if "grad" in one.name)
    assert {*forward} == {*backward} == {"CPU:0", "CPU:1"}
    assert all(backward[device] >= forward[device] for device in forward)


@pytest.mark.proof
def test_a_checkpoint_does_not_depend_on_the_devices_of_the_layers(tmp_path: Path) -> None:
    mirrored = MultiWorkerMirrored(), on(["CPU:0", "CPU:1"])
    spread = ModelParallel(), on(["CPU:0"], layers=2)
    for writer, reader in ((mirrored, spread), (spread, mirrored)):
        storage = Storage(checkpoints=tmp_path / type(writer[0]).__name__)
        job = Job(CONFIG, storage, Path())
        written = train.new_state(CONFIG, writer[0], batch(1), writer[1])
        written.step = 7
        copy = train.new_state(CONFIG, Strategy(), batch(1), World())
        checkpoints = Checkpoints(job, reader[1], copy, NO_SAMPLES, Clock())
        checkpoints.save(written)
        checkpoints.wait()
        read = train.new_state(replace(CONFIG, seed=1), reader[0], batch(1), reader[1])
        Checkpoints(job, reader[1], copy, NO_SAMPLES, Clock()).restore(read)
        assert read.step == 7
        for ours, theirs in zip(read.net.get_weights(), written.net.get_weights(), strict=True):
            assert np.array_equal(ours, theirs)


class Dropping(keras.Model):  # type: ignore[misc]
    """A small model, with a dropout whose newest mask each device keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])  # digits
        self.dropout = keras.layers.Dropout(0.5)
        self.mask = self.add_weight(shape=(64,), initializer="zeros", trainable=False, aggregation="none")

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            self.mask.assign(self.dropout(tf.ones(64), training=True))
        return self.inner(inputs)


def masks(folder: Path, config: Config, state: State, world: World) -> list[list[tuple[float, ...]]]:
    """The newest mask of each device after each step, from the state's step to the last."""
    spread, seen = MultiWorkerMirrored().wrap(loop(config, state), state, world), []
    for parts in shares(Data(Job(config, Storage(), folder)), state.step, world):
        spread.take(parts)
        seen.append([(*one.numpy(),) for one in world.strategy.experimental_local_results(state.net.mask.value)])
        state.step += 1
    return seen


def dropping(config: Config, world: World) -> State:
    keras.utils.set_random_seed(config.seed)
    with world.strategy.scope():
        net = Dropping()
        net(batch(1).inputs)
        return State(net, states.new_optimizer(config, net.trainable_variables))


def test_each_device_drops_its_own_numbers_and_a_resumed_run_the_same_again(folder: Path, tmp_path: Path) -> None:
    world, config = on(["CPU:0", "CPU:1"]), replace(CONFIG, steps=3, warmup=1)
    job, copy = Job(config, Storage(checkpoints=tmp_path), folder), dropping(config, World())
    unbroken = masks(folder, config, dropping(config, world), world)
    assert len(unbroken) == 3
    assert len({mask for each in unbroken for mask in each}) == 6
    state = dropping(config, world)
    half = masks(folder, replace(config, steps=2), state, world)
    checkpoints = Checkpoints(job, world, copy, NO_SAMPLES, Clock())
    checkpoints.save(state)  # refuses copies that differ
    checkpoints.wait()
    resumed = dropping(config, world)
    masks(folder, replace(config, steps=1), resumed, world)  # somewhere else
    Checkpoints(job, world, copy, NO_SAMPLES, Clock()).restore(resumed)
    assert half + masks(folder, config, resumed, world) == unbroken
    assert masks(folder, replace(config, seed=1), dropping(config, world), world)[0] != unbroken[0]


def test_micro_batches_drop_their_own_numbers(folder: Path) -> None:
    world, config = on(["CPU:0"]), replace(CONFIG, steps=3, warmup=1)
    whole, parts = (
        masks(folder, each, dropping(each, world), world) for each in (config, replace(config, micro_batches=2))
    )
    assert len({mask for run in (whole, parts) for (mask,) in run}) == 6


def test_layers_are_split_evenly_and_in_order() -> None:
    assert placement.even(5, ["a", "b"]) == ["a", "a", "a", "b", "b"]
    assert placement.even(4, ["a", "b", "c"]) == ["a", "a", "b", "c"]
    with pytest.raises(TrainerError, match="--degree is 5, but tiny has only 4 blocks"):
        model.build(CONFIG, batch(1), devices=["CPU:0"] * 5)


@pytest.mark.parametrize(("degree", "devices"), [(None, 2), (1, 1), (2, 2)])
def test_the_layers_of_a_model_are_shared_by_the_gpus_of_each_machine(
    degree: int | None, devices: int, folder: Path
) -> None:
    mesh = model_parallel.STRATEGY.lay_out(model_parallel.Flags(degree=degree), PAIR, folder)
    assert mesh.sizes == {"replicate": 2, "layers": devices}


def test_before_the_roll_call_a_model_whose_layers_cannot_be_placed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "build", lambda config, example: keras.Sequential())
    with pytest.raises(
        TrainerError, match=r"^--strategy model_parallel requires a `devices` parameter in build\(\) of .*model.py$"
    ):
        model_parallel.STRATEGY.lay_out(model_parallel.Flags(), PAIR, folder)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--strategy model_parallel --degree 0", "--degree is 0, but it must be at least 1"),
        ("--degree 2", "--strategy multi_worker_mirrored doesn't support --degree (supported by model_parallel)"),
        (
            "--strategy=parameter_server --bytes-per-pack 5",
            "--strategy parameter_server doesn't support --bytes-per-pack"
            " (supported by model_parallel, multi_worker_mirrored)",
        ),
    ],
)
def test_a_wrong_flag_of_a_strategy_is_one_sentence_that_names_it(flags: str, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        choice.parse(flags.split())
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("precision", "policy"), [("auto", "float32"), ("bfloat16", "mixed_bfloat16")])
def test_the_precision_is_the_flag_s_and_bfloat16_of_itself_only_on_gpus_that_have_it(
    precision: str, policy: str
) -> None:
    before = keras.config.dtype_policy()
    try:
        devices.compute_in(precision, gpus=())
        assert keras.config.dtype_policy().name == policy
    finally:
        keras.config.set_dtype_policy(before)


def test_a_keras_with_other_inner_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    states.require_keras()
    monkeypatch.setattr(states, "PRIVATE", ("_renamed",))
    with pytest.raises(
        TrainerError, match=rf"Keras {keras.__version__} doesn't have _renamed, .* install the Keras version in"
    ):
        states.require_keras()


def test_a_reducer_is_not_in_the_cluster_that_the_strategy_waits_for() -> None:
    text = '{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"], "workerpool2": ["c:1"]}, "task": %s}'
    worker = spec.from_env({"CLUSTER_SPEC": text % '{"type": "workerpool1", "index": 0}'})
    resolver = world.resolver(worker, gpus=2)
    assert resolver.cluster_spec().as_dict() == {"chief": ["a:1"], "worker": ["b:1"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.num_accelerators() == {"GPU": 2}


HEARTBEATS = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
Collective ops is aborted by: Error reported from /job:worker/task:0: The following tasks are unhealthy (stopped):
/job:worker/replica:0/task:0
The tasks have crashed. Check the task logs for an earlier error."""
LEADER = (
    "Collective ops is aborted by: Failed to send RPC to coordination service. Either the leader task was preempted"
)
NCCL = "NCCL: remote process exited or there was a network error"
PAIR = spec.Cluster((spec.Node("workerpool0-0", "h:1"), spec.Node("workerpool1-0", "h:2")))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            tf.errors.UnavailableError(None, None, HEARTBEATS),
            "Error reported from workerpool1-0: The following tasks are unhealthy (stopped): workerpool1-0",
        ),
        (tf.errors.UnavailableError(None, None, LEADER), "Failed to send RPC to coordination service"),
        (tf.errors.AbortedError(None, None, "Socket closed\nmore"), "Socket closed"),
        (tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"), "Deadline Exceeded"),
        (tf.errors.InternalError(None, None, NCCL), NCCL),
        (tf.errors.UnavailableError(None, None, ""), "UnavailableError"),
        # What is no loss: faults of the model, the data or the memory, also where a collective was aborted by them.
        (tf.errors.InvalidArgumentError(None, None, "Collective ops is aborted by: a label is out of range"), ""),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), ""),
        (tf.errors.InternalError(None, None, "libdevice not found"), ""),
    ],
)
def test_a_lost_peer_is_told_apart_from_every_other_error(error: tf.errors.OpError, told: str) -> None:
    assert processes.lost_peer(error, PAIR) == told
    assert processes.lost_peer(error, spec.Cluster()) == ""  # who is alone has no peer


@pytest.mark.parametrize("error", [ValueError("no such layer"), KeyError("labels"), MemoryError()])
def test_an_exception_of_the_model_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)), processes.with_peers(PAIR):
        raise error


@pytest.mark.parametrize("file", processes.YOURS, ids=lambda file: file.name)
def test_a_bucket_that_does_not_answer_the_data_or_the_model_is_no_lost_peer(file: Path) -> None:
    error = tf.errors.UnavailableError(None, None, "the bucket does not answer")
    with pytest.raises(tf.errors.UnavailableError, match="the bucket"), processes.with_peers(PAIR):
        exec(compile("raise error", str(file), "exec"), {"error": error})


def test_a_lost_peer_is_one_sentence_with_the_code_for_which_the_parent_names_the_silent_one() -> None:
    told = "workerpool0-0 lost a peer: Socket closed; after a restart, training resumes"
    with pytest.raises(LostPeerError, match=told), processes.with_peers(PAIR):
        raise tf.errors.UnavailableError(None, None, "Socket closed")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the code is faulthandler's, 1")
@pytest.mark.parametrize(
    ("seconds", "wait", "code"),
    [(0.5, 2000, LostPeerError.exit_code), pytest.param(2000, 1, 0, marks=pytest.mark.proof)],
)
def test_a_wait_that_holds_pythons_lock_is_bounded(seconds: float, wait: int, code: int) -> None:
    program = "import ctypes; from trainer.cluster.processes import bounded\n"
    program += f"with bounded({seconds}): ctypes.PyDLL(None).sleep({wait})"
    command = [sys.executable, "-c", program]
    waiting = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert waiting.returncode == code
    assert ("Timeout" in waiting.stderr) == (code != 0)
