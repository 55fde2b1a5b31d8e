"""Faults that a user orders to rehearse them, such as `workerpool1-0:kill@step=20`; each strikes once."""

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
FORMS = "kill, term, preempt, freeze[=SECONDS], late=SECONDS, slow=TIMES, flip, truncate, with a moment exit0, raise"
IMPOSSIBLE = {
    "cut": "all replicas share this machine's network, so none can be cut off; freeze comes nearest",
    "full": "all replicas share this machine's disk, so none can find it full; lay .vertex on a small disk",
}
SENTENCES: Mapping[Action, str] = {  # {} is the number
    "kill": "is killed",
    "term": "gets SIGTERM",
    "preempt": "is preempted",
    "freeze": "is frozen",
    "late": "starts {:g} s late",
    "slow": "is {:g} times slower",
    "flip": "has flipped bytes in its newest checkpoint",
    "truncate": "has only half of a file in its newest checkpoint",
    "exit0": "exits with 0",
    "raise": "raises an exception",
}
IN_PYTHON: Mapping[Action, Signals] = {"exit0": SIGXCPU, "raise": SIGUSR2}  # as injected/sitecustomize.py has them
INJECTED = Path(__file__).with_name("injected")

# `step 20/100`, `Step: 20`, `global_step=20`, and nothing within a path
STEP = re.compile(r"(?<![a-z/@:.-])step\W{1,3}(\d+)", re.IGNORECASE)
FLIPPED = 64  # bytes
DAMAGES = ("flip", "truncate")


@dataclass(frozen=True)
class Fault:
    """One fault: whose it is, what happens, and when; by default at the replica's first start."""

    replica: str
    action: Action
    number: float = math.inf  # seconds of freeze and late, times of slow
    step: int = 0  # the first that some replica's line must have reached
    after: float = 0  # seconds since the replica's first start

    def __str__(self) -> str:
        sentence = SENTENCES[self.action].format(self.number)
        lasts = f" for {self.number:g} s" if self.action == "freeze" and self.number < math.inf else ""
        moment = f" at step {self.step}" if self.step else f" {self.after:g} s after its start" if self.after else ""
        return f"{self.replica} {sentence}{lasts}{moment}"


def parsed(words: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults of --fault; raises FaultError."""
    return tuple(map(_parsed, words))


def _parsed(word: str) -> Fault:
    if match := FORM.fullmatch(word):
        action, number = match["plain"] or match["counted"], float(match["number"] or math.inf)
        return Fault(
            match["replica"], cast(Action, action), number, int(match["step"] or 0), float(match["after"] or 0)
        )
    reason = IMPOSSIBLE.get(word.partition(":")[2].partition("@")[0])
    cure = f"write such as workerpool1-0:kill@step=20 or workerpool1-0:kill@after=12s; there are {FORMS}"
    raise FaultError(f'--fault "{word}": {reason or f"is no fault; {cure}"}')


def armed(job: Job, replicas: Iterable[Replica], faults: Sequence[Fault]) -> tuple[Replica, ...]:
    """Return the replicas of a job, ready for these faults; raises FaultError for one that it cannot have."""
    ready = {replica.name: replica for replica in replicas}
    for fault in faults:
        if fault.replica not in ready:
            raise FaultError(f"--fault: {fault.replica} does not run here; name one of {', '.join(ready)}")
        if fault.action == "preempt" and job.strategy != "SPOT":
            raise FaultError(f"--fault: {job.origin} does not use SPOT, so no machine is preempted; use kill")
        if fault.action in IN_PYTHON:
            ready[fault.replica] = _listening(ready[fault.replica])
    return tuple(ready.values())


def _listening(replica: Replica) -> Replica:
    """Return the replica with a Python that listens to the signals of IN_PYTHON."""
    path = filter(None, (str(INJECTED), replica.env.get("PYTHONPATH")))
    return replace(replica, env={**replica.env, "PYTHONPATH": os.pathsep.join(path)})


def step_of(line: str) -> int:
    """Return the step that a printed line names: the field `step` of JSON, or `step 20` in the text; 0 without one."""
    step, match = payload(line).get("step"), STEP.search(message(line))
    return step if isinstance(step, int) else int(match[1]) if match else 0


def newest_checkpoint(replica: Replica) -> Path | None:
    """Return the largest file of the newest folder in AIP_CHECKPOINT_DIR; None while there is none."""
    place = replica.env.get("AIP_CHECKPOINT_DIR", "").removeprefix("gs://")
    folders = Path(replica.env["GCS_MOUNT"], place).glob("*/") if place else ()
    newest = max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
    files = [path for path in newest.rglob("*") if path.is_file()] if newest else []
    return max(files, key=lambda path: path.stat().st_size, default=None)


def damage(file: Path, action: Action) -> None:
    """Turn over all bits of some bytes in the middle of a file, or end it there."""
    with open(file, "r+b") as content:
        middle = content.seek(file.stat().st_size // 2)
        flipped = bytes(byte ^ 0xFF for byte in content.read(FLIPPED))
        content.seek(middle)
        if action == "flip":
            content.write(flipped)
        else:
            content.truncate()
