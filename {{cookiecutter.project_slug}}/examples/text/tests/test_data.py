"""Yours to edit: tests of the sample format, and of the samples in the example dataset."""

import numpy as np
import pytest

from trainer import data
from trainer.config import Config, findings
from trainer.data import BYTES, LENGTH, Array, Sample
from trainer.vertex.errors import TrainerError


@pytest.fixture(scope="module")
def stdlib() -> dict[str, list[Sample]]:
    return data.stdlib()


def sample(text: bytes) -> Sample:
    return data.decode(text)


def test_the_source_of_python_is_packed_into_samples_of_one_length(stdlib: dict[str, list[Sample]]) -> None:
    assert {len(one.text) for samples in stdlib.values() for one in samples} == {LENGTH}
    text = b"".join(data.encode(one) for one in stdlib["train"])
    assert b"\n    def __init__(self" in text


def test_about_every_twentieth_sample_is_held_out_and_none_is_in_both_splits(stdlib: dict[str, list[Sample]]) -> None:
    assert 0.02 < len(stdlib["heldout"]) / len(stdlib["train"]) < 0.1
    train, heldout = ({data.encode(one) for one in samples} for samples in stdlib.values())
    assert train.isdisjoint(heldout)


def test_all_of_every_text_is_there_but_the_last_rest() -> None:
    texts = [bytes(range(1, 200)) * 9, b"short", b"a" * 1300]
    packed = [data.encode(one) for one in data.packed(texts)]
    assert b"".join(packed) == b"\0".join(texts)[: 3 * LENGTH]


def test_a_sample_is_read_as_it_was_written() -> None:
    every = bytes(range(BYTES))
    assert data.encode(data.decode(every)) == every


def test_a_batch_has_each_byte_and_the_one_after_it() -> None:
    batch = data.collate([sample(b"abcde"), sample(b"ABCD")], Config(context=3))
    assert (str(batch.inputs.dtype), str(batch.targets.dtype)) == ("int32", "int64")
    assert batch.inputs.tolist() == [list(b"abc"), list(b"ABC")]
    assert batch.targets.tolist() == [list(b"bcd"), list(b"BCD")]


def test_a_sample_shorter_than_the_context_is_refused() -> None:
    with pytest.raises(TrainerError, match="--context is 4, but it must be less than a sample's 4 bytes"):
        data.collate([sample(b"abcde"), sample(b"ABCD")], Config(context=4))


def test_training_begins_anywhere_in_a_sample_as_its_generator_says() -> None:
    text, config = sample(bytes(range(100))), Config(context=80)
    begins = {data.augment(text, np.random.default_rng(seed), config).text[0] for seed in range(200)}
    assert begins == set(range(20))  # so that the context and the byte after it exist
    assert data.augment(sample(b"abcd"), np.random.default_rng(0), Config(context=3)).text.tobytes() == b"abcd"


def test_what_is_shown_is_what_the_model_finds_likeliest_after_a_held_out_text() -> None:
    def next_letter(inputs: Array) -> Array:
        assert inputs.shape == (1, 3)  # never more than the context
        return 1e6 * np.eye(BYTES)[(inputs + 1) % BYTES]

    shown = data.show(next_letter, data.collate([sample(b"ABCD")], Config(context=3)))
    begin, _, written = shown.partition("\n")
    assert begin == "after 'ABC' it writes:"
    assert written.startswith("DEFGHIJKLMNOPQRSTUVWXYZ")


def test_a_wrong_flag_is_one_phrase_that_names_it() -> None:
    assert list(findings(Config(context=0))) == ["--context is 0, but it must be at least 1"]


def test_reports_count_tokens() -> None:
    config = Config(context=3)
    assert data.counts(config, data.collate([sample(b"abcd")], config)) == {"tokens": 3}
