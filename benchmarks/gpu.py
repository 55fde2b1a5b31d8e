"""What the GPUs of this machine make of the trainer: MFU, speed, memory and the wait for a checkpoint.

    python benchmarks/gpu.py IMAGES TEXT [--page docs/gpu.md] [--size large]

IMAGES and TEXT are projects of PyTorch, baked with the two examples; run by a Python that has their requirements with
CUDA. Models of 300 million and of 1.2 billion parameters train on images of 224 x 224 pixels and on text of 1,024
bytes, each with the flags of WAYS. Beside what was measured stands what was forecast from `--describe`: the memory, and
the step at 40 % MFU, which `plan` assumes. `--size tiny` is for a machine without a GPU, and takes few steps.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
SECONDS = 1200  # of one run
HEAD = "| Model | Way | Step | MFU | a second | Memory, GB | forecast | Step at 40 % MFU | Wait for a checkpoint |\n"


class Load(NamedTuple):
    example: str
    size: str
    batch: int
    flags: list[str]
    steps: int = 30
    every: int = 5


def loads(size: str, shards: Path) -> list[Load]:
    """What models of this size do; of all but the tiny one, if none is named."""
    if size == "tiny":
        return [Load("images", "tiny", 4, [], 4, 1), Load("text", "tiny", 4, [], 4, 1)]
    images = ["--data", str(shards), "--noise", "0", "--patch", str(PATCH)]
    text = ["--context", str(CONTEXT)]
    of_all = [
        Load("images", "large", 128, images),
        Load("text", "large", 32, text),
        Load("images", "xl", 64, images),
        Load("text", "xl", 16, text),
    ]
    return [load for load in of_all if size in ("", load.size)]


def main(projects: dict[str, Path], page: Path | None, size: str) -> None:
    rows, told = [HEAD, "|---|---|---:|---:|---:|---:|---:|---:|---:|\n"], ""
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        write_images(projects["images"], shards)
        for load in loads(size, shards):
            for name, flags in WAYS.items():
                if size == "tiny" and "--compile" in flags:
                    continue  # a CPU would compile for a minute to show that it can
                print(f"{load.example} {load.size}, {name}", file=sys.stderr, flush=True)
                lines = train(projects[load.example], load, flags, Path(folder))
                needs = describe(projects[load.example], load, flags)
                rows.append(row(load, name, lines, needs))
                told = told or next(
                    (line["message"] for line in lines if line["message"].startswith("training on")), ""
                )
    text = f"{told}\n\n{''.join(rows)}"
    print(text)
    if page:
        page.write_text(f"# On GPUs\n\n`nox -s bench-gpu` wrote this page.\n\n{text}", encoding="utf-8")


def row(load: Load, name: str, lines: list[dict[str, Any]], needs: dict[str, Any]) -> str:
    if errors := [line["message"] for line in lines if line["severity"] == "ERROR"]:  # a model may not fit
        return f"| {load.example}, {load.size} | {name} | {' '.join(errors)[:200]} |  |  |  |  |  |  |\n"
    reports = [line for line in lines if "train/step_seconds" in line][1:]
    (seconds,) = (line["seconds"] for line in lines if "goodput" in line)
    step = statistics.median(report["train/step_seconds"] for report in reports)
    kind = "tokens" if "train/tokens_per_second" in reports[0] else "samples"
    per_second = statistics.median(report[f"train/{kind}_per_second"] for report in reports)
    mfu = [report["train/mfu"] for report in reports if "train/mfu" in report]
    memory = [report["train/memory_bytes"] for report in reports if "train/memory_bytes" in report]
    forecast = statistics.median(mfu) * step / ASSUMED if mfu else 0.0
    cells = [
        f"{load.example}, {load.size}",
        name,
        f"{1000 * step:.0f} ms",
        f"{statistics.median(mfu):.0%}" if mfu else "",
        f"{per_second:.0f} {kind}",
        f"{max(memory) / 1e9:.1f}" if memory else "",
        f"{forecast_bytes(needs) / 1e9:.1f}",
        f"{1000 * forecast:.0f} ms" if mfu else "",
        f"{seconds['checkpoints']:.2f} s",
    ]
    return f"| {' | '.join(cells)} |\n"


def forecast_bytes(needs: dict[str, Any]) -> float:
    """Of one GPU that holds the whole model, as the planner adds them up."""
    fixed = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "weight_copy_bytes")
    samples = needs["global_batch"] / needs["micro_batches"]
    return float(sum(needs[name] for name in fixed) + needs["activation_bytes_per_sample"] * samples)


def train(project: Path, load: Load, flags: list[str], aside: Path) -> list[dict[str, Any]]:
    """The lines of a run."""
    numbers = {"steps": load.steps, "log-every": load.every, "warmup": 2}
    numbers |= {"evaluate-every": load.steps, "checkpoint-every": load.steps}
    words = (word for name, number in numbers.items() for word in (f"--{name}", str(number)))
    with tempfile.TemporaryDirectory(dir=aside) as folder:
        done = run(project, [*of_model(load), *flags, *words], Path(folder))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode and not any(line["severity"] == "ERROR" for line in lines):
        lines.append({"severity": "ERROR", "message": " ".join(done.stderr.splitlines()[-1:])})
    return lines


def of_model(load: Load) -> list[str]:
    return ["--size", load.size, "--global-batch", str(load.batch), *load.flags]


def describe(project: Path, load: Load, flags: list[str]) -> dict[str, Any]:
    done = run(project, [*of_model(load), *flags, "--describe"], project)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(project: Path, flags: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainer.task", *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def write_images(project: Path, folder: Path) -> None:
    """Noise, as large as photographs: what a step takes does not depend on what they show."""
    sys.path.insert(0, str(project))
    numpy, data, shards = (importlib.import_module(name) for name in ("numpy", "trainer.data", "trainer.shards"))
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
