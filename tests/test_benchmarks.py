"""What can only be measured on GPUs runs without one, in small."""

from pathlib import Path

import pytest

from tests.conftest import ROOT, bake, give_environment, run


@pytest.mark.proof
def test_the_benchmark_of_gpus_runs_on_a_cpu_in_small(tmp_path: Path) -> None:
    projects = [bake(tmp_path / name, framework="pytorch", example=name).project for name in ("images", "text")]
    give_environment(projects[0], "pytorch", tmp_path)
    python = projects[0] / ".venv/bin/python"
    done = run(tmp_path, str(python), str(ROOT / "benchmarks/gpu.py"), *map(str, projects), "--size", "tiny")
    assert done.returncode == 0, done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [
        [f"| {example}, tiny", way]
        for example in ("images", "text")
        for way in ("ddp, float32", "ddp", "ddp, recompute", "fsdp")
    ]
    assert all(" ms" in row[2] and row[8].endswith(" s |") for row in rows), rows
