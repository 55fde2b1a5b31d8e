"""Both frameworks have the same modules, names and parameters wherever the idea is the same."""

import ast
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT

LIBRARY = ("forward", "call", "build")  # what PyTorch or Keras calls of a layer has its name from there

# Twins with different parameters, and the reason.
DIFFERENT = {
    "train.train": "TensorFlow's steps are taken by all devices of a machine, or by the workers of parameter servers",
    "train.train_step": "TensorFlow compiles it for a device, which knows its replicas from the context",
    "train.new_optimizer": "an optimizer of Keras is built for variables, and placed or not by its class",
    "task.take_part": "only PyTorch can compile with the C++ compiler that a variable names",
    "reports.Reports.__init__": "TensorFlow's replicas know themselves; PyTorch asks strategy and world",
    "reports.share_of_peak": "likewise",
    "totals.means": "PyTorch adds up over processes by name; TensorFlow's totals are one tensor, added up in the step",
    "devices.describe": "a process of PyTorch has one device, a process of TensorFlow all devices of its machine",
    "devices.name": "likewise",
    "devices.peak_memory": "likewise",
    "world.World.sum": "PyTorch adds tensors up, TensorFlow whole numbers",
    "processes.lost_peer": "TensorFlow's errors name machines, which get our names",
    "profile.summary": "PyTorch's profiler hands over its events, TensorFlow's leaves a file",
    "profile.times": "likewise",
    "saver.Checkpoints.__init__": "TensorFlow copies variables; PyTorch has a stager, and its processes meet",
    "saver.write": "TensorFlow's chief alone writes; in PyTorch each process does, and they meet",
    "export.finish": "TensorFlow's chief holds the whole model; PyTorch's reads it from the last checkpoint",
    "estimate.kept_bytes": "TensorFlow reads a graph, PyTorch runs a step on tensors without storage",
    "model.build": "TensorFlow places layers while it builds them, PyTorch cuts a finished model",
    "model.Head.__init__": "a layer of Keras learns its width when it is called, and shares a layer, no weight",
    "model.Embed.__init__": "a layer of Keras learns the shape of images from what it is called with",
}

# Names, classes and modules of which one of two twins lacks something, and the reason.
ALONE = {
    "processes": "PyTorch starts a process for each GPU; TensorFlow is one process, which must not wait for ever",
    "devices": "PyTorch copies batches and knows when a device idles; TensorFlow sets its devices up by itself",
    "run": "torch's agent starts processes that run the script; TensorFlow's process runs it itself",
    "world": "PyTorch lies in a mesh of processes, TensorFlow in a strategy over devices",
    "strategy": "a strategy of PyTorch wraps a model; one of TensorFlow is an object of the library",
    "saver": "PyTorch writes tensors by name from every process, TensorFlow objects from the chief",
    "precision": "Keras' precision is global, PyTorch's a context",
    "estimate": "PyTorch runs a step on tensors without storage, TensorFlow reads a graph",
    "profile": "PyTorch's profiler calls back, TensorFlow's must wait for its GPUs",
    "totals": "TensorFlow's totals are one tensor, whose names are known before",
    "reports.Reports._settle_reducers": "TensorFlow's replicas settle them",
    "train.run": "PyTorch starts it in each process; TensorFlow's strategies begin by themselves",
    "train.forward_backward": "a schedule of PyTorch takes its place",
    "train.evaluate": "compiled by TensorFlow's replicas",
    "train.step_seed": "TensorFlow's models draw no numbers by step; Keras seeds each layer once",
    "train.new_state": "built in the scope of TensorFlow's strategy, and once more for the checkpoints",
    "train.new_copy": "likewise",
    "train.clock": "TensorFlow's step is timed within its graph; DistributedDataParallel times itself",
    "task.data_set": "the workers and servers of TensorFlow's parameter servers read no data",
    "model.VisionTransformer": "Keras puts layers together by calling them",
    "model.GPT": "likewise",
    "model.initialize": "Keras' layers begin so by themselves",
    "model.Embed.patches": "a test of PyTorch calls it; in TensorFlow it is a part of the call",
}

FOLDERS = [Path("frameworks"), *(Path("examples", name, "frameworks") for name in ("images", "text"))]


def signatures(file: Path) -> dict[str, tuple[str, ...]]:
    """The parameters of each function, method and class of a file, by `module.Class.name`; a class has none."""
    found: dict[str, tuple[str, ...]] = {}

    def visit(body: list[ast.stmt], place: str) -> None:
        for one in body:
            if isinstance(one, ast.FunctionDef):
                parameters = (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)
                found[f"{place}.{one.name}"] = tuple(parameter.arg for parameter in parameters)
            elif isinstance(one, ast.ClassDef):
                found[f"{place}.{one.name}"] = ()
                visit(one.body, f"{place}.{one.name}")

    place = file.parent.name if file.stem == "__init__" else file.stem
    visit(ast.parse(file.read_text(encoding="utf-8")).body, place)
    return found


def twins() -> list[tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]]:
    """Each module that both frameworks have, as it is in PyTorch and in TensorFlow."""
    pairs = []
    for folder in FOLDERS:
        one, other = (ROOT / PROJECT / folder / name / "trainer" for name in ("pytorch", "tensorflow"))
        names = ({path.relative_to(folder) for path in folder.rglob("*.py")} for folder in (one, other))
        pairs += [(signatures(one / name), signatures(other / name)) for name in sorted(set.intersection(*names))]
    return pairs


def explained(name: str) -> str:
    """Return the entry of ALONE for a name, its class or its module, or the name that a library gives it."""
    ways = (name, name.rpartition(".")[0], name.partition(".")[0])
    last = name.rpartition(".")[2]
    return next((way for way in ways if way in ALONE), last if last in LIBRARY and name.count(".") > 1 else "")


def test_there_are_twins() -> None:
    assert len(twins()) >= 9


def test_twins_have_the_same_parameters_in_the_same_order_but_where_a_reason_is_given() -> None:
    different = {name for one, other in twins() for name in one.keys() & other.keys() if one[name] != other[name]}
    assert different == DIFFERENT.keys()


def test_a_name_that_one_of_two_twins_lacks_has_a_reason() -> None:
    alone = [name for one, other in twins() for name in one.keys() ^ other.keys()]
    assert [name for name in alone if not explained(name)] == []
    assert {explained(name) for name in alone} - {*LIBRARY} == ALONE.keys()


@pytest.mark.parametrize("name", ["train", "train_step", "new_optimizer"])
def test_the_loop_has_the_same_steps(name: str) -> None:
    (loop,) = (pair for pair in twins() if "train.train" in pair[0])
    assert all(f"train.{name}" in one for one in loop)
