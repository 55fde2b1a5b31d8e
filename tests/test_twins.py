"""Both frameworks have the same modules, names and parameters wherever the idea is the same."""

import ast
from itertools import product
from pathlib import Path

import pytest

from tests.conftest import PROJECT, ROOT

LIBRARY = ("forward", "call", "build")  # what PyTorch or Keras calls of a layer has its name from there

# Names, classes and modules that differ in parameters, or that one of two twins lacks, and the reason.
DIFFERENT = {
    "processes": "PyTorch starts a process for each GPU; TensorFlow is one process, which must not wait for ever",
    "devices": "a process of PyTorch has one device, a process of TensorFlow all devices of its machine",
    "world": "PyTorch lies in a mesh of processes, TensorFlow in a strategy over devices, and adds numbers up",
    "run": "PyTorch runs the script in a process for each GPU, TensorFlow in one process",
    "strategy": "PyTorch wraps a model that is there; TensorFlow builds it in a scope, and compiles its steps",
    "saver": "PyTorch writes tensors by name from every process, TensorFlow objects from the chief, which copies them",
    "preemption": "PyTorch asks beside the training, TensorFlow between two steps, and each adds up otherwise",
    "divergence": "a process of PyTorch has one copy, or a part of one; a process of TensorFlow one on each device",
    "estimate": "PyTorch runs a step on tensors without storage, TensorFlow reads a graph",
    "profile": "PyTorch's profiler calls back and hands over its events, TensorFlow's waits for GPUs and leaves a file",
    "totals": "TensorFlow's totals are one tensor, whose names are known before, added up in the step",
    "model": "Keras puts layers together, and places them, by calling them; a layer of PyTorch knows its shapes before",
    "export.shape_check": "torch.export keeps a size symbolic if it is told so; Keras exports what the layers accept",
    "export.varying": "torch.export keeps a size symbolic if it is told so; Keras exports what the layers accept",
    "task.launch": "only PyTorch can compile with the C++ compiler that a variable names",
    "state": "TensorFlow's optimizer takes the gradients, and merges the calls of all devices outside of any branch",
    "train.answers": "a process of PyTorch may hold a part of the model alone; a machine of TensorFlow holds all of it",
    "train.evaluate": "TensorFlow's batches are scored by all devices of a machine, or by the workers of its servers",
    "train.new_state": "TensorFlow builds in the scope of its strategy, and once more for the checkpoints",
    "reports.Reports.__init__": "the devices of a TensorFlow process know what they have communicated, not the state",
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
    for folder, place in product(FOLDERS, ("trainer", "parts/trainer")):
        one, other = (ROOT / PROJECT / folder / name / place for name in ("pytorch", "tensorflow"))
        names = ({path.relative_to(folder) for path in folder.rglob("*.py")} for folder in (one, other))
        pairs += [(signatures(one / name), signatures(other / name)) for name in sorted(set.intersection(*names))]
    return pairs


def explained(name: str) -> str:
    """Return the entry of DIFFERENT for a name, its class or its module, or the name that a library gives it."""
    ways = (name, name.rpartition(".")[0], name.partition(".")[0])
    last = name.rpartition(".")[2]
    return next((way for way in ways if way in DIFFERENT), last if last in LIBRARY and name.count(".") > 1 else "")


# What does not depend on the framework, and stands in both so that a project reads as one: nothing may change in one.
REPEATED = {
    "checkpoints/divergence.py": {"require_no_divergence", "Answers", "repeated", "require_same_answers"},
    "cluster/preemption.py": {"StoppedError", "Told"},
    "describe/estimate.py": {"ResourceEstimate"},
    "reports/nonfinite.py": {"GradientError"},
    "reports/profile.py": {"steps_ahead", "split", "covered"},
    "reports/reports.py": {"conclude", "Reporter"},
    "step/totals.py": {"require_one_per_sample"},
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_twins_repeat_is_the_same_word_for_word(name: str) -> None:
    one, other = (
        {
            part.name: ast.dump(part)
            for part in ast.parse(file.read_text(encoding="utf-8")).body
            if hasattr(part, "name")
        }
        for file in (
            ROOT / PROJECT / "frameworks" / framework / "trainer" / name for framework in ("pytorch", "tensorflow")
        )
    )
    assert {part for part in one.keys() & other.keys() if one[part] == other[part]} == REPEATED[name]


def test_there_are_twins() -> None:
    assert len(twins()) >= 9


def test_twins_have_the_same_names_and_parameters_in_the_same_order_but_where_a_reason_is_given() -> None:
    different = [
        name for one, other in twins() for name in one.keys() | other.keys() if one.get(name) != other.get(name)
    ]
    assert [name for name in different if not explained(name)] == []
    assert {explained(name) for name in different} - {*LIBRARY} == DIFFERENT.keys()


@pytest.mark.parametrize("name", ["run", "train", "train_step", "evaluate"])
def test_the_loop_has_the_same_steps(name: str) -> None:
    (loop,) = (pair for pair in twins() if "train.train" in pair[0])
    assert all(f"train.{name}" in one for one in loop)
