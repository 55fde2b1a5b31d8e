"""Runs one job on this machine as Vertex AI would, and shows its replicas' output."""

import re
import shutil
import time
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vertex_launch.errors import FaultError
from vertex_launch.job import lease
from vertex_launch.job.contract import Replica
from vertex_launch.job.spec import OUTPUT, Job
from vertex_launch.job.state_dir import StateDir, output_folder
from vertex_launch.local.job_record import recorded
from vertex_launch.local.running import engine, host
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.ended import Ended
from vertex_launch.local.running.journal import SERVICE
from vertex_launch.local.running.lines import message, payload
from vertex_launch.local.running.outcome import Outcome
from vertex_launch.local.running.prepare import prepare, size
from vertex_launch.local.running.process import Show
from vertex_launch.local.wire.wire import Wire

COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
SEVERITY_STYLES = {"WARNING": "yellow", "ERROR": "bold red"}
OUT_OF_MEMORY = ". If you didn't kill the process, this machine ran out of memory"

# C++ output that follows the loss of a peer. The log contains this entire output. The terminal shows one line for each
# stack trace of PyTorch or gloo. The terminal doesn't show TensorFlow's C++ output, because TensorFlow's Python error
# has the same content.
CPP = re.compile(
    r"(\[rank\d+\]:\s*)?((?P<stack>frame #0: )|frame #\d+: |Exception raised from )"
    r"|[EW]\d{4} \S+ +\d+ (base_collective_executor|ring_\w+)\.cc:\d+\] |:UNKNOWN:Error received from peer "
    r"|Additional GRPC error information |The (tasks have crashed|error could be from a previous operation)\. "
    r"|/job:\w+/replica:\d+/task:\d+$|WARNING: All log messages before absl::InitializeLog\(\)"
)


def empty_output(job: Job, state_dir: StateDir) -> None:
    """Delete the files that earlier runs of this job left in its output folder.

    Raises FaultError if the output folder is an entire bucket or if another job uses the folder.
    """
    folder = output_folder(job, state_dir)
    if folder and folder.parent == state_dir.buckets:
        raise FaultError(
            f"{job.origin}: {OUTPUT}: the value is an entire bucket, which --fresh never empties; add a folder"
        )
    require_free(job, state_dir, "**/")
    if folder and folder.exists():
        shutil.rmtree(folder)


def require_free(job: Job, state_dir: StateDir, below: str = "") -> None:
    lease.require_free(output_folder(job, state_dir), job.origin, below)


def say_what_is_there(job: Job, state_dir: StateDir, console: Console) -> None:
    """If this run continues an earlier one, print a notice, because users might not expect this."""
    folder = output_folder(job, state_dir)
    if folder and folder.exists() and any(folder.iterdir()):
        notice = f"Continuing the earlier run in {shown(folder)}. To start over, use --fresh."
        console.print(notice, style="dim")


def run(job: Job, context: Context, console: Console, fresh: bool, whole: int) -> Outcome:
    """Run the job to completion. Show and log every line that a replica prints.

    Args:
        fresh: whether to delete the files that earlier runs left in the job's output folder.
        whole: the number of replicas in the job file, excluding reducers. `job` might contain fewer.
    """
    introduce(job, whole, console)
    host.remove_left_homes(context.state_dir)
    wire = Wire(context)
    with recorded(job, context) as record, wire.of_job(job, record.id, context) as wired:
        prepared = prepare(job, record.id, wired)
        # This comes after `prepare`, so that a job that can't run doesn't delete files.
        (empty_output if fresh else require_free)(job, context.state_dir)
        show = shower(prepared.replicas, console)

        def show_and_keep(replica: Replica, line: str, severity: str) -> None:
            record.journal.write(replica.name, line, severity)
            show(replica, line, severity)

        began = time.monotonic()
        outcome = engine.run(prepared, show_and_keep, record.enter)
        for note in outcome.notes:
            record.journal.write(SERVICE, note)
        record.end(outcome)
    conclude(outcome, time.monotonic() - began, output_folder(job, context.state_dir), prepared.logs, console)
    return outcome


def introduce(job: Job, whole: int, console: Console) -> None:
    """Print how many of the job's replicas run on this machine."""
    count = size(job)
    part = f" of {whole}" if count < whole else ""
    noun = "replica" if whole == 1 else "replicas"
    console.print(Text.assemble((job.name, "bold"), f": {count}{part} {noun} on this machine"))
    for pool in filter(lambda pool: pool.reduces, job.pools):
        last = f" to workerpool{pool.index}-{pool.replica_count - 1}" if pool.replica_count > 1 else ""
        reason = "CLUSTER_SPEC lists reducers, but gradients don't pass through them on this machine."
        console.print(f"Not started: workerpool{pool.index}-0{last} (reducers). {reason}", style="dim")


def shower(replicas: Sequence[Replica], console: Console) -> Show:
    """Return a function that prints a replica's name in color, followed by a line of its output."""
    width = max(len(replica.name) for replica in replicas) + 2
    here, prefixes = f"{Path.cwd()}/", dict[str, str]()
    for index, replica in enumerate(replicas):
        with console.capture() as captured:
            console.print(Text(f"[{replica.name}]", style=COLORS[index % len(COLORS)]), end="", soft_wrap=True)
        prefixes[replica.name] = captured.get() + " " * (width - len(replica.name) - 1)

    def show(replica: Replica, line: str, severity: str) -> None:
        if found := CPP.match(line):
            if not found["stack"]:
                return
            line = f"(C++ stack trace omitted; see {replica.name}.log)"
        text = printed(line.replace(here, ""))
        if text.style:
            with console.capture() as captured:
                console.print(text, end="", soft_wrap=True)
        # Rich needs 100 us to print a line, and a replica prints ten lines in this time.
        console.file.write(f"{prefixes[replica.name]}{captured.get() if text.style else text.plain}\n")
        console.file.flush()

    return show


def printed(line: str) -> Text:
    """Return the text of a log line in the color of its severity.

    If the line is JSON, return only its message. Plain lines on stderr aren't red, because libraries print a lot of
    harmless output to stderr.
    """
    return Text(message(line), style=SEVERITY_STYLES.get(str(payload(line).get("severity")), ""))


def conclude(outcome: Outcome, seconds: float, output: Path | None, logs: Path, console: Console) -> None:
    """Print the job's outcome, with the likely cause of a failure first, and the paths of its output and logs."""
    for ended in outcome.failures[:1]:
        reason = OUT_OF_MEMORY if ended.signal_name == "SIGKILL" else ""
        console.print(f"Job failed: {ended}{reason}", style="bold red")
        _show_last_words(ended, console)
    if not outcome.succeeded and not outcome.failures:
        console.print(f"Job failed: {outcome.message.splitlines()[0]}", style="bold red")
    for sentence in outcome.others:
        console.print(str(sentence), style="dim")
    for ended in outcome.failed:
        console.print(f"Last output of {ended.replica.name}:", style="dim")
        _show_last_words(ended, console)
    if outcome.succeeded:
        console.print(Text.assemble(("Job succeeded", "bold green"), f" in {seconds:.0f} s"))
    for note in outcome.notes:
        console.print(Text(note), soft_wrap=True)
    if outcome.succeeded and output and output.exists():
        console.print(f"output: {shown(output)}")
    console.print(f"{'logs:  ' if outcome.succeeded else 'Fix the cause and run the job again. Logs:'} {shown(logs)}")


def _show_last_words(ended: Ended, console: Console) -> None:
    for line in filterfalse(CPP.match, ended.traceback or ended.last_lines):
        console.print(Text("    "), printed(line), sep="", soft_wrap=True)


def shown(path: Path) -> Path:
    """Return a path relative to the current folder if it's in that folder.

    Return any other path unchanged.
    """
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
