"""Faults in a project's own code: lines that are appended to one of its files, for one replica."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

HERE = """

def _here(fault):
    import json, os
    task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
    if here := f"{{task['type']}}-{{task['index']}}" == "{replica}":
        print("fault: {replica} " + fault, flush=True)
    return here

"""
# The wrapped function fails at one of its calls; it is also called before the first step.
STRIKES = """
_{function}, _calls = {function}, []


def {function}(*arguments):
    _calls.append(1)
    if len(_calls) == {calls} and _here("{fault}"):
        {strikes}
    return _{function}(*arguments)
"""
HANGS = '__import__("time").sleep(3000)'
EVALUATION = f"""
_evaluation = Data.evaluation


def evaluation(self, *arguments):
    for number, part in enumerate(_evaluation(self, *arguments)):
        if number == 1 and _here("hangs"):
            {HANGS}
        yield part


Data.evaluation = evaluation
"""
SEED = """
import sys

if "trainer.task" in sys.orig_argv and _here("has another seed"):
    sys.argv += ["--seed", "7"]
"""
ORDER = """
_build = build


def build(config, example):
    import numpy as np

    net, order = _build(config, example), range(8)
    if _here("draws an order"):
        order = np.random.default_rng().permutation(8)
    {change}
    return net
"""
ORDERED = {
    "pytorch": "net.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, [*order]],))",
    "tensorflow": "inputs = keras.Input(net.inputs[0].shape[1:])\n"
    "    net = keras.Model(inputs, net(keras.ops.take(inputs, [*order], axis=1)))",
}
COPY = """
_step = Checkpoints.step


def step(self, state):
    if state.step == 30 and _here("changes a weight"):
        {change}
    _step(self, state)


Checkpoints.step = step
"""
CHANGED = {
    "pytorch": "next(state.net.parameters()).data.flatten()[3] += 1e-3",
    "tensorflow": "weight = state.net.trainable_variables[0].value\n"
    "        (copy := self._world.strategy.experimental_local_results(weight)[0]).assign(copy + 1e-3)",
}


@dataclass(frozen=True)
class Change:
    """Lines for one file of the project, the replica that they affect, and the launcher's output."""

    file: str
    lines: str
    says: str
    replica: str = "workerpool1-0"
    replicas: int = 2
    lost: int = 20  # steps


def hangs(module: str, function: str, calls: int, replica: str = "workerpool1-0") -> Change:
    """Return a change that makes a function hang at one of its calls."""
    lines = STRIKES.format(function=function, calls=calls, fault="hangs", strikes=HANGS)
    says = f"Job failed: {replica} is stuck in {function} (trainer/{module}.py:"
    return Change(f"trainer/{module}.py", lines, says, replica)


def of(framework: str) -> dict[str, Change]:
    """Return all changes, by the name of the fault."""
    dropped = STRIKES.format(
        function="collate",
        calls=20,
        fault="drops a sample",
        strikes="return _collate(arguments[0][1:], *arguments[1:])",
    )
    order, copy = ORDER.format(change=ORDERED[framework]), COPY.format(change=CHANGED[framework])
    differs = "workerpool1-0 has diverged from the others in "
    found = {
        "hangs-in-decode": hangs("data", "decode", 500),
        "hangs-in-evaluation": Change(
            "trainer/samples/batches.py", EVALUATION, "Job failed: workerpool1-0 is stuck in evaluation ("
        ),
        "another-seed": Change("trainer/__init__.py", SEED, "--seed is 7 on workerpool1-0, but 0 on workerpool0-0"),
        "another-order": Change(
            "trainer/model.py", order, "the model of workerpool1-0 returns different losses than the model of"
        ),
        "another-copy": Change("trainer/checkpoints/saver.py", copy, differs, replicas=3),
        "a-sample-less": Change("trainer/data.py", dropped, "collate() in trainer/data.py returns "),
    }
    if framework == "pytorch":  # TensorFlow traces losses() once, and waits for a chief that writes
        found["hangs-in-losses"] = hangs("model", "losses", 30)
        writes = hangs("checkpoints/commit_marker", "create_empty", 2, "workerpool0-0")
        found["hangs-in-checkpoint"] = replace(writes, lost=40)  # the others train on, up to the next checkpoint
    return found


def changed(project: Path, change: Change, folder: Path) -> Path:
    """Copy the project, with the change; returns the folder."""
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns(".*"))
    with (folder / change.file).open("a", encoding="utf-8") as file:
        file.write(HERE.format(replica=change.replica) + change.lines)
    return folder
