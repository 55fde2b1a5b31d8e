"""Compare the memory and step time of each strategy of a PyTorch project with the memory and step time of ddp.

    python benchmarks/strategies.py PROJECT [--page docs/strategies.md]

Run this benchmark with the project's own Python on Linux. Each strategy trains a model of 86 million parameters in four
processes. "Kept" is the memory for parameters, gradients and optimizer moments. "Peak" is the largest resident set size
of a process, minus the resident set size before the model was created. The processes share a few cores and communicate
through memory, so the times show the overhead of a strategy, but not the speed on GPUs.
"""

import argparse
import functools
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COUNT, DEGREE = 4, 2
WARMUP, STEPS = 1, 4  # the first step isn't counted
MODEL = ["--size", "base", "--patch", "4", "--global-batch", "16"]
STRATEGIES = {
    "ddp": [],
    "elastic": ["--strategy", "elastic"],
    "fsdp": ["--strategy", "fsdp"],
    f"fsdp, degree {DEGREE}": ["--strategy", "fsdp", "--degree", str(DEGREE)],
    "pipeline": ["--strategy", "pipeline", "--degree", str(DEGREE), "--micro-batches", "4"],
    "tensor": ["--strategy", "tensor", "--degree", str(DEGREE)],
    "ddp, recompute": ["--recompute"],
}
# With the second variable, glibc returns freed memory immediately instead of keeping the gathered weights.
SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
BEGIN, END = "<!-- begin table -->\n", "<!-- end table -->\n"
MIB = 2**20
Found = dict[str, Any]


def main(project: Path, page: Path | None) -> None:
    found = {name: measure(project, flags) for name, flags in STRATEGIES.items()}
    text = table(found)
    print(text)
    if page:
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(before + BEGIN + text + END + rest.split(END)[1], encoding="utf-8")


def measure(project: Path, flags: list[str]) -> Found:
    """Measure one strategy in newly started processes."""
    command = [sys.executable, str(Path(__file__).resolve()), str(project), "--", *MODEL, *flags]
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(project)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    print(f"{' '.join(flags) or 'ddp'}: {done.stdout.strip()}", flush=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(found: dict[str, Found]) -> str:
    base = found["ddp"]
    rows = [
        "| Strategy | Mesh | Kept, MiB | Ratio to ddp | Peak, MiB | Ratio to ddp | Step, s | Ratio to ddp |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in found.items():
        cells = [f"{one[key]:{form}} | {one[key] / base[key]:.2f}" for key, form in FORMS.items()]
        rows.append(f"| {name} | {one['mesh']} | {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


FORMS = {"kept": ".0f", "peak": ".0f", "step": ".2f"}


def launch(flags: list[str]) -> None:
    """Train with these flags in four processes. The chief prints the measurements."""
    choice, model, layout, processes, spec = (
        importlib.import_module(f"trainer.{name}")
        for name in ("parallel.choice", "model", "parallel.mesh", "cluster.processes", "cluster.spec")
    )
    strategy, parsed = choice.parse([*flags, "--warmup", "1", "--steps", str(WARMUP + STEPS)])
    with importlib.import_module("torch").device("meta"):
        net = model.build(parsed, images(1))
    mesh = layout.lay_out(strategy, parsed, machines=1, processes=COUNT, net=net)
    processes.launch(spec.Cluster(), mesh, functools.partial(work, strategy, parsed, mesh))


def images(count: int) -> Any:
    """Return a batch of `count` images."""
    numpy, data = importlib.import_module("numpy"), importlib.import_module("trainer.data")
    return data.Batch(numpy.zeros((count, 8, 8, 1), numpy.float32), numpy.zeros(count, numpy.int64))


def work(strategy: Any, config: Any, mesh: Any) -> None:
    """Train in one of the processes. If the process is the chief, print the measurements."""
    torch, processes = importlib.import_module("torch"), importlib.import_module("trainer.cluster.processes")
    with processes.join(mesh, timeout=300) as world:
        before = resident("VmRSS")
        kept, seconds = train(strategy, config, world)
        values = torch.tensor([kept, resident("VmHWM") - before, statistics.median(seconds)], dtype=torch.float64)
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        if world.is_chief:
            kept, peak, step = values.tolist()
            print(json.dumps({"mesh": str(mesh), "kept": kept / MIB, "peak": peak / MIB, "step": step}))


def train(strategy: Any, config: Any, world: Any) -> tuple[int, list[float]]:
    """Train the model, and return the kept bytes and the duration in seconds of each step after the first step."""
    train, model, states, devices = (
        importlib.import_module(f"trainer.{name}") for name in ("train", "model", "step.state", "cluster.devices")
    )
    importlib.import_module("torch").manual_seed(config.seed)
    batch = images(config.global_batch // world.data_size)
    net = strategy.wrap(config, model.build(config, batch), world)
    state = states.State(net, states.new_optimizer(config, net))
    seconds = []
    for _ in range(config.steps):
        world.wait()
        began = time.perf_counter()
        train.train_step(config, strategy, state, devices.copy(batch, world.device), world)
        seconds.append(time.perf_counter() - began)
    moments = [value for one in state.optimizer.state.values() for value in one.values() if value.ndim]
    # Gradients are freed after a step; before, they are as large as the parameters.
    return size([*net.parameters()]) * 2 + size(moments), seconds[WARMUP:]


def size(tensors: Iterable[Any]) -> int:
    """Return the number of bytes of these tensors in this process."""
    return sum(int((one.to_local() if hasattr(one, "to_local") else one).nbytes) for one in tensors)


def resident(what: str) -> int:
    """Return the resident set size of this process in bytes. VmRSS is the current size, and VmHWM is the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(rf"{what}:\s+(\d+)", status)[0]) * 1024


if __name__ == "__main__":
    if "--" in sys.argv:
        supervisor, log = (importlib.import_module(f"trainer.{name}") for name in ("cluster.supervisor", "vertex.log"))
        supervisor.run_to_end(lambda *_: log.exit_code(launch, sys.argv[sys.argv.index("--") + 1 :]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("project", type=Path)
        parser.add_argument("--page", type=Path, help="replace the table in this page")
        arguments = parser.parse_args()
        main(arguments.project.resolve(), arguments.page)
