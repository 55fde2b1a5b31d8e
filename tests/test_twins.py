"""Both frameworks have the same modules, names and parameters wherever the idea is the same."""

import ast
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT

LIBRARY = ("forward", "call", "build")  # what PyTorch or Keras calls of a layer has its name from there

# Of two twins with different parameters: why.
DIFFERENT = {
    "train.run": "a process of PyTorch knows its mesh, and joins by itself; TensorFlow is given the cluster",
    "train.train": "in TensorFlow the chief of parameter servers has the same loop with other replicas",
    "train.train_step": "TensorFlow compiles it for a device, which knows its replicas from the context",
    "train.new_optimizer": "an optimizer of Keras is built for variables, and placed or not by its class",
    "checkpoint.Saver.__init__": "TensorFlow copies variables, PyTorch has a stager; and its processes meet",
    "checkpoint.write": "TensorFlow's chief alone writes; in PyTorch each process does, and they meet",
    "train.watched": "PyTorch asks its World since when the device is idle; TensorFlow does not tell",
    "train.reporting": "in TensorFlow those that take the steps may be workers of parameter servers",
    "profiling.told": "PyTorch's profiler hands over its events, TensorFlow's leaves a file",
    "profiling.spans": "so, too",
    "export.finish": "TensorFlow's chief holds the whole model; PyTorch's reads it from the last checkpoint",
    "estimate.kept_bytes": "TensorFlow reads a graph, PyTorch runs a step on tensors without storage",
    "replica.take_part": "only PyTorch can compile with the C++ compiler that a variable names",
    "model.build": "TensorFlow places layers while it builds them, PyTorch cuts a finished model",
    "model.Head.__init__": "a layer of Keras learns its width when it is called, and shares a layer, no weight",
    "model.Embed.__init__": "a layer of Keras learns the shape of images from what it is called with",
}

# Names that one of two twins lacks: why.
ALONE = {
    "train.train_and_export": "PyTorch's process group must outlive the model: it is a function of its own",
    "train.backward": "a pipeline replaces forward and backward pass",
    "train.seed": "TensorFlow's models draw no numbers by step; Keras seeds each layer once",
    "train.on_device": "TensorFlow moves a batch to its device by itself",
    "train.evaluate": "of TensorFlow's replicas, below",
    "train.Mirrored": "compiled functions of TensorFlow belong to an object that keeps them: the devices, or a team",
    "train.measured": "a compiled function returns one tensor: the names are known before",
    "train.means": "in PyTorch means are taken over processes, by World",
    "train.score": "compiled by whoever calls it",
    "profiling.sync_gpus": "PyTorch has such a function",
    "train.clock": "TensorFlow's step is timed within its graph; DistributedDataParallel times itself",
    "train.saver": "only TensorFlow copies into a second state, which is built as the first is",
    "checkpoint._write": "PyTorch's own errors are turned into the file's",
    "checkpoint.ChecksumFiles": "PyTorch writes through a stream that can count; TensorFlow's files are read again",
    "checkpoint.ChecksumStream": "so, too",
    "checkpoint.newest": "each process of PyTorch reads its share of the checksums",
    "checkpoint.share": "TensorFlow's chief writes all",
    "checkpoint.first_cause": "of PyTorch's errors in several processes",
    "checkpoint.one_line": "so, too",
    "checkpoint.State.objects": "TensorFlow saves objects, PyTorch tensors by name",
    "checkpoint.State.variables": "so, too",
    "estimate.forward_backward": "of PyTorch's, two functions need the result",
    "estimate._kept_bytes": "PyTorch runs one and two samples",
    "estimate.Kept": "TensorFlow reads in its graph what the backward pass uses",
    "train.copy_stream": "TensorFlow copies batches by itself",
    "estimate.computing_in": "Keras' precision is global",
    "estimate._describe": "TensorFlow builds the graph once for each precision",
    "estimate.memory": "of TensorFlow's graph",
    "estimate.flops": "PyTorch counts by itself",
    "estimate.result_shape": "so, too",
    "estimate.labels": "so, too",
    "strategies.nothing_to_join": "Horovod joins besides the process group; no strategy of TensorFlow does",
    "task.stop": "TensorFlow ignores SIGTERM while it waits",
    "task.end": "TensorFlow waits for peers when it ends",
    "model.VisionTransformer": "Keras puts layers together by calling them",
    "model.GPT": "so, too",
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
    """The entry of ALONE for a name, its class, or what a library calls."""
    ways = (name, name.rpartition(".")[0])
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


@pytest.mark.parametrize("name", ["train", "due", "start", "train_step", "measure"])
def test_the_loop_has_the_same_steps(name: str) -> None:
    (loop,) = (pair for pair in twins() if "train.run" in pair[0])
    assert all(f"train.{name}" in one for one in loop)
