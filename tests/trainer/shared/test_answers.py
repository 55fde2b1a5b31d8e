"""A model is the same one in all processes, after a resume and in the export, or the run ends in one sentence."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.changed import change
from tests.training import Run, train

pytestmark = pytest.mark.proof
FRAMEWORK = "torch" if find_spec("torch") else "tensorflow"
STRATEGIES = {"torch": ["ddp", "fsdp"], "tensorflow": ["multi_worker_mirrored"]}[FRAMEWORK]
DRAWN = (
    "in build() of trainer/model.py, draw all random values from the generators that --seed seeds, or store the values"
    " in the state dict"
)
BUILD = """
import numpy as np

_build = build


def build(config, example):
    net = _build(config, example)
    {change}
    return net
"""
ORDER = {
    "torch": "order = {order}.permutation(8)\n"
    "    net.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, order],))",
    "tensorflow": "order, inputs = {order}.permutation(8), keras.Input(net.inputs[0].shape[1:])\n"
    "    net = keras.Model(inputs, net(keras.ops.take(inputs, order, axis=1)))",
}[FRAMEWORK]
NORMED = {
    "torch": "net.head.out = nn.Sequential(nn.BatchNorm1d(net.head.out.in_features), net.head.out)",
    "tensorflow": "net = keras.Model(net.inputs[0], keras.layers.BatchNormalization()(net.outputs[0]))",
}[FRAMEWORK]
UNFIT = {
    "torch": """

_forward = VisionTransformer.forward


def forward(self, images):
    if images.sum() > 0:
        return _forward(self, images)
    return _forward(self, images + 1)


VisionTransformer.forward = forward
""",
    "tensorflow": """

_build = build


class Strict(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs):
        if not isinstance(inputs.shape[0], int):
            raise ValueError("how many?")
        return self.inner(inputs)


def build(config, example):
    net = Strict(_build(config, example))
    net(example.inputs)
    return net
""",
}[FRAMEWORK]
NOISY = """

_losses = losses


def losses(output, batch):
    return _losses(output + {noise}, batch)
"""
NOISE = {"torch": "torch.randn_like(output)", "tensorflow": "tf.random.normal(output.shape)"}[FRAMEWORK]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, change_of_net: str, *flags: str) -> Run:
    change(folder / "project", "trainer/model.py", BUILD.format(change=change_of_net), monkeypatch)
    return train(folder, count, "--steps", "10", *flags)


def test_processes_that_draw_other_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 2, ORDER.format(order="np.random.default_rng()"))
    fault = "the model of workerpool1-0 returns different losses than the model of workerpool0-0 with the same weights"
    assert f"{fault}; {DRAWN}" in refused.output
    assert (refused.code, refused.losses) == (1, []), "before the first step"


def test_a_process_alone_does_not_export_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 1, ORDER.format(order="np.random.default_rng()"))
    assert refused.code == 1
    assert f"returns different losses than the trained model with the same weights; {DRAWN}" in refused.output


def test_what_follows_from_the_seed_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(tmp_path, monkeypatch, 2, ORDER.format(order="np.random"), "--strategy", STRATEGIES[-1])
    assert done.code == 0, done.output


@pytest.mark.parametrize("strategy", STRATEGIES)
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
    assert re.search(r"trainer/model\.py:\d+: the model can't be exported: \w+: ", refused.output)
    assert "Traceback" not in refused.output


def test_a_model_that_draws_numbers_in_evaluation_is_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path / "project", "trainer/model.py", NOISY.format(noise=NOISE), monkeypatch)
    done = train(tmp_path, 2, "--steps", "10")
    assert done.code == 0, done.output
