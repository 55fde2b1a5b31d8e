"""Simulates faults that a user requests, such as `workerpool1-0:kill@step=20`. Each requested fault occurs once."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGUSR2, SIGXCPU, Signals
from typing import Literal, cast

from vertex_launch.errors import FaultError
from vertex_launch.job.contract import Replica
from vertex_launch.job.spec import Job
from vertex_launch.local.running.lines import message, payload

Action = Literal["kill", "term", "preempt", "freeze", "late", "slow", "flip", "truncate", "exit0", "raise"]

NUMBER = r"\d+(?:\.\d+)?"
FORM = re.compile(
    r"(?P<replica>[\w-]+):"
    rf"((?P<plain>kill|term|preempt|freeze|flip|truncate|(exit0|raise)(?=@))|(?P<counted>freeze|late|slow)=(?P<number>{NUMBER}))"
    rf"(@(step=(?P<step>\d+)|after=(?P<after>{NUMBER})s))?"
)
FORMS = "kill, term, preempt, freeze[=SECONDS], late=SECONDS, slow=TIMES, flip, truncate, exit0@MOMENT, raise@MOMENT"
IMPOSSIBLE = {
    "cut": "this fault can't be simulated because all replicas share this machine's network; use freeze instead",
    "full": "this fault can't be simulated because all replicas share this machine's disk; put .vertex on a small disk",
}
SENTENCES: Mapping[Action, str] = {  # {} is the number
    "kill": "is killed",
    "term": "receives SIGTERM",
    "preempt": "is preempted",
    "freeze": "is frozen",
    "late": "starts {:g} s late",
    "slow": "is {:g} times slower",
    "flip": "has flipped bytes in its latest checkpoint",
    "truncate": "has a truncated file in its latest checkpoint",
    "exit0": "exits with code 0",
    "raise": "raises an exception",
}
IN_PYTHON: Mapping[Action, Signals] = {"exit0": SIGXCPU, "raise": SIGUSR2}  # the signals of injected/sitecustomize.py
INJECTED = Path(__file__).with_name("injected")

# Matches `step 20/100`, `Step: 20`, and `global_step=20`, but not a part of a path.
STEP = re.compile(r"(?<![a-z/@:.-])step\W{1,3}(\d+)", re.IGNORECASE)
FLIPPED = 64  # bytes
DAMAGES = ("flip", "truncate")


@dataclass(frozen=True)
class Fault:
    """One simulated fault: its replica, action, and time.

    By default, a fault occurs when its replica first starts.
    """

    replica: str
    action: Action
    number: float = math.inf  # seconds for freeze and late, a factor for slow
    step: int = 0  # the step that the output of any replica must have reached
    after: float = 0  # seconds since the replica's first start

    def __str__(self) -> str:
        sentence = SENTENCES[self.action].format(self.number)
        lasts = f" for {self.number:g} s" if self.action == "freeze" and self.number < math.inf else ""
        moment = f" at step {self.step}" if self.step else f" {self.after:g} s after its start" if self.after else ""
        return f"{self.replica} {sentence}{lasts}{moment}"


def parsed(words: Iterable[str]) -> tuple[Fault, ...]:
    """Parse the values of the `--fault` options. Raises FaultError if a value doesn't specify a valid fault."""
    return tuple(map(_parsed, words))


def _parsed(word: str) -> Fault:
    if match := FORM.fullmatch(word):
        action, number = match["plain"] or match["counted"], float(match["number"] or math.inf)
        return Fault(
            match["replica"], cast(Action, action), number, int(match["step"] or 0), float(match["after"] or 0)
        )
    reason = IMPOSSIBLE.get(word.partition(":")[2].partition("@")[0])
    cure = f"use a form such as workerpool1-0:kill@step=20 or workerpool1-0:kill@after=12s. Valid faults are {FORMS}"
    raise FaultError(f'--fault "{word}": {reason or f"this fault is unknown; {cure}"}')


def armed(job: Job, replicas: Iterable[Replica], faults: Sequence[Fault]) -> tuple[Replica, ...]:
    """Prepare a job's replicas for these simulated faults, and return the replicas.

    Raises FaultError if a fault can't occur in this job.
    """
    ready = {replica.name: replica for replica in replicas}
    for fault in faults:
        if fault.replica not in ready:
            raise FaultError(f"--fault: {fault.replica} doesn't run on this machine; use one of {', '.join(ready)}")
        if fault.action == "preempt" and job.strategy != "SPOT":
            raise FaultError(f"--fault: {job.origin} doesn't use SPOT, so no machine can be preempted; use kill")
        if fault.action in IN_PYTHON:
            ready[fault.replica] = _listening(ready[fault.replica])
    return tuple(ready.values())


def _listening(replica: Replica) -> Replica:
    """Return a copy of the replica whose PYTHONPATH makes Python handle the signals in IN_PYTHON."""
    path = filter(None, (str(INJECTED), replica.env.get("PYTHONPATH")))
    return replace(replica, env={**replica.env, "PYTHONPATH": os.pathsep.join(path)})


def step_of(line: str) -> int:
    """Return the step that a printed line reports in the `step` JSON field or in text such as `step 20`.

    Return 0 if the line doesn't contain a step.
    """
    step, match = payload(line).get("step"), STEP.search(message(line))
    return step if isinstance(step, int) else int(match[1]) if match else 0


def newest_checkpoint(replica: Replica) -> Path | None:
    """Return the largest file in the newest folder in AIP_CHECKPOINT_DIR, or None if there is none."""
    place = replica.env.get("AIP_CHECKPOINT_DIR", "").removeprefix("gs://")
    folders = Path(replica.env["GCS_MOUNT"], place).glob("*/") if place else ()
    newest = max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
    files = [path for path in newest.rglob("*") if path.is_file()] if newest else []
    return max(files, key=lambda path: path.stat().st_size, default=None)


def damage(file: Path, action: Action) -> None:
    """Invert all bits of some bytes in the middle of a file, or truncate the file in the middle."""
    with open(file, "r+b") as content:
        middle = content.seek(file.stat().st_size // 2)
        flipped = bytes(byte ^ 0xFF for byte in content.read(FLIPPED))
        content.seek(middle)
        if action == "flip":
            content.write(flipped)
        else:
            content.truncate()
