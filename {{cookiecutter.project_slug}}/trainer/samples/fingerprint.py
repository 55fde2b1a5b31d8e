"""Fingerprint of a run's samples and model: kept in each checkpoint, compared at resume."""

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from operator import eq
from pathlib import Path
from typing import Any

from trainer.config import Job
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import warn
from trainer.vertex.storage import write_json

FILE = "samples.json"  # beside the commit marker, written by the chief
NUMBERED = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})\.array_record")

# Name of a file -> its bytes, its records, checksum of the first and the last, that of all its bytes if one was kept.
Shards = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fingerprint:
    """Flags and shards of a run. Nobody reads all bytes of a shard."""

    global_batch: int
    seed: int
    train: Shards
    heldout: Shards
    model: Mapping[str, str] = field(default_factory=dict)  # its own flags

    @property
    def digest(self) -> list[int]:
        """Samples, shards and a checksum, of the training and of the held-out shards: alike where the data is."""
        splits = [*self.train.items()], [*self.heldout.items()]
        tables = (
            (sum(records for _, (_, records, *_) in split), len(split), zlib.crc32(json.dumps(split).encode()))
            for split in splits
        )
        return [*chain.from_iterable(tables)]

    @property
    def flags(self) -> dict[str, Any]:
        return {"global_batch": self.global_batch, "seed": self.seed, **self.model}

    def keep(self, folder: Path) -> None:
        """Write it into the folder of a checkpoint that is still to be committed."""
        write_json(folder / FILE, {"folder": folder.name} | asdict(self))


def require_unchanged(present: Fingerprint, folder: Path | None, *, anyway: bool, is_chief: bool) -> None:
    """Compare the data with the names of its shards, and with what a checkpoint in `folder` was trained on.

    A checkpoint without a fingerprint, from an older version, is compared with nothing. Every process must call it.

    Raises:
        TrainerError: they differ, unless the run is to go on `anyway`: then the chief warns.
    """
    findings = [*_unfinished(present.train), *_unfinished(present.heldout)]
    cure = "copy or write one whole set, or train on these shards: --anyway"
    if folder and (changes := [*_changes(present, folder)]):
        findings = [*changes, *findings]
        cure = f"bring back what {folder.name} was trained with, or go on all the same: --anyway"
    if findings and not anyway:
        raise TrainerError(f"{'; '.join(findings)}: {cure}")
    if findings and is_chief:
        warn(f"{'; '.join(findings)}: going on, by --anyway")


def require_same(job: Job, digests: Sequence[Sequence[int]]) -> None:
    """Compare the data that processes see, by its digests, with the chief's.

    Raises:
        TrainerError: they differ, unless the run is to go on anyway: then the chief warns.
    """
    chief, names = digests[0], [job.cluster.process(rank, len(digests)) for rank in range(len(digests))]
    findings = []
    for name, own in zip(names, digests, strict=True):
        for split, part in {"training": slice(3), "held-out": slice(3, 6)}.items():
            if own[part] != chief[part]:
                theirs, ours = ("{} in {} shards, checksum {:08x}".format(*each[part]) for each in (chief, own))
                findings.append(f"{name} sees other {split} samples than {names[0]}: {ours}; there {theirs}")
    if findings:
        fault = f"{findings[0]}{_more(findings)}"
        job.object_to(fault, TrainerError(f"{fault}: give all replicas the same data, or go on with --anyway"))


def _unfinished(shards: Shards) -> Iterator[str]:
    """Yield a phrase for two sets of a split, for shards that others' names promise, and for those without records."""
    present: dict[tuple[str, str], list[str]] = {}
    for match in filter(None, map(NUMBERED.fullmatch, shards)):
        present.setdefault((match[1], match[3]), []).append(match[2])
    for (split, one), (other_split, other) in pairwise(sorted(present)):
        if split == other_split:
            yield f"{split} has shards of two sets, -of-{one} and -of-{other}"
    for (split, total), numbers in present.items():
        first = int(int(total) in map(int, numbers))  # some count from 1
        missing = sorted({*range(first, first + int(total))} - {*map(int, numbers)})
        if missing:
            name = f"{split}-{missing[0]:0{len(numbers[0])}}-of-{total}.array_record"
            yield f"{name} is missing{_more(missing)}"
    empty = [name for name, (_, records, *_) in shards.items() if not records]
    if empty and sum(records for _, records, *_ in shards.values()) >= len(shards):  # there were enough for all shards
        yield f"{empty[0]} holds no record{_more(empty)}"


def _changes(present: Fingerprint, folder: Path) -> Iterator[str]:
    """Yield a phrase for a name, each flag, and each kind of shards, that is not as it was for the checkpoint."""
    try:
        past = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return
    if past.get("folder", folder.name) != folder.name:
        yield f"{folder.name} is {past['folder']} under another name"
    before = past | past.get("model", {})
    for name, now in present.flags.items():
        if before.get(name, now) != now:
            yield f"--{name.replace('_', '-')} was {before[name]}, and is {now}"
    had = {name: tuple(size) for name, size in (past["train"] | past["heldout"]).items()}
    has = {**present.train, **present.heldout}
    # An older version kept less of each, and checksums of whole shards may have been added.
    alike = {name for name in had.keys() & has.keys() if all(map(eq, had[name], has[name]))}
    if changed := sorted((had.keys() | has.keys()) - alike):
        yield f"{changed[0]} {_change(had.get(changed[0]), has.get(changed[0]))}{_more(changed)}"


def _change(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> str:
    """`had 30 records in 1200 bytes, and has 28 in 1100`"""
    if not before or not now:
        return "is gone" if before else "is new"
    if before[:2] == now[:2]:
        return "has other records than it had"
    return f"had {before[1]} records in {before[0]} bytes, and has {now[1]} in {now[0]}"


def _more(found: list[str] | list[int]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
