"""Yours to edit: tests of the model, its loss, and its metrics."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer import model
from trainer.config import Config
from trainer.data import BYTES, Batch

CONTEXT = 16


def text(count: int, length: int = CONTEXT) -> Batch:
    """Return a batch of random samples."""
    drawn = np.random.default_rng(0).integers(0, BYTES, (count, length + 1))
    return Batch(drawn[:, :-1].astype(np.int32), drawn[:, 1:])


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    return model.build(Config(), text(1))


@pytest.mark.parametrize(
    ("size", "millions"), [("tiny", 0.22), ("small", 21), ("base", 85), ("large", 302), ("xl", 1208)]
)
def test_each_size_has_as_many_parameters_as_its_flag_says(size: str, millions: float) -> None:
    with torch.device("meta"):
        net = model.build(Config(size=size), text(1, 64))  # type: ignore[arg-type]
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)


def test_bytes_become_logits_of_the_byte_after_each_for_any_length_up_to_the_context() -> None:
    for length in (1, 7, CONTEXT):
        assert tiny()(torch.from_numpy(text(3, length).inputs)).shape == (3, length, BYTES)


def test_no_byte_sees_a_later_one() -> None:
    net, inputs = tiny(), torch.from_numpy(text(2).inputs)
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 1) % BYTES
    before, after = net(inputs), net(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_one_matrix_embeds_bytes_and_reads_them_out() -> None:
    net = tiny()
    assert isinstance(net, model.GPT)
    assert net.embed.weight is net.head.weight
    net(torch.from_numpy(text(2).inputs)).sum().backward()
    assert len(list(net.parameters())) == len({id(p) for p in net.parameters()})


def answered(*answers: int) -> Tensor:
    """Return logits that make each byte of a text three times as likely as all other bytes together."""
    return torch.nn.functional.one_hot(torch.tensor([answers]), BYTES) * math.log(3 * (BYTES - 1))


def test_losses_and_metrics_are_one_number_per_sample() -> None:
    batch = Batch(torch.zeros(1, 2), torch.tensor([[65, 66]]))
    right, wrong = -math.log(3 / 4), -math.log(1 / 4 / (BYTES - 1))
    for output, loss, accuracy in ((answered(65, 66), right, 1.0), (answered(65, 0), (right + wrong) / 2, 0.5)):
        assert model.losses(output, batch).tolist() == pytest.approx([loss], rel=1e-5)
        found = {name: of_each.tolist() for name, of_each in model.metrics(output, batch).items()}
        assert found == {"accuracy": [accuracy]}
