"""Step time and memory of the trainer against a rival, on the same model, data and two processes.

    python benchmarks/step.py pytorch|tensorflow PROJECT

Whole jobs of the local Vertex, trainer and rival in turn, so that a noisy machine disturbs both alike. Printed
are the medians over all reports but each job's first, their ratio, and the largest resident set of a process.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import yaml

ROUNDS = 5
STEPS = 400
BATCH = 96
RIVALS = {"pytorch": "bare_pytorch.py", "tensorflow": "fit_tensorflow.py"}
NAMES = {"pytorch": "a bare DDP loop", "tensorflow": "tf_keras fit"}
HERE = Path(__file__).resolve().parent


def main(framework: str, project: Path) -> None:
    rival = ["python", str(HERE / RIVALS[framework]), str(STEPS), str(BATCH)]
    flags = ["--steps", STEPS, "--global-batch", BATCH, "--evaluate-every", STEPS, "--checkpoint-every", STEPS]
    ours = ["python", "-m", "trainer.task", *map(str, flags)]
    seconds: dict[str, list[float]] = {"ours": [], "rival": []}
    memory = {"ours": 0.0, "rival": 0.0}
    for number in range(ROUNDS):
        for name, command in (("ours", ours), ("rival", rival)):
            found, peak = measure(command, project)
            seconds[name] += found
            memory[name] = max(memory[name], peak)
            print(f"round {number + 1} {name:5} {1000 * statistics.median(found):7.2f} ms/step", flush=True)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    print(f"{framework}: trainer {1000 * medians['ours']:.2f} ms/step, {NAMES[framework]} ", end="")
    print(f"{1000 * medians['rival']:.2f} ms/step, ratio {medians['ours'] / medians['rival']:.2f}; ", end="")
    print(f"peak memory {memory['ours']:.0f} MiB against {memory['rival']:.0f} MiB a process")


def measure(command: list[str], project: Path) -> tuple[list[float], float]:
    """Run one job of two replicas; the seconds a step that it reports, and its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "vertex.toml").write_text((project / "vertex.toml").read_text())
        (here / "job.yaml").write_text(yaml.safe_dump(job(command)))
        environment = os.environ | {"PYTHONPATH": str(project)}
        process = subprocess.Popen(
            [sys.executable, "-m", "vertex_launch", "run", "job.yaml", "--pass-env", "PYTHONPATH"],
            cwd=here,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        peak = Peak(folder)
        output, _ = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(output)
        (log,) = here.glob(".vertex/jobs/*/workerpool0-0.log")
        reports = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        return [report["train/step_seconds"] for report in reports if "train/step_seconds" in report][1:], peak.stop()


def job(command: list[str]) -> dict[str, object]:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": {
            "imageUri": "image",
            "command": command,
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
    }
    return {"workerPoolSpecs": [pool, pool], "baseOutputDirectory": {"outputUriPrefix": "gs://b/bench"}}


class Peak:
    """Watches the processes that run below a folder; the largest resident set among them (Linux)."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.encode()
        self._mebibytes = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._mebibytes

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if (
                        self._folder in (process / "environ").read_bytes()
                        and b"CLUSTER_SPEC" in (process / "environ").read_bytes()
                    ):
                        status = (process / "status").read_text()
                        self._mebibytes = max(self._mebibytes, int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)
                except (OSError, IndexError):
                    continue


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
