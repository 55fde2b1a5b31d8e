"""Reads a step's operation count and data sizes from the trainer, and a run's speed from its TensorBoard curves.

The `python -m trainer.describe FLAGS` command builds the model without its weights. The command imports the framework,
which takes a few seconds. Its output is therefore cached until the flags or a trainer file changes.
"""

import hashlib
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from vertex_launch.errors import FaultError
from vertex_launch.job.contract import TRAINER, Commands, limit, replicas
from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import StateDir

DESCRIBE = Path("trainer/describe/__main__.py")
OLD_DESCRIBE = "--describe"  # for older projects without that program; can be removed after all projects are updated
RATE = "train/samples_per_second_per_device"  # a curve
OUTPUT = Path("output")  # the output folder of a trainer without the launcher
PATIENCE = 120  # seconds
FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)  # of a traceback
ABSENT = re.compile(r"^.*python[\d.]*: .*No module named '?([\w.]+)", re.MULTILINE)  # Python's own message


@dataclass(frozen=True)
class Workload:
    """A step's operation count and its data sizes in bytes, for a GPU that holds the whole model.

    The field names match trainer/describe/estimate.py.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    flops_per_sample: int  # forward and backward
    precision: str  # compute dtype on GPUs that support it; other GPUs use float32
    weight_copy_bytes: int  # in that precision
    activation_bytes_per_sample: int  # in that precision
    activation_bytes_per_sample_float32: int
    global_batch: int
    micro_batches: int


def of(job: Job, commands: Commands, environ: Mapping[str, str], state_dir: StateDir) -> Workload:
    """Return the workload that a job's trainer describes. Cache the workload for the next call.

    Raises FaultError if the trainer can't run.
    """
    arguments = _arguments(job, commands)
    kept = state_dir.folder / "described" / f"{_key(arguments)}.json"
    if kept.exists():
        return _read(kept.read_text(encoding="utf-8"))
    text = _ask(arguments, {**environ, "GCS_MOUNT": str(state_dir.buckets)})
    workload = _read(text)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(text, encoding="utf-8")
    return workload


def require_gpus(folder: Path, buckets: Path, gpus: Sequence[str]) -> None:
    """Raise FaultError if `folder` contains a local run and this machine doesn't have a GPU."""
    resolved = folder.resolve()
    if not gpus and (resolved.is_relative_to(buckets.resolve()) or resolved.is_relative_to(OUTPUT.resolve())):
        cure = "copy the output of a cloud run from its bucket to another folder, or use --step-seconds"
        raise FaultError(f"{folder}: this run wasn't measured on a GPU, because this machine doesn't have one; {cure}")


def samples_per_second_per_gpu(folder: Path) -> float:
    """Return a run's median samples per second per GPU.

    Raises FaultError if the run's folder doesn't contain a curve for this metric.
    """
    # Imported lazily, because it imports most of TensorBoard.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    files = sorted(filter(Path.is_file, folder.glob("**/events.out.tfevents.*")))
    loaders = (LegacyEventFileLoader(str(path)) for path in files)
    values = (value for loader in loaders for event in loader.Load() for value in event.summary.value)
    rates: list[float] = [item.simple_value for item in values if item.tag == RATE and 0 < item.simple_value < math.inf]
    if not rates:
        raise FaultError(
            f"{folder}: the folder doesn't contain the metric {RATE}; copy the output folder of a run from its bucket"
        )
    return statistics.median(rates)


def _arguments(job: Job, commands: Commands) -> tuple[str, ...]:
    """Return the Python arguments that start the chief's trainer: -m, the module's name, and the flags."""
    words = replicas(limit(job, 1), "", lambda *_: "localhost:0", commands=commands)[0].command if job.chief else ()
    if not words:
        raise FaultError("only the image defines the chief's command. Add the command under [commands] in vertex.toml")
    start = words.index("-m") if "-m" in words else -1
    is_module = start > 0 and not any(word.endswith(".py") for word in words[1:start])
    if not is_module or not Path(words[0]).name.startswith("python"):
        raise FaultError(f'the chief runs "{" ".join(words)}", but only a Python module can describe its workload')
    return words[start:]


def _ask(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    is_program = arguments[1] == TRAINER and DESCRIBE.exists()
    question = ("-m", "trainer.describe", *arguments[2:]) if is_program else (*arguments, OLD_DESCRIBE)
    command = [sys.executable, *question]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise FaultError(f"the trainer didn't print anything within {PATIENCE} s") from None
    if answer.returncode:
        if absent := ABSENT.search(answer.stderr):
            raise FaultError(f"the module {absent[1]} isn't installed on this machine")
        reason = _complaint(answer.stderr) or _last_line(answer.stdout) or _last_line(answer.stderr)
        raise FaultError(f"the trainer can't be described: {reason}")
    return _last_line(answer.stdout)


def _read(text: str) -> Workload:
    try:
        sizes = json.loads(text)
        return Workload(**{one.name: one.type(sizes[one.name]) for one in fields(Workload)})  # type: ignore[operator]
    except (ValueError, TypeError, LookupError, OverflowError):
        raise FaultError("the trainer doesn't print its sizes") from None


def _complaint(text: str) -> str:
    """Return the text of a usage error, or an exception with its location in the current folder.

    If the output contains neither a usage error nor an exception, return "".
    """
    boxed = itertools.takewhile(lambda line: line.strip("│─ "), (line for line in text.splitlines() if line[:1] == "│"))
    usage = " ".join(line.strip("│ ") for line in boxed)
    frames = [(Path(name), line) for name, line in FRAME.findall(text)]
    if usage or not frames:
        return usage
    own_frames = [(path.relative_to(Path.cwd()), line) for path, line in frames if path.is_relative_to(Path.cwd())]
    path, line = (own_frames or frames)[-1]
    return f"{path}:{line}: {_last_line(text)}"


def _last_line(text: str) -> str:
    """Return the last line that contains a letter or digit. If this line is a JSON log entry, return its message."""
    lines = [line.strip(" \t│") for line in text.splitlines() if any(map(str.isalnum, line))]
    line = lines[-1] if lines else ""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, TypeError, KeyError):
        return line


def _key(arguments: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(arguments).encode())
    for path in sorted(Path("trainer").glob("**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
