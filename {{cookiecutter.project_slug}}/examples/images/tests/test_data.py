"""Yours to edit: tests of the sample format, and of the samples in the example dataset."""

import numpy as np
import pytest

from trainer import data
from trainer.config import Config, findings
from trainer.data import Sample
from trainer.vertex.errors import TrainerError

RANDOM = np.random.default_rng(0)
GRAY = Sample(np.full((200, 200, 1), 128, np.uint8), 7)


@pytest.fixture(scope="module")
def digits() -> dict[str, list[Sample]]:
    return data.digits()


def test_every_fifth_digit_is_held_out_and_none_is_in_both_splits(digits: dict[str, list[Sample]]) -> None:
    assert {split: len(samples) for split, samples in digits.items()} == {"train": 1437, "heldout": 360}
    train, heldout = ({data.encode(sample) for sample in samples} for samples in digits.values())
    assert train.isdisjoint(heldout)


def test_the_classes_are_roughly_balanced(digits: dict[str, list[Sample]]) -> None:
    for samples in digits.values():
        shares = np.bincount([sample.label for sample in samples]) / len(samples)
        assert len(shares) == 10
        assert 0.05 < shares.min() <= shares.max() < 0.15


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 8, 1), (5, 7, 3), (300, 2, 4)])
def test_a_sample_is_read_as_it_was_written(shape: tuple[int, int, int]) -> None:
    image = RANDOM.integers(0, 256, shape, np.uint8)
    read = data.decode(data.encode(Sample(image, 12345)))
    assert read.label == 12345
    assert np.array_equal(read.image, image)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((8, 8), np.uint8), r"uint8 and shape \(8, 8\)"),
        (np.zeros((8, 8, 1), np.float32), r"float32 and shape \(8, 8, 1\)"),
        (np.zeros((1, 8, 8, 1), np.uint8), r"uint8 and shape \(1, 8, 8, 1\)"),
    ],
)
def test_an_image_of_another_type_or_shape_is_refused_when_it_is_written(image: np.ndarray, words: str) -> None:
    with pytest.raises(TrainerError, match=rf"{words}, but it must have dtype uint8 and shape \(height, "):
        data.encode(Sample(image, 0))


def test_a_batch_is_float_images_between_0_and_1_and_whole_labels(digits: dict[str, list[Sample]]) -> None:
    batch = data.collate(digits["train"][:24], Config())
    assert (batch.inputs.shape, str(batch.inputs.dtype)) == ((24, 8, 8, 1), "float32")
    assert (batch.labels.shape, str(batch.labels.dtype)) == ((24,), "int64")
    assert (batch.inputs.min(), batch.inputs.max()) == (0, 1)


@pytest.mark.parametrize("label", [-1, 10, 99])
def test_a_label_that_is_no_class_is_named(label: int) -> None:
    with pytest.raises(TrainerError, match=rf"a label is {label}, but it must be .* below --classes \(10\)"):
        data.collate([GRAY, GRAY._replace(label=label)], Config())


def noisy(config: Config, seed: int = 0) -> Sample:
    return data.augment(GRAY, np.random.default_rng(seed), config)


def test_noise_has_the_deviation_asked_for_and_leaves_the_label_alone() -> None:
    sample = noisy(Config(noise=0.1))
    assert (sample.image / 255).std() == pytest.approx(0.1, rel=0.05)
    assert (sample.image / 255).mean() == pytest.approx(128 / 255, rel=0.01)
    assert (str(sample.image.dtype), sample.label) == ("uint8", 7)


def test_noise_follows_from_its_generator_alone() -> None:
    first, again, other = (noisy(Config(noise=0.1), seed).image for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_unless_told_the_digits_have_noise_and_data_of_one_s_own_has_none() -> None:
    assert np.array_equal(noisy(Config()).image, noisy(Config(noise=0.1)).image)
    assert noisy(Config(data="shards")) is noisy(Config(noise=0.0)) is GRAY


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(classes=0), "--classes is 0, but it must be at least 1"),
        (Config(noise=-0.1), "--noise is -0.1, but it must be 0 or more"),
        (Config(noise=float("inf")), "--noise is inf, but it must be 0 or more"),
    ],
)
def test_a_wrong_flag_is_one_phrase_that_names_it(config: Config, words: str) -> None:
    assert list(findings(config)) == [words]


def test_what_is_shown_is_what_the_images_show_and_what_the_model_sees() -> None:
    batch = data.collate([GRAY, GRAY._replace(label=3)], Config())
    shown = data.show(lambda inputs: np.eye(10)[[7] * len(inputs)], batch)
    assert shown == "held-out labels are 7 3, and predictions are 7 7"
