"""Measure the trainer on the GPUs of this machine: MFU, speed, memory and the wait for a checkpoint.

    python benchmarks/gpu.py IMAGES TEXT [--page docs/gpu.md] [--size large]

IMAGES and TEXT are projects of PyTorch, baked with the two examples; run by a Python that has their requirements with
CUDA. Models of 300 million and of 1.2 billion parameters train on images of 224 x 224 pixels and on text of 1,024
bytes, each with the flags of WAYS. Beside what was measured stands what was forecast by `trainer.describe`: the memory,
as `plan` adds it up, and the step at 40 % MFU, which `plan` assumes. The wait for a checkpoint is that of all but the
first, for which memory is pinned. A run is ended after its last report, as its export would keep a CPU busy for
minutes; one that fails has its error in its row. `--size tiny` is for a machine without a GPU, and takes few steps.
"""

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib import metadata
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from program import Line, started
from step import spread

WAYS = {
    "ddp, float32": ["--precision", "float32"],
    "ddp": [],
    "ddp, compile": ["--compile"],
    "ddp, recompute": ["--recompute"],
    "fsdp": ["--strategy", "fsdp"],
    "fsdp, compile": ["--strategy", "fsdp", "--compile"],
}
ASSUMED = 0.4  # MFU
SIDE, PATCH, CONTEXT = 224, 16, 1024
SECONDS = 900  # of one run
PATIENCE = 120  # seconds of trainer.describe, as `plan` has them
COLUMNS = (
    *("Model", "Way", "Step", "MFU", "a second", "Memory, GB", "forecast", "Step at 40 % MFU"),
    *("Wait for a checkpoint", "of 20 steps"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * (len(COLUMNS) - 2)}\n"
DEVICE = re.compile(r"training on ((\d+) x .+), (?:ddp|fsdp): ")
EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
OFTEN = 20  # steps, of which the wait for one checkpoint is told as a share


class Load(NamedTuple):
    example: str
    size: str
    batch: int  # of a GPU
    flags: list[str]
    steps: int
    every: int  # steps between two reports
    save: int  # steps between two checkpoints: enough to write one


class RunError(Exception):
    """A run that has not come to its last report; the text says why."""


class Report(NamedTuple):
    """A report of the trainer, and when it came, on the clock of time.monotonic."""

    at: float
    values: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.values["step"])


class Run(NamedTuple):
    """Reports of a run."""

    device: str
    gpus: int
    reports: list[Report]

    def median(self, name: str) -> float:
        """Median of all reports but the first, whose steps begin with a compilation; 0.0 where none has it."""
        told = [report.values[name] for report in self.reports[1:] if name in report.values]
        return float(statistics.median(told)) if told else 0.0


def loads(size: str, shards: Path) -> list[Load]:
    """Return the loads of models of this size; of all sizes but the tiny one, if none is named."""
    if size == "tiny":
        return [Load(example, "tiny", 4, [], steps=7, every=1, save=2) for example in ("images", "text")]
    images = ["--data", str(shards), "--noise", "0", "--patch", str(PATCH)]
    text = ["--context", str(CONTEXT)]
    of_all = [
        Load("images", "large", 128, images, steps=190, every=10, save=60),
        Load("text", "large", 32, text, steps=190, every=10, save=60),
        Load("images", "xl", 64, images, steps=370, every=10, save=120),
        Load("text", "xl", 16, text, steps=370, every=10, save=120),
    ]
    return [load for load in of_all if size in ("", load.size)]


def main(projects: dict[str, Path], page: Path | None, size: str) -> None:
    rows, device = "", ""
    print(HEAD, end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        write_images(projects["images"], shards)
        for load, (name, flags) in product(loads(size, shards), ways(size).items()):
            print(f"{load.example} {load.size}, {name}", file=sys.stderr, flush=True)
            found, cells = measure(projects[load.example], fitted(load, flags), flags, Path(folder))
            row = f"| {load.example}, {load.size} | {name} | {' | '.join(cells)} |\n"
            device, rows = found or device, rows + row
            print(row, end="", flush=True)
            write(page, device, rows)
    print(device)


def ways(size: str) -> dict[str, list[str]]:
    """The flags of each way; a CPU would compile for a minute to show that it can."""
    return {name: flags for name, flags in WAYS.items() if size != "tiny" or "--compile" not in flags}


def fitted(load: Load, flags: list[str]) -> Load:
    """Shorten a run in float32, whose steps take seconds, to what is enough for a checkpoint."""
    return load._replace(steps=min(load.steps, 70), save=min(load.save, 20)) if "float32" in flags else load


def measure(project: Path, load: Load, flags: list[str], aside: Path) -> tuple[str, list[str]]:
    """The device, where a run has told it, and the cells of its row."""
    try:
        needs = describe(project, load, flags)
        run = train(project, load, flags, aside)
    except RunError as error:  # a model may not fit
        return "", failed(error)
    return run.device, measured(load, run, forecast_bytes(needs, run, flags))


def write(page: Path | None, device: str, rows: str) -> None:
    """The page with the rows that are there."""
    if page:
        where = f"{device}, PyTorch {metadata.version('torch')}" if device else "No run has come to its end."
        head = "# On GPUs\n\n`benchmarks/gpu.py`, the program of `nox -s bench-gpu`, wrote this page."
        page.write_text(f"{head}\n\n{where}\n\n{HEAD}{rows}", encoding="utf-8")


def measured(load: Load, run: Run, forecast: float) -> list[str]:
    """The cells of a run."""
    kind = "tokens" if run.median("train/tokens_per_second") else "samples"
    step, mfu, memory = (run.median(f"train/{name}") for name in ("step_seconds", "mfu", "memory_bytes"))
    _, *waits = checkpoint_waits(run.reports, load.save)  # for the first, memory is pinned
    return [
        f"{1000 * step:.0f} ms",
        f"{mfu:.0%}" if mfu else "",
        f"{run.median(f'train/{kind}_per_second'):.0f} {kind}",
        f"{memory / 1e9:.1f}" if memory else "",
        f"{forecast / 1e9:.1f}",
        f"{1000 * step * mfu / ASSUMED:.0f} ms" if mfu else "",
        f"{spread(waits, '.2f')} s",
        f"{100 * statistics.median(waits) / step / OFTEN:.1f} %",
    ]


def failed(error: RunError) -> list[str]:
    """The cells of a run that has failed."""
    text = " ".join(str(error).replace("|", "/").split())
    return [text[:200], *[""] * (len(COLUMNS) - 3)]


def checkpoint_waits(reports: list[Report], every: int) -> list[float]:
    """Seconds for which the loop has waited for each checkpoint but that of the last step.

    A checkpoint begins behind a report. What passes from there to the next report, and is no step, is the wait and what
    a report itself costs; reports without a checkpoint tell that. A wait contains what is left to write of the
    checkpoint before, if that took longer than the steps since.
    """
    between: dict[bool, list[float]] = {True: [], False: []}
    for report, following in pairwise(reports):
        stepping = (following.step - report.step) * following.values["train/step_seconds"]
        between[report.step % every == 0].append(following.at - report.at - stepping)
    return [max(seconds - statistics.median(between[False]), 0.0) for seconds in between[True]]


def forecast_bytes(needs: dict[str, Any], run: Run, flags: list[str]) -> float:
    """Bytes of one GPU, as the planner adds them up; with FSDP it holds a part of each tensor."""
    names = ("plan.memory", "plan.workload")
    planner, workload = (importlib.import_module(f"vertex_launch.{name}") for name in names)
    # From P4 to V100 the trainer computes in float32, whatever trainer.describe says of newer GPUs.
    is_old = importlib.import_module("trainer.reports.speed").peak_flops(run.device, "float32") > 0
    card = SimpleNamespace(precision="float32" if is_old else needs["precision"], memory_gb=0)
    told = workload.Workload(**{field.name: needs[field.name] for field in fields(workload.Workload)})
    memory = planner.memory(told, run.gpus, card)
    state = memory.parameters + memory.gradients + memory.optimizer
    return float(memory.total - (state - state / run.gpus if "fsdp" in flags else 0))


def train(project: Path, load: Load, flags: list[str], aside: Path) -> Run:
    """One run, ended after its last report.

    Raises:
        RunError: it fails, or takes too long.
    """
    numbers = {"steps": load.steps, "log-every": load.every, "evaluate-every": load.steps}
    numbers |= {"checkpoint-every": load.save, "keep": 1, "warmup": 2}
    words = (word for name, number in numbers.items() for word in (f"--{name}", str(number)))
    # Noise cannot be learned: at the usual rate the loss might end as no number.
    command = [*task(load, flags), *words, "--learning-rate", "1e-4"]
    with (
        tempfile.TemporaryDirectory(dir=aside) as folder,
        started(command, Path(folder), environ(project), SECONDS) as lines,
    ):
        return follow(lines, load.steps)


def follow(lines: Iterable[Line], steps: int) -> Run:
    """Read up to the report of the last step.

    Raises:
        RunError: there is none.
    """
    device, gpus, said, reports = "", 1, list[Line](), list[Report]()
    try:
        for line in lines:
            said.append(line)
            values = fields_of(line.text)
            if found := DEVICE.match(values.get("message", "")):
                device, gpus = found[1], int(found[2])
            if "train/step_seconds" in values:
                reports.append(Report(line.at, values))
            if reports and reports[-1].step == steps:
                return Run(device, gpus, reports)
    except TimeoutError:
        raise RunError(f"took more than {SECONDS} s, and came to step {reports[-1].step if reports else 0}") from None
    raise RunError(cause(said))


def cause(said: list[Line]) -> str:
    """Why a program has ended: the last exception that it has printed, else its errors, else its last line."""
    texts = [line.text for line in said if line.text.strip()]
    exceptions = [text for text in texts if EXCEPTION.match(text)]
    errors = [values["message"] for values in map(fields_of, texts) if values.get("severity") == "ERROR"]
    return "".join(exceptions[-1:]) or " ".join(errors) or "".join(texts[-1:]) or "it said nothing"


def fields_of(text: str) -> dict[str, Any]:
    """Return the fields of a line for Cloud Logging, and none of any other line."""
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def describe(project: Path, load: Load, flags: list[str]) -> dict[str, Any]:
    """Return the needs of a run, as the trainer describes them.

    Raises:
        RunError: it cannot tell.
    """
    asked = task(load, flags, "trainer.describe")
    try:
        done = subprocess.run(
            asked, cwd=project, env=environ(project), capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"trainer.describe took more than {PATIENCE} s") from None
    if done.returncode:
        raise RunError(cause([Line(0.0, text) for text in (done.stdout + done.stderr).splitlines()]))
    return fields_of(done.stdout.splitlines()[-1])


def task(load: Load, flags: list[str], program: str = "trainer.task") -> list[str]:
    gpus = importlib.import_module("torch").cuda.device_count()
    size = ["--size", load.size, "--global-batch", str(load.batch * max(gpus, 1))]
    return [sys.executable, "-m", program, *size, *load.flags, *flags]


def environ(project: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(project)}


def write_images(project: Path, folder: Path) -> None:
    """Noise, as large as photographs: what a step takes does not depend on what they show."""
    sys.path.insert(0, str(project))
    numpy, data, shards = (importlib.import_module(name) for name in ("numpy", "trainer.data", "trainer.samples"))
    draw = numpy.random.default_rng(0)

    def pixels(count: int) -> Iterator[Any]:
        for index in range(count):
            yield data.Sample(draw.integers(0, 256, (SIDE, SIDE, 3), numpy.uint8), index % 10)

    shards.write(pixels(512), folder, "train")
    shards.write(pixels(32), folder, "heldout")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--page", type=Path, help="write the table there")
    parser.add_argument("--size", default="", choices=("", "tiny", "large", "xl"), help="models of this size alone")
    given = parser.parse_args()
    main({"images": given.images.resolve(), "text": given.text.resolve()}, given.page, given.size)
