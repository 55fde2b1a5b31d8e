"""What can only be measured on GPUs runs without one, in small."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, bake, give_environment, run

sys.path.append(str(ROOT / "benchmarks"))

import gpu
import program
import stall
from program import Line

NEVER_ENDS = """
import json, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print("no JSON", json.dumps({"train/step_seconds": 1}))
print(json.dumps({"message": f"training on 2 x NVIDIA H200 (driver {child.pid}), fsdp: shard 2"}), flush=True)
for number in (1, 2):
    print(json.dumps({"message": "a report", "step": number, "train/step_seconds": 0.5}), flush=True)
time.sleep(600)
"""
NEEDS = {
    **{"parameters": 10**9, "parameter_bytes": 4 * 10**9, "gradient_bytes": 4 * 10**9, "optimizer_bytes": 8 * 10**9},
    **{"flops_per_sample": 1, "precision": "bfloat16", "weight_copy_bytes": 2 * 10**9, "micro_batches": 2},
    **{"activation_bytes_per_sample": 10**8, "activation_bytes_per_sample_float32": 2 * 10**8, "global_batch": 64},
}


def reports(*told: tuple[float, int, float]) -> list[gpu.Report]:
    """When they came, their steps, and the seconds of a step since the one before."""
    return [gpu.Report(at, {"step": number, "train/step_seconds": seconds}) for at, number, seconds in told]


def on(device: str, gpus: int = 1) -> gpu.Run:
    return gpu.Run(device, gpus, [])


def test_a_run_is_ended_with_its_children_once_its_last_report_is_there(tmp_path: Path) -> None:
    with program.started([sys.executable, "-c", NEVER_ENDS], tmp_path, os.environ, 60, grace=0.2) as lines:
        told = gpu.follow(lines, steps=2)
    assert (told.gpus, [report.step for report in told.reports]) == (2, [1, 2])
    child = int(told.device.split()[-1].rstrip(")"))
    assert has_ended(child)


def has_ended(process: int) -> bool:
    """Whether it is gone, or a zombie that nobody has asked for yet; it has a moment for that."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_lines_are_not_waited_for_beyond_the_time_of_a_run(tmp_path: Path) -> None:
    with (
        program.started(["sleep", "600"], tmp_path, os.environ, seconds=0.1, grace=10) as lines,
        pytest.raises(TimeoutError),
    ):
        next(lines)


def test_a_run_that_takes_too_long_says_how_far_it_came() -> None:
    def lines() -> Iterator[Line]:
        yield Line(0.0, json.dumps({"step": 2, "train/step_seconds": 0.5}))
        raise TimeoutError

    with pytest.raises(gpu.RunError, match="at step 2"):
        gpu.follow(lines(), steps=3)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ([], "the program printed nothing"),
        (["nvcc is not there", ""], "nvcc is not there"),
        (['{"severity": "ERROR", "message": "no GPU"}', "at last"], "no GPU"),
        # What the process prints says more than what its supervisor prints of the process.
        (
            ["Traceback", "torch.OutOfMemoryError: CUDA", '{"severity": "ERROR", "message": "process 0 failed"}'],
            "torch.OutOfMemoryError: CUDA",
        ),
    ],
)
def test_a_run_that_fails_says_why(said: list[str], cause: str) -> None:
    with pytest.raises(gpu.RunError) as error:
        gpu.follow((Line(0.0, text) for text in said), steps=1)
    assert str(error.value) == cause


def test_a_failure_is_a_row_of_as_many_cells() -> None:
    cells = gpu.failed(gpu.RunError("a | b\nc"))
    assert cells[0] == "a / b c"
    assert len(cells) == len(gpu.COLUMNS) - 2


def test_a_run_in_float32_takes_fewer_steps() -> None:
    load = gpu.Load("text", "xl", 16, [], steps=370, every=10, save=120)
    assert gpu.fitted(load, []) == load
    assert gpu.fitted(load, gpu.WAYS["ddp, float32"]) == load._replace(steps=70, save=20)


def test_the_wait_for_a_checkpoint_is_what_passes_beside_steps_and_reports() -> None:
    # Each report costs 0.1 s; behind those of steps 20 and 40 lies a checkpoint.
    told = reports((0, 10, 9), (10.1, 20, 1), (23.2, 30, 1.2), (33.3, 40, 1), (43.9, 50, 1))
    assert gpu.checkpoint_waits(told, every=20) == pytest.approx([1.0, 0.5])


def test_the_memory_of_a_gpu_is_forecast_as_plan_does() -> None:
    state, activations = 18e9, 32 * 1e8
    assert gpu.forecast_bytes(NEEDS, on("1 x NVIDIA H200"), []) == state + activations + 1.5e9
    assert gpu.forecast_bytes(NEEDS, on("4 x NVIDIA H200", 4), []) == state + activations / 4 + 1.5e9
    sharded = gpu.forecast_bytes(NEEDS, on("4 x NVIDIA H200", 4), ["--strategy", "fsdp"])
    assert sharded == state / 4 + activations / 4 + 1.5e9


def test_an_old_gpu_computes_in_float32() -> None:
    assert gpu.forecast_bytes(NEEDS, on("1 x Tesla T4"), []) == 16e9 + 32 * 2e8 + 1.5e9


def test_a_save_costs_the_wait_for_it_and_slower_steps_behind_it() -> None:
    told = [{"message": "a report", "train/step_seconds": seconds} for seconds in (9.0, 1.1, 1.1)]
    goodput = {"goodput": 0.5, "seconds": {"checkpoints": 3.0, "last checkpoint": 50.0}}
    run = stall.found("\n".join(["started", *map(json.dumps, [*told, goodput])]), saves=3)
    assert run == stall.Run(step=1.1, wait=1.0)
    told_row = stall.row("PyTorch", "base", [run], [stall.Run(step=1.0, wait=0.0)])
    assert told_row == "| PyTorch, base | 1000.0 ms | 1000 ms | 5.0 (5.0 to 5.0) % | 15.0 (15.0 to 15.0) % |\n"


@pytest.mark.slow
@pytest.mark.proof
def test_the_measurements_of_gpus_run_on_a_cpu_in_small(tmp_path: Path) -> None:
    projects = [
        bake(tmp_path / example, framework="pytorch", example=example).project for example in ("images", "text")
    ]
    give_environment(projects[0], "pytorch", tmp_path)
    words = ("benchmarks/gpu.py", *map(str, projects), "--size", "tiny")
    done = run(ROOT, str(projects[0] / ".venv/bin/python"), *words)
    assert done.returncode == 0, done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [
        [f"| {example}, tiny", way]
        for example in ("images", "text")
        for way in ("ddp, float32", "ddp", "ddp, recompute", "fsdp")
    ]
    assert all(" ms" in row[2] and row[8].endswith(" s") and row[9].endswith(" % |") for row in rows), rows
