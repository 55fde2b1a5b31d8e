"""A model is the same one in all processes, after a resume and in the export, or the run ends in one sentence."""

import re
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import Run, train

pytestmark = pytest.mark.proof
DRAWN = "have build() of trainer/model.py draw all from the generators that --seed sets, or keep it in the state dict"
BUILD = """
import numpy as np

_build = build


def build(config, example):
    net = _build(config, example)
    {change}
    return net
"""
ORDER = "order = {order}.permutation(8)\n    net.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, order],))"
BUFFER = (
    "net.register_buffer('scale', torch.from_numpy(np.random.default_rng().random(10)).float(), persistent=False)\n"
    "    net.register_forward_hook(lambda net, _, output: output * net.scale)"
)
NORMED = "net.head.out = nn.Sequential(nn.BatchNorm1d(net.head.out.in_features), net.head.out)"
UNFIT = """

_forward = VisionTransformer.forward


def forward(self, images):
    if images.sum() > 0:
        return _forward(self, images)
    return _forward(self, images + 1)


VisionTransformer.forward = forward
"""
NOISY = """

_losses = losses


def losses(output, batch):
    return _losses(output + torch.randn_like(output), batch)
"""


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, change_of_net: str, *flags: str) -> Run:
    change(folder / "project", "trainer/model.py", BUILD.format(change=change_of_net), monkeypatch)
    return train(folder, count, "--steps", "10", *flags)


def test_processes_that_draw_other_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 2, ORDER.format(order="np.random.default_rng()"))
    fault = "the model of workerpool1-0 answers otherwise than that of workerpool0-0, with the same weights"
    assert f"{fault}; {DRAWN}" in refused.output
    assert (refused.code, refused.losses) == (1, []), "before the first step"


def test_a_process_alone_does_not_export_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 1, ORDER.format(order="np.random.default_rng()"))
    assert refused.code == 1
    assert f"answers otherwise than the trained model, with the same weights; {DRAWN}" in refused.output


def test_what_follows_from_the_seed_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(tmp_path, monkeypatch, 2, ORDER.format(order="np.random"), "--strategy", "fsdp")
    assert done.code == 0, done.output


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_of_no_state_dict_are_compared_too(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run(tmp_path, monkeypatch, 2, BUFFER, "--strategy", strategy)
    assert f"scale of the model of workerpool1-0 is another one than in workerpool0-0; {DRAWN}" in refused.output
    assert (refused.code, refused.losses) == (1, [])


def test_parameters_that_no_loss_depends_on_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 2, "net.spare = nn.Linear(2, 3)")
    assert "losses() of trainer/model.py do not depend on spare.weight, spare.bias; remove these" in refused.output
    assert (refused.code, "Traceback" in refused.output) == (1, False)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_means_that_are_evaluated_are_those_that_are_saved(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path, monkeypatch, 3, NORMED, "--strategy", strategy)
    assert done.code == 0, done.output


def test_a_model_that_cannot_be_exported_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/model.py", UNFIT, monkeypatch)
    refused = train(tmp_path, 2, "--steps", "10", "--rehearse-export", "True")
    assert (refused.code, refused.losses) == (1, []), refused.output
    assert re.search(r"trainer/model\.py:\d+: the model cannot be exported: \w+: ", refused.output)
    assert "Traceback" not in refused.output


def test_a_model_that_draws_numbers_in_evaluation_is_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/model.py", NOISY, monkeypatch)
    done = train(tmp_path, 2, "--steps", "10")
    assert done.code == 0, done.output
