"""Damage to shards and checkpoints is told, or changes nothing."""

import random
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.samples import EXAMPLE
from trainer import data
from trainer.checkpoints import commit_marker
from trainer.data import EXAMPLES, Sample
from trainer.samples import shards
from trainer.samples.__main__ import verify
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError

COUNT = 101


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Some of the example's, no two alike."""
    return list({data.encode(sample): sample for sample in EXAMPLES[EXAMPLE]()["train"][: 2 * COUNT]}.values())[:COUNT]


@pytest.fixture
def whole(samples: list[Sample], tmp_path: Path) -> Path:
    shards.write(samples, tmp_path, "train", shard_count=3)
    shards.write(samples[:5], tmp_path, "heldout", shard_count=1)
    return tmp_path


def flip(file: Path, places: Iterable[int]) -> None:
    """Invert these bytes."""
    content = bytearray(file.read_bytes())
    for place in places:
        content[place] ^= 255
    file.write_bytes(content)


def found(folder: Path) -> list[str]:
    """The sentences about a folder that is damaged."""
    with pytest.raises(TrainerError) as told:
        verify(folder)
    return str(told.value).splitlines()


def test_shards_are_compared_with_what_was_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify(whole)
    assert capsys.readouterr().out == f"4 shards, {COUNT + 5} samples: unchanged since they were written\n"
    one, other, gone = sorted(whole.glob("train-*.array_record"))
    flip(one, [120])
    flip(other, [-1])  # padding
    gone.unlink()
    changed = "differs from the shard that was written; copy the shard again, or write the dataset again"
    assert found(whole) == [f"{one} {changed}", f"{other} {changed}", f"{gone} is missing; copy it again"]


def test_shards_without_checksums_are_read(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole / "train-checksums.json").unlink()
    verify(whole)
    assert capsys.readouterr().out == f"4 shards, {COUNT + 5} samples: readable, but 3 have no checksum\n"
    one, other, gone = sorted(whole.glob("train-*.array_record"))
    gone.unlink()
    assert found(whole) == [
        f"{gone.name} is missing; copy or write one complete set of shards, or train on these shards with --anyway"
    ]
    one.write_bytes(one.read_bytes()[:-1000])
    flip(other, range(120, 128))  # behind the headers of the file and of its first chunk
    cut, damaged = found(whole)
    assert cut == f"{one} isn't an ArrayRecord file, or is truncated; write the shard again"
    assert re.match(rf"{other}: record \d+ is damaged \(", damaged)


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"train-00000-of-00003.array_record": null}'])
def test_checksums_that_cannot_be_read_are_one_sentence(content: str, whole: Path) -> None:
    (whole / "train-checksums.json").write_text(content)
    (sentence,) = found(whole)
    assert re.fullmatch(
        f"{whole}/train-checksums.json can't be read (.+); copy the file again, or remove the file", sentence
    )


def test_a_bit_that_flips_is_told_or_changes_no_sample(samples: list[Sample], tmp_path: Path) -> None:
    shards.write(samples[:9], tmp_path, "train", shard_count=1)
    (path,) = tmp_path.glob("*.array_record")
    whole = path.read_bytes()
    places = [place for place, byte in enumerate(whole) if byte]  # the rest is padding
    random = np.random.default_rng(0)
    for place in random.choice(places, 100, replace=False):
        content = bytearray(whole)
        content[place] ^= 1 << random.integers(8)
        path.write_bytes(content)
        told = ""
        try:
            seen = Dataset(tmp_path, "train").samples(range(9))
        except TrainerError as error:
            told = str(error)
        if told:
            assert re.fullmatch(f"{path}(: record [0-8] is damaged| isn't an ArrayRecord file).*", told), place
        else:
            assert [*map(data.encode, seen)] == [*map(data.encode, samples[:9])], place


def cut(content: bytearray, dice: random.Random) -> None:
    del content[dice.randrange(len(content)) :]


def lose(content: bytearray, dice: random.Random) -> None:
    begin = dice.randrange(len(content))
    del content[begin : begin + dice.randint(1, 100)]


def clear(content: bytearray, dice: random.Random) -> None:
    begin = dice.randrange(len(content))
    end = min(begin + dice.randint(1, 4096), len(content))
    content[begin:end] = bytes(end - begin)


def flip_one(content: bytearray, dice: random.Random) -> None:
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def swap(content: bytearray, dice: random.Random) -> None:
    size = dice.randint(1, max(len(content) // 2, 1))
    if 2 * size > len(content):
        return
    first = dice.randint(0, len(content) - 2 * size)
    other = dice.randint(first + size, len(content) - size)
    content[first : first + size], content[other : other + size] = (
        content[other : other + size],
        content[first : first + size],
    )


def add(content: bytearray, dice: random.Random) -> None:
    begin = dice.randrange(len(content))
    content[begin:begin] = dice.randbytes(dice.randint(1, 100))


def hurt(folder: Path, dice: random.Random) -> str:
    """Damage a file; returns what was done, empty if no byte has changed."""
    path = dice.choice(sorted(folder.iterdir()))
    damage: Callable[[bytearray, random.Random], None] = dice.choice([cut, lose, clear, flip_one, swap, add])
    content = bytearray(whole := path.read_bytes())
    damage(content, dice)
    path.write_bytes(content)
    return "" if content == whole else f"{damage.__name__} {path.name}"


def fault(look: Callable[[], object]) -> str:
    """Return the sentence of the TrainerError that it raises; empty if none."""
    try:
        look()
    except TrainerError as error:
        return str(error)
    return ""


@pytest.mark.proof
def test_no_damage_of_shards_is_silent(
    samples: list[Sample], whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, dice = [*map(data.encode, Dataset(whole, "train").samples(range(COUNT)))], random.Random(0)
    for number in range(150):
        folder = tmp_path_factory.mktemp("damaged")
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        done = hurt(folder, dice)
        assert bool(fault(lambda: verify(folder))) == bool(done), f"{number}: {done}"  # noqa: B023
        seen: list[bytes] = []
        told = fault(lambda: seen.extend(map(data.encode, Dataset(folder, "train").samples(range(COUNT)))))  # noqa: B023
        assert told or seen == expected, f"{number}: {done}"


@pytest.mark.proof
def test_no_damage_of_a_checkpoint_is_silent(tmp_path: Path) -> None:
    dice = random.Random(0)
    for number in range(150):
        folder = commit_marker.numbered(tmp_path / str(number), 50)
        commit_marker.create_empty(folder)
        whole = {name: dice.randbytes(size) for name, size in (("weights", 9000), ("moments", 5000), ("one", 1))}
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        commit_marker.commit(folder)
        done = hurt(folder, dice)
        told = commit_marker.why_incomplete(folder) or commit_marker.why_corrupt(folder)
        assert told or {name: (folder / name).read_bytes() for name in whole} == whole, f"{number}: {done}"


def test_a_record_that_decode_fails_for_is_named(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "decode", {}.__getitem__)  # as if the team's code looked for what isn't there
    with pytest.raises(KeyError):
        Dataset(whole, "train").samples([5])
    said = f"{whole}/train-00000-of-00003.array_record: decode() in trainer/data.py fails for record 5"
    assert said in capsys.readouterr().out
