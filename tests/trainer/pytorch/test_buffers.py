"""What PyTorch alone lets a model hide: buffers of no state dict, and parameters that no loss depends on."""

from pathlib import Path

import pytest

from tests.test_answers import DRAWN, run

pytestmark = pytest.mark.proof
BUFFER = (
    "net.register_buffer('scale', torch.from_numpy(np.random.default_rng().random(10)).float(), persistent=False)\n"
    "    net.register_forward_hook(lambda net, _, output: output * net.scale)"
)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_of_no_state_dict_are_compared_too(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run(tmp_path, monkeypatch, 2, BUFFER, "--strategy", strategy)
    assert f"the buffer scale differs between the models of workerpool1-0 and workerpool0-0; {DRAWN}" in refused.output
    assert (refused.code, refused.losses) == (1, [])


def test_parameters_that_no_loss_depends_on_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(tmp_path, monkeypatch, 2, "net.spare = nn.Linear(2, 3)")
    assert "losses() in trainer/model.py doesn't depend on spare.weight, spare.bias; remove these" in refused.output
    assert (refused.code, "Traceback" in refused.output) == (1, False)
