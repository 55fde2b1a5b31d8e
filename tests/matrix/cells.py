"""The cells of the matrix: a fault in one replica of a job, the launcher's output, and the guarantee."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import LAUNCHER
from tests.matrix import changes

INTERVAL = 20  # steps from checkpoint to checkpoint
FLAGS = ("--steps", "60", "--warmup", "5", "--log-every", "5", "--checkpoint-every", f"{INTERVAL}")
TIMES = ("--collective-timeout", "20", "--rollcall-timeout", "45")
DEADLINE = 150  # seconds until a run counts as hanging
NAMED_IN = 60  # seconds from the fault until the faulty replica is named
PARALLEL = 2  # cells at once
LOST = r"((?:workerpool\d+-\d+(?: and )?)+) (?:is|are) (?:gone|back)"  # of a strategy that goes on without it
STEP = r"step (\d+)/\d+  loss"


@dataclass(frozen=True)
class Cell:
    """One fault in one replica of one job."""

    framework: str
    strategy: str
    faults: tuple[str, ...]  # the first is reported, others prepare or follow it; --fault values, or changes
    job: str = "workers"
    replicas: int = 2  # that train
    options: tuple[str, ...] = ()  # of `run`
    spot: bool = False
    survives: bool = False  # the job succeeds despite the fault
    lost: int = INTERVAL  # steps that may be lost

    @property
    def id(self) -> str:
        return "-".join((self.framework, self.strategy, *self.faults, *self.options)).replace("--", "")

    @property
    def guilty(self) -> str:
        return self.faults[0].partition(":")[0]

    @property
    def goes_on(self) -> bool:
        """Whether the other replicas train on without a lost one, which restarts alone."""
        return self.strategy == "elastic" and self.survives

    @property
    def change(self) -> changes.Change | None:
        """The change of the project's code that causes the fault, if any."""
        return changes.of(self.framework).get(self.faults[0].partition(":")[2])


@dataclass
class Run:
    """Output of one `vertex-launch run`: its lines and the time of each, in seconds."""

    lines: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    hung: bool = False
    code: int = 0

    def at(self, word: str) -> float | None:
        """Return the time of the first line that contains this word; None if there is none."""
        return next((when for line, when in zip(self.lines, self.times, strict=True) if word in line), None)

    def found(self, pattern: str) -> list[str]:
        """Return the pattern's group in all matching lines."""
        return [match[1] for line in self.lines if (match := re.search(pattern, line))]

    def pause(self, begin: float) -> float:
        """Return the seconds from a moment to the next report of a step; -1 if there is none."""
        each = zip(self.lines, self.times, strict=True)
        return next((when - begin for line, when in each if when > begin and re.search(STEP, line)), -1)


@dataclass(frozen=True)
class Verdict:
    """Result of a cell; `resumed` is -1 if nothing ran again, and `pause` if no step came after the fault."""

    end: str
    seconds: float
    named: str
    resumed: int
    pause: float  # seconds from the fault to the next report of a step
    shortfalls: tuple[str, ...]


def _cells() -> Iterator[Cell]:
    for framework, strategy in (("pytorch", "ddp"), ("tensorflow", "mirrored")):
        for fault in ("kill", "term", "exit0", "raise", "freeze"):
            for replica in ("workerpool1-0", "workerpool0-0"):
                yield _at_30(framework, strategy, replica, fault)
        yield Cell(framework, strategy, ("workerpool1-1:kill@step=30",), replicas=3)
        yield Cell(framework, strategy, ("workerpool3-0:kill@step=30",), "evaluator", replicas=3)
        yield Cell(framework, strategy, (f"workerpool1-0:late={DEADLINE}",))  # so it never comes
        yield Cell(framework, strategy, ("workerpool1-0:late=10",), survives=True)
        yield Cell(framework, strategy, ("workerpool1-0:slow=3@step=20",), survives=True)
        for damage in ("flip", "truncate"):
            faults = ("workerpool0-0:kill@step=50", f"workerpool0-0:{damage}@step=45")
            yield Cell(framework, strategy, faults, lost=2 * INTERVAL)
        restarts: Any = {"options": ("--restarts",), "survives": True}
        yield Cell(framework, strategy, ("workerpool1-0:kill@step=30",), **restarts)
        yield Cell(framework, strategy, ("workerpool1-0:preempt@step=30",), spot=True, **restarts)
        for name, change in changes.of(framework).items():
            yield Cell(framework, strategy, (f"{change.replica}:{name}",), replicas=change.replicas, lost=change.lost)
    for strategy, job in (("fsdp", "sharded"), ("pipeline", "pipeline"), ("tensor", "tensor")):
        for fault in ("kill", "term", "exit0", "raise", "freeze"):
            yield _at_30("pytorch", strategy, "workerpool1-0", fault, job)
    yield from _elastic()
    for replica in ("workerpool0-0", "workerpool1-0", "workerpool2-1"):
        for fault in ("kill", "term", "freeze"):
            yield _at_30("tensorflow", "parameter_server", replica, fault, "parameter-server")


def _elastic() -> Iterator[Cell]:
    """Yield the cells of replicas that go on without a lost worker, and wait for a lost chief."""
    worker, other, chief = "workerpool1-0", "workerpool1-1", "workerpool0-0"
    faults = [(f"{each}:{fault}@step=30",) for fault in ("kill", "term", "freeze=30") for each in (worker, chief)]
    faults += [(f"{worker}:{fault}",) for fault in ("freeze@step=30", "slow=3@step=20", "late=10")]
    pairs = [(f"{each}:kill@step=30", f"{worker}:kill@step=30") for each in (other, chief)]
    for each in (*faults, *pairs):
        yield Cell("pytorch", "elastic", each, "elastic", 3, ("--restarts",), survives=True, lost=0)
    for fault in ("exit0", "raise"):  # errors of the code, after which Vertex AI doesn't restart
        yield Cell("pytorch", "elastic", (f"{worker}:{fault}@step=30",), "elastic", 3, ("--restarts",))


def _at_30(framework: str, strategy: str, replica: str, fault: str, job: str = "workers") -> Cell:
    """Return a cell with one fault; a replica that receives SIGTERM costs no step."""
    return Cell(framework, strategy, (f"{replica}:{fault}@step=30",), job, lost=0 if fault == "term" else INTERVAL)


CELLS = tuple(_cells())
QUICK = CELLS[4::5]  # cells of a proof, with every kind of fault; the page is generated from all cells


def run_all(projects: Mapping[str, Path], cells: Sequence[Cell], scratch: Path) -> dict[str, Verdict]:
    """Run cells in the project of their framework, some simultaneously; returns the verdicts by cell id."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        verdicts = pool.map(lambda cell: judge(cell, projects[cell.framework], scratch / cell.id), cells)
        return {cell.id: verdict for cell, verdict in zip(cells, verdicts, strict=True)}


def judge(cell: Cell, project: Path, state: Path) -> Verdict:
    """Run a cell and, if its job failed, run the job again without the fault."""
    faulty = _faulty(cell, project, state)
    again = run(cell, project, state) if faulty.code and not faulty.hung else faulty
    resumed = [int(step) for step in again.found(r"resumed at step (\d+)")]
    started_again = again is not faulty or (bool(cell.options) and not cell.goes_on)
    end = "hung" if faulty.hung else "failed" if faulty.code else "succeeded"
    named = _named(cell, faulty)
    step = resumed[0] if resumed else 0 if started_again else -1
    shortfalls = (*_shortfalls(cell, faulty, again, named, step), *(_stops(cell, faulty) if cell.goes_on else ()))
    pause = faulty.pause(faulty.at(f"fault: {cell.guilty}") or 0)
    return Verdict(end, faulty.times[-1] if faulty.times else 0, named, step, pause, shortfalls)


def _faulty(cell: Cell, project: Path, state: Path) -> Run:
    """Run a cell's job with its faults."""
    if change := cell.change:
        copy = changes.changed(project, change, state.with_suffix(".project"))
        return run(cell, project, state, *cell.options, cwd=copy)
    return run(cell, project, state, *cell.options, *(word for fault in cell.faults for word in ("--fault", fault)))


def _named(cell: Cell, faulty: Run) -> str:
    """Return the replica that the output names as the cause; empty if it names none."""
    if cell.change:
        return cell.guilty if any(cell.change.says in line for line in faulty.lines) else ""
    return next(iter(faulty.found(LOST if cell.goes_on else r"^Job failed: (workerpool\d+-\d+)")), "")


def _shortfalls(cell: Cell, faulty: Run, again: Run, named: str, resumed: int) -> Iterator[str]:
    struck = faulty.at(f"fault: {cell.guilty}")
    if struck is None:
        yield "the fault never occurred"
        return
    if faulty.hung or again.hung:
        yield f"still running after {DEADLINE} s"
        return
    if cell.survives:
        if faulty.code:
            yield "failed (should succeed)"
    elif not faulty.code:
        yield "succeeded silently"
    elif named != cell.guilty:
        yield f"named: {named or 'nobody'} (should be {cell.guilty})"
    elif (told := faulty.at("Job failed") or struck) - struck > NAMED_IN:
        yield f"named after {told - struck:.0f} s"
    if again is not faulty and again.code:
        yield "the next run fails"
    reached = max((int(step) for step in faulty.found(r"step (\d+)/")), default=0)
    if again is not faulty and resumed >= 0 and reached - resumed > cell.lost:
        yield f"lost {reached - resumed} steps"


def _stops(cell: Cell, faulty: Run) -> Iterator[str]:
    """Yield what else than lost replicas has stopped, and what ran again. While the chief is frozen, nobody is lost."""
    lost = {each.partition(":")[0] for each in cell.faults if not re.search("slow|late|pool0-0:freeze", each)}
    named = {name for names in faulty.found(LOST) for name in names.split(" and ")}
    if named != lost:
        yield f"lost: {' and '.join(sorted(named)) or 'nobody'} (should be {' and '.join(sorted(lost)) or 'nobody'})"
    if others := {*faulty.found(r"^\[(\S+)\] .*Restarting (?:this|the)")} - lost or faulty.found("(resumed) at step"):
        yield f"also restarted: {' and '.join(sorted(others))}"
    if (steps := [int(step) for step in faulty.found(STEP)]) != sorted({*steps, 60}):
        yield f"took these steps: {steps}"


def run(cell: Cell, project: Path, state: Path, *options: str, cwd: Path | None = None) -> Run:
    """Run a cell's job until it ends or the deadline passes, and read its lines; `cwd` is another project."""
    job = _spot(project, cell.job, state) if cell.spot else f"jobs/{cell.job}.yaml"
    words = ("run", job, "--max-replicas", str(cell.replicas), "--state-dir", str(state), *options)
    command = (str(project / ".venv/bin/python"), "-m", "vertex_launch", *words, "--", *FLAGS, *TIMES)
    env = os.environ | {"PYTHONPATH": str(LAUNCHER), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    began, seen = time.monotonic(), Run()
    with subprocess.Popen(
        command, cwd=cwd or project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        deadline = threading.Timer(DEADLINE, _stop, (process, seen))
        deadline.start()
        assert process.stdout
        for line in process.stdout:
            seen.lines.append(line.rstrip())
            seen.times.append(time.monotonic() - began)
        seen.code = process.wait()
        deadline.cancel()
    return seen


def _stop(process: "subprocess.Popen[str]", seen: Run) -> None:
    """Stop a run that hangs; its replicas end with the launcher's process, however that ends."""
    seen.hung = True
    process.send_signal(signal.SIGTERM)
    time.sleep(15)
    process.kill()


def _spot(project: Path, job: str, state: Path) -> str:
    """Write a copy of a job file with the strategy SPOT."""
    file = state.with_suffix(".yaml")
    text = (project / f"jobs/{job}.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("scheduling:\n", "scheduling:\n  strategy: SPOT\n"), encoding="utf-8")
    return str(file)
