"""Tests that each process receives its part of the samples in one global order, starting at any step."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples import EXAMPLE
from tests.training import DEADLINE, PROJECT
from trainer import data
from trainer.config import Config, Job
from trainer.data import EXAMPLES, Batch, Sample
from trainer.samples import shards
from trainer.samples.__main__ import main
from trainer.samples.batches import Data, Masked, micro_batches, order, train_batches
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

COUNT = 101
PLAIN = Config(data="shards", global_batch=24, steps=100)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Different samples of the example dataset."""
    return list({data.encode(sample): sample for sample in EXAMPLES[EXAMPLE]()["train"][: 2 * COUNT]}.values())[:COUNT]


@pytest.fixture(scope="module")
def dataset(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("shards")
    shards.write(samples, folder, "train", shard_count=3)
    return Dataset(folder, "train")


@pytest.fixture(scope="module")
def heldout(samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards that contains these samples as held-out data."""
    folder = tmp_path_factory.mktemp("heldout")
    shards.write(samples[:1], folder, "train")
    shards.write(samples, folder, "heldout", shard_count=3)
    return folder


@pytest.fixture(scope="module")
def number(samples: list[Sample]) -> dict[bytes, int]:
    """Map each sample's contents to the sample's index."""
    return {row: i for i, sample in enumerate(samples) for row in rows(data.collate([sample], PLAIN))}


def rows(batch: Batch) -> list[bytes]:
    return [b"".join(array[i].tobytes() for array in batch) for i in range(len(batch.inputs))]


def batches(dataset: Dataset, config: Config, count: int, start: int = 0, rank: int = 0, world: int = 1) -> list[Batch]:
    return list(islice(train_batches(dataset, config, start=start, rank=rank, world_size=world), count))


def evaluation(folder: Path, global_batch: int, rank: int, world: int) -> list[Masked]:
    job = Job(replace(PLAIN, global_batch=global_batch), Storage(), folder)
    return list(Data(job).evaluation(rank, world))


def test_shards_hold_every_sample_once(dataset: Dataset, samples: list[Sample]) -> None:
    assert len(dataset) == COUNT
    assert Counter(map(data.encode, dataset.samples(range(COUNT)))) == Counter(map(data.encode, samples))


def first(count: int, config: Config) -> list[int]:
    indices = order(COUNT, config)
    return [indices[place] for place in range(count)]


def test_the_order_follows_from_the_seed_alone() -> None:
    found = first(150, PLAIN)
    assert first(150, replace(PLAIN, steps=50, learning_rate=1.0, micro_batches=3, global_batch=7)) == found
    assert first(150, replace(PLAIN, seed=1)) != found


def test_an_epoch_has_every_sample_once_and_the_next_another_order() -> None:
    both = first(2 * COUNT, PLAIN)
    one, other = both[:COUNT], both[COUNT:]
    assert sorted(one) == sorted(other) == list(range(COUNT))
    assert one != other != list(range(COUNT))


@pytest.mark.parametrize("size", [24, 250])  # a batch may be larger than the data
def test_a_batch_has_the_samples_next_in_order_each_with_numbers_of_its_own_place(dataset: Dataset, size: int) -> None:
    config, indices = replace(PLAIN, global_batch=size, seed=3), order(COUNT, replace(PLAIN, seed=3))
    for step, batch in enumerate(batches(dataset, config, 2)):
        draws = {place: np.random.default_rng((3, place)) for place in range(step * size, (step + 1) * size)}
        samples = dataset.samples(indices[place] for place in draws)
        seen = [data.augment(*pair, config) for pair in zip(samples, draws.values(), strict=True)]
        assert rows(batch) == rows(data.collate(seen, config))


@pytest.mark.parametrize("global_batch", [24, 25, 7])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_parts_of_all_processes_are_the_global_batch_each_in_its_place(
    dataset: Dataset, world: int, global_batch: int
) -> None:
    config = Config(global_batch=global_batch, steps=100)  # like the example's own runs, with augmentation
    whole = batches(dataset, config, 3)
    parts = [batches(dataset, config, 3, rank=rank, world=world) for rank in range(world)]
    for step, batch in enumerate(whole):
        for rank in range(world):
            assert rows(parts[rank][step]) == rows(batch)[rank::world]


@pytest.mark.parametrize("world", [1, 3])
def test_starting_at_a_step_is_the_same_as_getting_there(dataset: Dataset, world: int) -> None:
    config = Config(global_batch=25, steps=12, warmup=1)
    unbroken = batches(dataset, config, 99, rank=world - 1, world=world)
    assert len(unbroken) == 12
    for start in (1, 7, 11):
        resumed = batches(dataset, config, 99, start=start, rank=world - 1, world=world)
        assert [rows(batch) for batch in resumed] == [rows(batch) for batch in unbroken[start:]]


def test_a_run_that_is_complete_has_no_batch_left(dataset: Dataset) -> None:
    assert batches(dataset, PLAIN, 1, start=100) == []


def test_a_global_batch_smaller_than_the_world_is_refused(dataset: Dataset) -> None:
    with pytest.raises(TrainerError, match="global-batch is 4, but each of the 5 processes needs at least one sample"):
        batches(dataset, replace(PLAIN, global_batch=4), 1, world=5)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 16, 101, 500])
def test_every_held_out_sample_is_seen_exactly_once(
    heldout: Path, number: dict[bytes, int], world: int, size: int
) -> None:
    ranks = [evaluation(heldout, size * world, rank, world) for rank in range(world)]
    parts = [part for rank in ranks for part in rank]
    seen = [row for part in parts for row, real in zip(rows(part.batch), part.mask, strict=True) if real]
    assert sorted(number[row] for row in seen) == list(range(COUNT))
    assert len({len(rank) for rank in ranks}) == 1
    assert {len(part.batch.inputs) for part in parts} == {size}


def test_the_mask_of_a_last_batch_ends_with_what_fills_it_up(heldout: Path) -> None:
    *_, last = evaluation(heldout, 60, rank=0, world=1)
    assert last.mask.tolist() == [1.0] * 41 + [0.0] * 19
    assert last.mask.dtype == np.float32


@pytest.mark.parametrize(("count", "sizes"), [(1, [10]), (3, [4, 3, 3]), (10, [1] * 10), (64, [1] * 10)])
def test_micro_batches_are_nearly_equal_in_order_and_never_empty(
    count: int, sizes: list[int], samples: list[Sample]
) -> None:
    batch = data.collate(samples[:10], PLAIN)
    parts = micro_batches(batch, count)
    assert [len(part.inputs) for part in parts] == sizes
    assert [row for part in parts for row in rows(part)] == rows(batch)


def test_the_example_is_written_for_one_run_and_gone_after_it() -> None:
    with shards.at(EXAMPLE, Storage()) as folder:
        assert len(Dataset(folder, "train")) > len(Dataset(folder, "heldout")) > 0
    assert not folder.exists()


def test_the_shapes_of_a_batch_are_known_from_one_sample(samples: list[Sample], tmp_path: Path) -> None:
    shards.write(samples[:1], tmp_path / "b/set", "heldout", shard_count=1)
    stored = shards.example(replace(PLAIN, data="gs://b/set"), Storage(mount=tmp_path))
    assert rows(stored) == rows(data.collate(samples[:1], PLAIN))
    shown = shards.example(Config(), Storage())
    assert [(array.shape, array.dtype) for array in shown] == [(array.shape, array.dtype) for array in stored]


def test_data_in_a_bucket_is_read_through_the_mount(tmp_path: Path) -> None:
    (tmp_path / "b/set").mkdir(parents=True)
    with shards.at("gs://b/set", Storage(mount=tmp_path)) as folder:
        assert folder == tmp_path / "b/set"


def shard_of_nothing(folder: Path, _: Sequence[Sample]) -> None:
    shards.write([], folder, "train", shard_count=1)


def shard_of_no_bytes(folder: Path, _: Sequence[Sample]) -> None:
    (folder / "train-00000-of-00001.array_record").touch()


def shard_of_something_else(folder: Path, _: Sequence[Sample]) -> None:
    (folder / "train-00000-of-00001.array_record").write_bytes(b"not a record" * 20_000)


def shard_cut_short(folder: Path, samples: Sequence[Sample]) -> None:
    shards.write([*samples] * 10, folder, "train", shard_count=1)
    (path,) = folder.glob("*.array_record")
    path.write_bytes(path.read_bytes()[:-1000])


def shards_of_another_split(folder: Path, samples: Sequence[Sample]) -> None:
    shards.write(samples, folder, "heldout")


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda *_: None, r"there are no train-\*.array_record files; write shards with trainer.samples.shards.write"),
        (shards_of_another_split, r"there are no train-\*.array_record files; write shards .*"),
        (shard_of_nothing, "the train shards contain no samples"),
        (shard_of_no_bytes, "train-00000-of-00001.array_record .*truncated; write the shard again"),
        (shard_of_something_else, "train-00000-of-00001.array_record .*truncated; write the shard again"),
        (shard_cut_short, "train-00000-of-00001.array_record .*truncated; write the shard again"),
    ],
)
def test_unusable_shards_are_one_sentence_that_names_them(
    fill: Callable[[Path, Any], None], words: str, samples: list[Sample], tmp_path: Path
) -> None:
    fill(tmp_path, samples)
    with pytest.raises(TrainerError, match=f"^{tmp_path}.*{words}$"):
        Dataset(tmp_path, "train")


def test_more_shards_than_samples_are_fine(samples: list[Sample], tmp_path: Path) -> None:
    shards.write(samples[:2], tmp_path, "train", shard_count=4)
    assert len(Dataset(tmp_path, "train")) == 2


def test_a_missing_folder_is_named_with_the_flag(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=f"--data {tmp_path}/no: the folder {tmp_path}/no doesn't exist"):
        next(iter(opened(f"{tmp_path}/no")))


def opened(address: str) -> Iterator[Path]:
    with shards.at(address, Storage()) as folder:
        yield folder


def test_the_command_writes_the_example_and_says_what_to_do_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "new/example"
    words = [sys.executable, "-m", "trainer.samples", EXAMPLE, "--to", str(folder)]
    run = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stderr
    counts = [len(Dataset(folder, "train")), len(Dataset(folder, "heldout"))]
    said = f"{counts[0]} train, {counts[1]} heldout samples in {folder}; train on them with --data {folder}\n"
    assert run.stdout == said
    assert len(list(folder.glob("*.array_record"))) == 8
    (folder / "train-00001-of-00004.array_record").unlink()
    words = [sys.executable, "-m", "trainer.samples", "verify", str(folder)]
    run = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 1
    assert run.stderr.endswith(f"{folder}/train-00001-of-00004.array_record is missing; copy it again\n")


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("gs://b/set", "--to gs://b/set isn't a local folder"),
        (__file__, f"--to {__file__} can't be written"),
    ],
)
def test_a_wrong_command_is_one_sentence(to: str, words: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(words)):
        main(EXAMPLE, to)
