"""Fingerprints a run's samples and model.

Checkpoints store the fingerprint, and a resumed run compares its own fingerprint with the stored one.
"""

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
from trainer.flags import flag
from trainer.vertex.errors import TrainerError
from trainer.vertex.log import warn
from trainer.vertex.storage import write_json

FILE = "samples.json"  # next to the commit marker; the chief writes it
NUMBERED = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})\.array_record")

# File name -> its bytes, its records, a checksum of the first and last record, and the stored checksum, if any.
Shards = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fingerprint:
    """The flags and shards that determine a run.

    Computing a fingerprint requires reading only a small part of each shard.
    """

    global_batch: int
    seed: int
    train: Shards
    heldout: Shards
    model: Mapping[str, str] = field(default_factory=dict)  # the model's own flags

    @property
    def digest(self) -> list[int]:
        """The sample count, shard count, and checksum of the training data, followed by those of the held-out data."""
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
        """Write the fingerprint to a checkpoint's folder before the folder is committed."""
        write_json(folder / FILE, {"folder": folder.name} | asdict(self))


def model_flags(folder: Path) -> str:
    """Return the model's flags at the time of a checkpoint, such as `--size tiny`, or "" if unknown."""
    return " ".join(f"{flag(name)} {value}" for name, value in _stored(folder).get("model", {}).items())


def require_unchanged(present: Fingerprint, folder: Path | None, *, anyway: bool, is_chief: bool) -> None:
    """Verify that the set of shards is complete and that the run matches the checkpoint in `folder`.

    Checkpoints from older versions don't contain a fingerprint, so they aren't compared. Every process must call this
    function.

    Raises:
        TrainerError: If shards are missing, or if the data or flags differ. If `anyway` is set, the chief prints a
            warning instead.
    """
    findings = [*_unfinished(present.train), *_unfinished(present.heldout)]
    cure = "copy or write one complete set of shards, or train on these shards with --anyway"
    if folder and (changes := [*_changes(present, folder)]):
        findings = [*changes, *findings]
        cure = f"restore the data and flags of {folder.name}, or continue with --anyway"
    if findings and not anyway:
        raise TrainerError(f"{'; '.join(findings)}; {cure}")
    if findings and is_chief:
        warn(f"{'; '.join(findings)}; continuing because of --anyway")


def require_same(job: Job, digests: Sequence[Sequence[int]]) -> None:
    """Compare the data digests of all processes with the chief's.

    Raises:
        TrainerError: If the digests differ. If --anyway is set, the chief prints a warning instead.
    """
    chief, names = digests[0], [job.cluster.process(rank, len(digests)) for rank in range(len(digests))]
    findings = []
    for name, own in zip(names, digests, strict=True):
        for split, part in {"training": slice(3), "held-out": slice(3, 6)}.items():
            if own[part] != chief[part]:
                theirs, ours = ("{} in {} shards, checksum {:08x}".format(*each[part]) for each in (chief, own))
                findings.append(f"{name} and {names[0]} see different {split} samples: {ours} versus {theirs}")
    if findings:
        fault = f"{findings[0]}{_more(findings)}"
        job.object_to(fault, TrainerError(f"{fault}; give all replicas the same data, or continue with --anyway"))


def _unfinished(shards: Shards) -> Iterator[str]:
    """Yield a message for each problem with the shards.

    Possible problems are shards from two sets in one split, missing shards, and empty shards.
    """
    present: dict[tuple[str, str], list[str]] = {}
    for match in filter(None, map(NUMBERED.fullmatch, shards)):
        present.setdefault((match[1], match[3]), []).append(match[2])
    for (split, one), (other_split, other) in pairwise(sorted(present)):
        if split == other_split:
            yield f"{split} has shards of two sets, -of-{one} and -of-{other}"
    for (split, total), numbers in present.items():
        first = int(int(total) in map(int, numbers))  # some programs count from 1
        missing = sorted({*range(first, first + int(total))} - {*map(int, numbers)})
        if missing:
            name = f"{split}-{missing[0]:0{len(numbers[0])}}-of-{total}.array_record"
            yield f"{name} is missing{_more(missing)}"
    empty = [name for name, (_, records, *_) in shards.items() if not records]
    if empty and sum(records for _, records, *_ in shards.values()) >= len(shards):  # enough for all shards
        yield f"{empty[0]} contains no records{_more(empty)}"


def _stored(folder: Path) -> dict[str, Any]:
    """Return the fingerprint that a checkpoint contains, or {} if an older version saved the checkpoint."""
    try:
        stored: dict[str, Any] = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return {}
    return stored


def _changes(present: Fingerprint, folder: Path) -> Iterator[str]:
    """Yield a message for each folder name, flag, or shard that differs from the checkpoint's."""
    if not (past := _stored(folder)):
        return
    if past.get("folder", folder.name) != folder.name:
        yield f"{folder.name} is {past['folder']} under a different name"
    before = past | past.get("model", {})
    for name, now in present.flags.items():
        if before.get(name, now) != now:
            yield f"{flag(name)} was {before[name]} and is now {now}"
    had = {name: tuple(size) for name, size in (past["train"] | past["heldout"]).items()}
    has = {**present.train, **present.heldout}
    # An older version stored fewer values per shard, and checksums of whole shards may have been added since.
    alike = {name for name in had.keys() & has.keys() if all(map(eq, had[name], has[name]))}
    if changed := sorted((had.keys() | has.keys()) - alike):
        yield f"{changed[0]} {_change(had.get(changed[0]), has.get(changed[0]))}{_more(changed)}"


def _change(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> str:
    """Describe a shard's change. Example: `had 30 records in 1200 bytes, and now has 28 in 1100`."""
    if not before or not now:
        return "is gone" if before else "is new"
    if before[:2] == now[:2]:
        return "now has different records"
    return f"had {before[1]} records in {before[0]} bytes, and now has {now[1]} in {now[0]}"


def _more(found: list[str] | list[int]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
