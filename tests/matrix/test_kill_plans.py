"""Whichever replicas are killed at whichever steps, elastic training takes each sample of each step once."""

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.conftest import LAUNCHER, bake, give_environment

pytestmark = [pytest.mark.slow, pytest.mark.proof]
REPLICAS = ("workerpool0-0", "workerpool1-0", "workerpool1-1")
STEPS, BATCH = 40, 24
FLAGS = ("--steps", f"{STEPS}", "--global-batch", f"{BATCH}", "--log-every", "1", "--checkpoint-every", "15")
TIMES = ("--collective-timeout", "30", "--quorum-timeout", "300", "--rollcall-timeout", "300")
SECONDS = 600
SAME = 1e-6  # a sum in another order rounds differently
EXAMPLES = 20
KILLS = st.lists(st.tuples(st.sampled_from(REPLICAS), st.integers(1, STEPS - 1)), min_size=1, max_size=3)
# Each process writes which samples it has before it takes a step, and that it has taken it afterwards. Its steps are
# slow, so that those who were killed return before the last one.
RECORDS = """

_train_step = train_step


def train_step(config, strategy, state, batch, world):
    import hashlib, json, os, time
    from trainer.vertex import storage

    def record(**fields):
        generation = strategy._generation.number
        line = {"step": state.step, "process": os.getpid(), "generation": generation, **fields}
        folder = storage.from_env(os.environ).checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "records.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")

    record(samples=[hashlib.sha1(sample.numpy().tobytes()).hexdigest() for sample in batch.inputs])
    time.sleep(0.2 if world.size == 3 else 0.5)
    totals = _train_step(config, strategy, state, batch, world)
    record(taken=True)
    return totals
"""
ORDER = """
import hashlib, json, sys
from pathlib import Path
from trainer.parallel import choice
from trainer.samples import batches, shards
from trainer.samples.shards import Dataset

_, config = choice.parse(sys.argv[2:])
folder = Path(sys.argv[1])
shards.write_example(config.data, folder)
dataset = Dataset(folder, "train")
order = batches.order(len(dataset), config)
for batch in batches.train_batches(dataset, config, start=0, rank=0, world_size=1):
    print(json.dumps([hashlib.sha1(sample.tobytes()).hexdigest() for sample in batch.inputs]))
"""


@dataclass(frozen=True)
class Attempt:
    """A step in one generation: what its processes have begun with, and which of them have taken it."""

    samples: list[str] = field(default_factory=list)
    taken_by: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    loss: float
    attempts: dict[int, dict[int, Attempt]]  # of each step, by generation, in order
    output: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a PyTorch project whose processes record their samples."""
    home = Path(os.environ.get("BAKED", tmp_path_factory.mktemp("baked")))
    project = bake(tmp_path_factory.mktemp("pytorch"), framework="pytorch", example="images", parts="all").project
    give_environment(project, "pytorch", home)
    with (project / "trainer/train.py").open("a", encoding="utf-8") as file:
        file.write(RECORDS)
    return project


@pytest.fixture(scope="module")
def order(project: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Counter[str]]:
    """Return the samples of each step in the global order, which doesn't depend on the number of processes."""
    command = (str(project / ".venv/bin/python"), "-c", ORDER, str(tmp_path_factory.mktemp("shards")), *FLAGS)
    shown = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS)
    return [Counter(json.loads(line)) for line in shown.stdout.splitlines()]


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(project, tmp_path_factory.mktemp("unbroken"), [])


def train(project: Path, folder: Path, kills: Sequence[tuple[str, int]]) -> Result:
    """Train with three replicas, some of which are killed."""
    faults = [word for replica, step in kills for word in ("--fault", f"{replica}:kill@step={step}")]
    words = ("run", "jobs/elastic.yaml", "--max-replicas", "3", "--state-dir", str(folder / "state"), "--restarts")
    command = (str(project / ".venv/bin/python"), "-m", "vertex_launch", *words, *faults)
    env = os.environ | {"PYTHONPATH": str(LAUNCHER), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        (*command, "--", *FLAGS, *TIMES),
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    (log,) = folder.glob("state/jobs/*/workerpool0-0.log")
    reports = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    loss = next(report["loss"] for report in reversed(reports) if "loss" in report)
    (records,) = folder.glob("state/gcs/*/*/elastic/checkpoints/records.jsonl")
    return Result(loss, attempts(records), done.stdout)


def attempts(file: Path) -> dict[int, dict[int, Attempt]]:
    found: dict[int, dict[int, Attempt]] = defaultdict(lambda: defaultdict(Attempt))
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        # A process that records what it has taken has finished one step more.
        attempt = found[line["step"] - line.get("taken", False)][line["generation"]]
        attempt.samples.extend(line.get("samples", []))
        attempt.taken_by.extend([line["process"]] if "taken" in line else [])
    return found


def shortfalls(result: Result, order: Sequence[Counter[str]]) -> Iterator[str]:
    """Yield each step that wasn't taken with all its samples, each of them once."""
    for step, samples in enumerate(order):
        *others, last = (attempt for attempt in result.attempts[step].values() if attempt.taken_by)
        if Counter(last.samples) != samples:
            yield f"step {step}: {Counter(last.samples)} instead of {samples}"
        # Those who had taken the step before were killed, and their state is lost.
        if {process for attempt in others for process in attempt.taken_by} & {*last.taken_by}:
            yield f"step {step} was taken twice by a process"
    if more := result.attempts.keys() - {*range(len(order))}:
        yield f"more steps: {more}"


def test_the_unbroken_run_takes_each_sample_of_each_step_once(unbroken: Result, order: list[Counter[str]]) -> None:
    assert [*shortfalls(unbroken, order)] == []
    assert len(order) == STEPS
    assert all(len(attempts) == 1 for attempts in unbroken.attempts.values())


def test_no_kill_costs_a_sample_or_counts_one_twice(
    project: Path, unbroken: Result, order: list[Counter[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # No plan is made smaller after a failure, because each takes half a minute.
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(KILLS)
    def one_plan(kills: list[tuple[str, int]]) -> None:
        note(f"kills: {kills}")
        result = train(project, tmp_path_factory.mktemp("broken"), kills)
        assert result.output.count("is killed at step") == len(kills), result.output
        assert [*shortfalls(result, order)] == [], result.output
        assert result.loss == pytest.approx(unbroken.loss, rel=0, abs=SAME), result.output

    one_plan()
