"""Measure the trainer's MFU, speed, memory and wait for a checkpoint on the GPUs of this machine.

    python benchmarks/gpu.py IMAGES TEXT [--page docs/gpu.md] [--size large]

IMAGES and TEXT are the folders of PyTorch projects with the examples `images` and `text`. Run this benchmark in an
environment with the requirements of both projects and CUDA. The benchmark trains models of 300 million and 1.2 billion
parameters on images of 224 x 224 pixels and on text of 1,024 bytes, with each set of flags in WAYS.

Each row of the table shows measurements and forecasts from `trainer.describe`. The forecasts are the memory that `plan`
computes, and the step time at the MFU that `plan` assumes, 40 %. The wait for a checkpoint excludes the first
checkpoint, because the trainer allocates pinned memory for the first checkpoint. The benchmark stops each run after its
last report, because the model's export would keep a CPU busy for minutes. If a run fails, its row contains the error.
`--size tiny` takes few steps and is intended for a machine without a GPU.
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
SECONDS = 900  # limit of one run
PATIENCE = 120  # limit of trainer.describe in seconds, as in `plan`
COLUMNS = (
    *(
        "Model",
        "Variant",
        "Step",
        "MFU",
        "Throughput per second",
        "Memory, GB",
        "Forecast memory",
        "Step at 40 % MFU",
    ),
    *("Wait for a checkpoint", "Share of 20 steps"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * (len(COLUMNS) - 2)}\n"
DEVICE = re.compile(r"training on ((\d+) x .+), (?:ddp|fsdp): ")
EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
OFTEN = 20  # steps; the wait for a checkpoint is reported as a share of their time


class Load(NamedTuple):
    example: str
    size: str
    batch: int  # per GPU
    flags: list[str]
    steps: int
    every: int  # steps between two reports
    save: int  # steps between two checkpoints: enough time to write a checkpoint


class RunError(Exception):
    """The error of a run that ended before its last report. The message contains the cause."""


class Report(NamedTuple):
    """A report of the trainer, and the time of the report according to time.monotonic."""

    at: float
    values: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.values["step"])


class Run(NamedTuple):
    """The reports of a run."""

    device: str
    gpus: int
    reports: list[Report]

    def median(self, name: str) -> float:
        """Return the median of all reports except the first, which includes compilation. Return 0.0 without values."""
        told = [report.values[name] for report in self.reports[1:] if name in report.values]
        return float(statistics.median(told)) if told else 0.0


def loads(size: str, shards: Path) -> list[Load]:
    """Return the training loads with this model size. If the size is empty, return all loads except tiny loads."""
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
    """Return the flags of each variant. Tiny runs skip compilation, because compilation takes a minute on a CPU."""
    return {name: flags for name, flags in WAYS.items() if size != "tiny" or "--compile" not in flags}


def fitted(load: Load, flags: list[str]) -> Load:
    """Shorten a run in float32 to the steps that a checkpoint requires, because steps in float32 take seconds."""
    return load._replace(steps=min(load.steps, 70), save=min(load.save, 20)) if "float32" in flags else load


def measure(project: Path, load: Load, flags: list[str], aside: Path) -> tuple[str, list[str]]:
    """Return the device and the cells of the row. If the run failed, the device is an empty string."""
    try:
        needs = describe(project, load, flags)
        run = train(project, load, flags, aside)
    except RunError as error:  # a model may not fit
        return "", failed(error)
    return run.device, measured(load, run, forecast_bytes(needs, run, flags))


def write(page: Path | None, device: str, rows: str) -> None:
    """Write the page with the rows that were measured so far."""
    if page:
        where = f"{device}, PyTorch {metadata.version('torch')}" if device else "No run has finished."
        head = "# On GPUs\n\n`nox -s bench-gpu` runs `benchmarks/gpu.py`, which generates this page."
        page.write_text(f"{head}\n\n{where}\n\n{HEAD}{rows}", encoding="utf-8")


def measured(load: Load, run: Run, forecast: float) -> list[str]:
    """Return the table cells for a run that finished."""
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
    """Return the table cells for a run that failed."""
    text = " ".join(str(error).replace("|", "/").split())
    return [text[:200], *[""] * (len(COLUMNS) - 3)]


def checkpoint_waits(reports: list[Report], every: int) -> list[float]:
    """Return the seconds that the training loop waited for each checkpoint except the last step's checkpoint.

    A checkpoint starts after a report. The time until the next report consists of the steps, the wait for the
    checkpoint, and the cost of a report. Reports without a checkpoint show the cost of a report. If the previous
    checkpoint isn't written yet, the wait includes the time until the previous checkpoint is written.
    """
    between: dict[bool, list[float]] = {True: [], False: []}
    for report, following in pairwise(reports):
        stepping = (following.step - report.step) * following.values["train/step_seconds"]
        between[report.step % every == 0].append(following.at - report.at - stepping)
    return [max(seconds - statistics.median(between[False]), 0.0) for seconds in between[True]]


def forecast_bytes(needs: dict[str, Any], run: Run, flags: list[str]) -> float:
    """Return the bytes on one GPU according to the planner. With FSDP, a GPU holds a shard of each tensor."""
    names = ("plan.memory", "plan.workload")
    planner, workload = (importlib.import_module(f"vertex_launch.{name}") for name in names)
    # From P4 to V100, the trainer computes in float32; trainer.describe assumes newer GPUs.
    is_old = importlib.import_module("trainer.reports.speed").peak_flops(run.device, "float32") > 0
    card = SimpleNamespace(precision="float32" if is_old else needs["precision"], memory_gb=0)
    told = workload.Workload(**{field.name: needs[field.name] for field in fields(workload.Workload)})
    memory = planner.memory(told, run.gpus, card)
    state = memory.parameters + memory.gradients + memory.optimizer
    return float(memory.total - (state - state / run.gpus if "fsdp" in flags else 0))


def train(project: Path, load: Load, flags: list[str], aside: Path) -> Run:
    """Run the trainer until its last report.

    Raises:
        RunError: If the run fails or takes too long.
    """
    numbers = {"steps": load.steps, "log-every": load.every, "evaluate-every": load.steps}
    numbers |= {"checkpoint-every": load.save, "keep": 1, "warmup": 2}
    words = (word for name, number in numbers.items() for word in (f"--{name}", str(number)))
    # The model can't learn noise: at the default learning rate, the loss might become NaN.
    command = [*task(load, flags), *words, "--learning-rate", "1e-4"]
    with (
        tempfile.TemporaryDirectory(dir=aside) as folder,
        started(command, Path(folder), environ(project), SECONDS) as lines,
    ):
        return follow(lines, load.steps)


def follow(lines: Iterable[Line], steps: int) -> Run:
    """Read the output until the report of the last step.

    Raises:
        RunError: If the program exits before the report of the last step.
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
        raise RunError(f"timed out after {SECONDS} s at step {reports[-1].step if reports else 0}") from None
    raise RunError(cause(said))


def cause(said: list[Line]) -> str:
    """Return the cause of a program's exit: the last exception, otherwise the errors, otherwise the last line."""
    texts = [line.text for line in said if line.text.strip()]
    exceptions = [text for text in texts if EXCEPTION.match(text)]
    errors = [values["message"] for values in map(fields_of, texts) if values.get("severity") == "ERROR"]
    return "".join(exceptions[-1:]) or " ".join(errors) or "".join(texts[-1:]) or "the program printed nothing"


def fields_of(text: str) -> dict[str, Any]:
    """Return the fields of a JSON line, or an empty dictionary for any other line."""
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def describe(project: Path, load: Load, flags: list[str]) -> dict[str, Any]:
    """Return the resources of a run that trainer.describe estimates.

    Raises:
        RunError: If trainer.describe fails.
    """
    asked = task(load, flags, "trainer.describe")
    try:
        done = subprocess.run(
            asked, cwd=project, env=environ(project), capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"trainer.describe timed out after {PATIENCE} s") from None
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
    """Write images of noise with the size of photographs. The step time doesn't depend on the images' contents."""
    sys.path.insert(0, str(project))
    numpy, data, shards = (
        importlib.import_module(name) for name in ("numpy", "trainer.data", "trainer.samples.shards")
    )
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
    parser.add_argument("--page", type=Path, help="write the table to this page")
    parser.add_argument("--size", default="", choices=("", "tiny", "large", "xl"), help="measure only this model size")
    given = parser.parse_args()
    main({"images": given.images.resolve(), "text": given.text.resolve()}, given.page, given.size)
