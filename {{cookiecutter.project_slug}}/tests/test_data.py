import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training import DEADLINE, PROJECT
from trainer import data
from trainer.config import Config
from trainer.data import NO_LABEL, Batch, Dataset, Sample, heldout_batches, micro_batches, train_batches
from trainer.errors import TrainerError
from trainer.storage import Storage


def run(**fields: Any) -> Config:
    """A run on samples whose labels are their numbers."""
    return Config(classes=101, **fields)


PLAIN = run(global_batch=24, steps=100, noise=0.0)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example's shards."""
    folder = tmp_path_factory.mktemp("digits")
    data.write_example("digits", folder)
    return folder


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """101 samples, each labelled with a number of its own, so that an order can be read off."""
    folder = tmp_path_factory.mktemp("numbered")
    samples = [Sample(np.full((2, 3, 1), label, np.uint8), label) for label in range(101)]
    data.write(samples, folder, "train", shard_count=3)
    return Dataset(folder, "train")


def batches(dataset: Dataset, config: Config, count: int, start: int = 0, rank: int = 0, world: int = 1) -> list[Batch]:
    return list(islice(train_batches(dataset, config, start=start, rank=rank, world_size=world), count))


def labels(dataset: Dataset, config: Config, count: int, **place: int) -> list[list[int]]:
    return [batch.labels.tolist() for batch in batches(dataset, config, count, **place)]


def same(one: Batch, other: Batch) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


def test_the_shards_hold_every_digit_once(digits: Path) -> None:
    splits = [Dataset(digits, "train"), Dataset(digits, "heldout")]
    assert [len(split) for split in splits] == [1437, 360]
    stored = Counter(data.encode(split[i]) for split in splits for i in range(len(split)))
    made = Counter(data.encode(sample) for samples in data.digits().values() for sample in samples)
    assert stored == made


def test_no_held_out_digit_is_trained_on(digits: Path) -> None:
    train, heldout = (
        {data.encode(split[i]) for i in range(len(split))}
        for split in (Dataset(digits, "train"), Dataset(digits, "heldout"))
    )
    assert train.isdisjoint(heldout)


def test_the_classes_are_roughly_balanced(digits: Path) -> None:
    for dataset in (Dataset(digits, "train"), Dataset(digits, "heldout")):
        shares = np.bincount(dataset.batch(range(len(dataset))).labels) / len(dataset)
        assert len(shares) == 10
        assert 0.05 < shares.min() <= shares.max() < 0.15


def test_a_batch_is_float_images_between_0_and_1_and_whole_labels(digits: Path) -> None:
    (batch,) = batches(Dataset(digits, "train"), PLAIN, 1)
    assert (batch.images.shape, str(batch.images.dtype)) == ((24, 8, 8, 1), "float32")
    assert (batch.labels.shape, str(batch.labels.dtype)) == ((24,), "int64")
    assert (batch.images.min(), batch.images.max()) == (0, 1)


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 8, 1), (5, 7, 3), (300, 2, 4)])
def test_a_sample_is_read_as_it_was_written(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    read = data.decode(data.encode(Sample(image, 12345)))
    assert read.label == 12345
    assert np.array_equal(read.image, image)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((8, 8), np.uint8), r"uint8 of shape \(8, 8\)"),
        (np.zeros((8, 8, 1), np.float32), r"float32 of shape \(8, 8, 1\)"),
        (np.zeros((1, 8, 8, 1), np.uint8), r"uint8 of shape \(1, 8, 8, 1\)"),
    ],
)
def test_an_image_of_another_type_or_shape_is_refused_when_it_is_written(image: Any, words: str) -> None:
    with pytest.raises(TrainerError, match=rf"{words}; must be uint8, \(height, width, channels\)"):
        data.encode(Sample(image, 0))


def test_the_order_follows_from_the_seed_alone(numbered: Dataset, digits: Path) -> None:
    order = labels(numbered, PLAIN, 6)
    assert labels(numbered, run(global_batch=24, steps=50, learning_rate=1.0, micro_batches=3), 6) == order
    assert labels(numbered, run(global_batch=24, steps=100, seed=1), 6) != order


def test_an_epoch_has_every_sample_once_and_the_next_another_order(numbered: Dataset) -> None:
    config = run(global_batch=101, steps=100)
    first, second = labels(numbered, config, 2)
    assert sorted(first) == sorted(second) == list(range(101))
    assert first != second != list(range(101))


def test_a_batch_larger_than_the_data_goes_round(numbered: Dataset) -> None:
    (only,) = labels(numbered, run(global_batch=250, steps=100), 1)
    assert set(Counter(only).values()) == {2, 3}


@pytest.mark.parametrize("global_batch", [24, 25, 7])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_parts_of_all_processes_are_the_global_batch_each_in_its_place(
    numbered: Dataset, world: int, global_batch: int
) -> None:
    config = run(global_batch=global_batch, steps=100)
    whole = batches(numbered, config, 3)
    parts = [batches(numbered, config, 3, rank=rank, world=world) for rank in range(world)]
    for step, batch in enumerate(whole):
        for rank in range(world):
            assert same(parts[rank][step], Batch(batch.images[rank::world], batch.labels[rank::world]))


@pytest.mark.parametrize("world", [1, 3])
def test_starting_at_a_step_is_the_same_as_getting_there(numbered: Dataset, world: int) -> None:
    config = run(global_batch=25, steps=12, warmup=1)
    unbroken = batches(numbered, config, 99, rank=world - 1, world=world)
    assert len(unbroken) == 12
    for start in (1, 7, 11):
        resumed = batches(numbered, config, 99, start=start, rank=world - 1, world=world)
        assert len(resumed) == 12 - start
        assert all(same(*pair) for pair in zip(resumed, unbroken[start:], strict=True))


def test_a_run_that_is_complete_has_no_batch_left(numbered: Dataset) -> None:
    assert batches(numbered, PLAIN, 1, start=100) == []


def test_the_noise_is_new_in_each_epoch_and_follows_from_the_seed(numbered: Dataset) -> None:
    config = run(global_batch=101, steps=100, noise=0.5)
    first, second = (batch.images[np.argsort(batch.labels)] for batch in batches(numbered, config, 2))
    assert not np.array_equal(first, second)
    assert same(batches(numbered, config, 1)[0], batches(numbered, config, 1)[0])
    other = batches(numbered, run(global_batch=101, steps=100, noise=0.5, seed=1), 1)[0]
    assert not np.array_equal(first, other.images[np.argsort(other.labels)])


def test_noise_has_the_deviation_asked_for_and_leaves_labels_alone(numbered: Dataset) -> None:
    config = run(global_batch=1000, steps=100, noise=0.25)
    noisy, plain = batches(numbered, config, 1)[0], batches(numbered, run(global_batch=1000, noise=0.0), 1)[0]
    assert (noisy.images - plain.images).std() == pytest.approx(0.25, rel=0.05)
    assert np.array_equal(noisy.labels, plain.labels)
    assert noisy.images.dtype == np.float32


def test_without_noise_nothing_is_drawn(numbered: Dataset) -> None:
    batch, places = numbered.batch(range(3)), iter(range(3))
    assert data.augment(batch, places, seed=0, noise=0.0) is batch
    assert list(places) == [0, 1, 2]


def test_unless_told_the_digits_have_noise_and_data_of_one_s_own_has_none(numbered: Dataset) -> None:
    (digits,), (own,), (tenth,), (plain,) = (
        batches(numbered, run(global_batch=24, **flags), 1)
        for flags in ({}, {"data": "shards"}, {"data": "shards", "noise": 0.1}, {"noise": 0.0})
    )
    assert same(own, plain)
    assert same(digits, tenth)
    assert not same(digits, plain)


def test_a_global_batch_smaller_than_the_world_is_refused(numbered: Dataset) -> None:
    with pytest.raises(TrainerError, match=r"--global-batch is 4, must be at least one sample per process \(5\)"):
        batches(numbered, run(global_batch=4), 1, world=5)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [1, 16, 101, 500])
def test_every_held_out_sample_is_seen_exactly_once(numbered: Dataset, world: int, batch: int) -> None:
    config = run(global_batch=batch * world)
    ranks = [list(heldout_batches(numbered, config, rank=rank, world_size=world)) for rank in range(world)]
    seen = Counter(label for rank in ranks for part in rank for label in part.labels.tolist())
    del seen[NO_LABEL]
    assert seen == Counter(range(101))
    assert len({len(rank) for rank in ranks}) == 1
    assert {part.labels.shape for rank in ranks for part in rank} == {(batch,)}


def test_a_label_that_is_no_class_is_named(numbered: Dataset) -> None:
    with pytest.raises(TrainerError, match=r"the data has the label \d+, must be from 0 to below --classes \(10\)"):
        batches(numbered, Config(), 1)
    with pytest.raises(TrainerError, match=r"the data has the label \d\d, must be"):
        list(heldout_batches(numbered, Config(), rank=0, world_size=1))


def test_what_fills_up_a_held_out_batch_is_blank(numbered: Dataset) -> None:
    *_, last = heldout_batches(numbered, run(global_batch=60), rank=0, world_size=1)
    assert Counter((last.labels == NO_LABEL).tolist()) == {False: 41, True: 19}
    assert last.images.shape == (60, 2, 3, 1)
    assert not last.images[last.labels == NO_LABEL].any()


def test_the_held_out_images_have_no_noise(digits: Path) -> None:
    dataset = Dataset(digits, "heldout")
    first = next(heldout_batches(dataset, run(global_batch=10), rank=0, world_size=1))
    assert same(first, dataset.batch(range(10)))


@pytest.mark.parametrize(("count", "sizes"), [(1, [10]), (3, [4, 3, 3]), (10, [1] * 10), (64, [1] * 10)])
def test_micro_batches_are_nearly_equal_in_order_and_never_empty(count: int, sizes: list[int]) -> None:
    batch = Batch(np.arange(40, dtype=np.float32).reshape(10, 2, 2, 1), np.arange(10))
    parts = micro_batches(batch, count)
    assert [len(part.labels) for part in parts] == sizes
    joined = Batch(*(np.concatenate([part[i] for part in parts]) for i in (0, 1)))
    assert same(joined, batch)


def test_the_example_is_written_for_one_run_and_gone_after_it() -> None:
    with data.shards("digits", Storage()) as folder:
        assert len(Dataset(folder, "train")) == 1437
    assert not folder.exists()


def test_data_in_a_bucket_is_read_through_the_mount(tmp_path: Path) -> None:
    (tmp_path / "b/set").mkdir(parents=True)
    with data.shards("gs://b/set", Storage(mount=tmp_path)) as folder:
        assert folder == tmp_path / "b/set"


def shard_of_nothing(folder: Path) -> None:
    data.write([], folder, "train", shard_count=1)


def shard_of_no_bytes(folder: Path) -> None:
    (folder / "train-00000-of-00001.array_record").touch()


def shard_of_something_else(folder: Path) -> None:
    (folder / "train-00000-of-00001.array_record").write_bytes(b"not a record" * 20_000)


def shard_cut_short(folder: Path) -> None:
    data.write(data.digits()["train"], folder, "train", shard_count=1)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1000])


def shards_of_another_split(folder: Path) -> None:
    data.write(data.digits()["heldout"], folder, "heldout")


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda _: None, r"no file train-\*.array_record; write one with trainer.data.write"),
        (shards_of_another_split, r"no file train-\*.array_record; write one with trainer.data.write"),
        (shard_of_nothing, "the train shards hold no sample"),
        (shard_of_no_bytes, "train-00000-of-00001.array_record: .*cut short; write it again"),
        (shard_of_something_else, "train-00000-of-00001.array_record: .*cut short; write it again"),
        (shard_cut_short, "train-00000-of-00001.array_record: .*cut short; write it again"),
    ],
)
def test_unusable_shards_are_one_sentence_that_names_them(fill: Any, words: str, tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(TrainerError, match=f"^{tmp_path}.*{words}$"):
        Dataset(tmp_path, "train")


def test_more_shards_than_samples_are_fine(tmp_path: Path) -> None:
    data.write(data.digits()["train"][:2], tmp_path, "train", shard_count=4)
    assert len(Dataset(tmp_path, "train")) == 2


def test_a_missing_folder_is_named_with_the_flag(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=f"--data {tmp_path}/no: there is no folder {tmp_path}/no"):
        next(iter(opened(f"{tmp_path}/no")))


def opened(address: str) -> Iterator[Path]:
    with data.shards(address, Storage()) as folder:
        yield folder


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "trainer.data", *arguments]
    return subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE)


def test_the_command_writes_the_example_and_says_what_to_do_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "new/digits"
    run = command("digits", "--to", str(folder))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"1437 train, 360 heldout samples in {folder}; train on them with --data {folder}\n"
    assert len(list(folder.iterdir())) == 8


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("gs://b/digits", "--to gs://b/digits: must be a folder of this machine"),
        (__file__, f"--to {__file__}: cannot be written"),
    ],
)
def test_a_wrong_command_is_no_traceback(to: str, words: str) -> None:
    run = command("digits", "--to", to)
    assert run.returncode != 0
    assert words in run.stderr
    assert "Traceback" not in run.stderr
