"""Every strategy trains as a plain loop in one process does."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

from tests.strategies import COMMON, COMPILED, GROUPS, SOME, STEPS, Found
from tests.training import DEADLINE, PROJECT
from trainer import model
from trainer.config import Config, learning_rate
from trainer.data import Batch
from trainer.parallel import mesh as layout
from trainer.parallel.strategy import precision
from trainer.samples import batches, shards
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError

SECONDS = 1800  # for a group; half a minute on an idle machine
EXACT, ROUNDED = 1e-5, 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    shards.write_example(COMMON.data, folder)
    return folder


class Plain(NamedTuple):
    """What a loop loses that anyone would write, without any of the trainer's strategies."""

    losses: list[float]  # of each step
    heldout: float  # after the last one


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    torch.manual_seed(COMMON.seed)
    dataset, losses = Dataset(folder, "train"), []
    net = model.build(COMMON, dataset.batch([0], COMMON))
    decayed, others = ([p for p in net.parameters() if (p.ndim > 1) is wide] for wide in (True, False))
    optimizer = optim.AdamW(
        [{"params": decayed, "weight_decay": COMMON.weight_decay}, {"params": others, "weight_decay": 0}]
    )
    for step, batch in enumerate(batches.train_batches(dataset, COMMON, start=0, rank=0, world_size=1)):
        mean = mean_loss(net, batch)
        mean.backward()
        nn.utils.clip_grad_norm_(net.parameters(), COMMON.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(COMMON, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    with torch.no_grad():
        heldout = Dataset(folder, "heldout")
        return Plain(losses, mean_loss(net.eval(), heldout.batch(range(len(heldout)), COMMON)).item())


@pytest.fixture(scope="module")
def norm(folder: Path) -> float:
    """That of the gradient before the first step, as PyTorch has it in one process."""
    torch.manual_seed(COMMON.seed)
    batch = next(batches.train_batches(Dataset(folder, "train"), COMMON, start=0, rank=0, world_size=1))
    net = model.build(COMMON, batch)
    mean_loss(net, batch).backward()
    return float(nn.utils.clip_grad_norm_(net.parameters(), COMMON.clip))


def mean_loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    tensors = Batch(*map(torch.from_numpy, batch))
    return model.losses(net(tensors.inputs), tensors).mean()


def found(shards: Path, group: str, **variables: str) -> dict[str, Found]:
    """Run a group of tests/strategies.py; returns what each strategy did."""
    command, environ = [sys.executable, "-m", "tests.strategies", str(shards), group], os.environ | variables
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    each: dict[str, Found] = {}
    for line in output.splitlines():
        each |= json.loads(line)
    return each


@pytest.fixture(scope="module")
def spread(folder: Path) -> Callable[[str], Found]:
    """What a strategy did, in up to four processes; those of its group run once."""
    of_group = cache(partial(found, folder))
    groups = {name: group for group, (_, configs) in GROUPS.items() for name in configs}
    return lambda name: of_group(groups.get(name, "relay"))[name]


@pytest.fixture(scope="module")
def compiled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Compiled here and now: nothing comes from a cache."""
    try:
        layout.require_compiler(os.environ.get("CXX", ""))
    except TrainerError as error:
        pytest.skip(str(error))
    cache = tmp_path_factory.mktemp("compiled")
    losses = found(folder, "compiled", TORCHINDUCTOR_CACHE_DIR=str(cache))
    assert any(cache.rglob("*.cpp"))  # else nothing was compiled
    return losses


def without(word: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if word not in name]


@pytest.mark.proof
def test_a_pipeline_loses_as_much_as_one_process(plain: Plain, spread: Callable[[str], Found]) -> None:
    pipeline = spread("pipeline")
    assert pipeline["losses"] == pytest.approx(plain.losses, abs=EXACT)
    assert pipeline["heldout"] == pytest.approx(plain.heldout, abs=EXACT)


@pytest.mark.proof
@pytest.mark.parametrize("name", without("compiled", STEPS))
def test_a_strategy_loses_as_much_as_one_process(name: str, plain: Plain, spread: Callable[[str], Found]) -> None:
    losses = spread(name)["losses"]
    assert len(losses) == STEPS[name]
    assert losses == pytest.approx(plain.losses[: len(losses)], abs=ROUNDED if "bfloat16" in name else EXACT)


@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name, steps in STEPS.items() if steps == COMMON.steps])
def test_a_strategy_scores_what_is_held_out_as_one_process_does(
    name: str, plain: Plain, spread: Callable[[str], Found]
) -> None:
    assert spread(name)["heldout"] == pytest.approx(plain.heldout, abs=EXACT)


@pytest.mark.proof
@pytest.mark.parametrize("name", without("bfloat16", without("compiled", STEPS)))
def test_the_norm_for_clipping_is_that_of_the_whole_model(
    name: str, norm: float, spread: Callable[[str], Found]
) -> None:
    assert spread(name)["norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.proof
@pytest.mark.parametrize("name", without("compiled", STEPS))
def test_clipping_asks_the_other_processes_only_where_the_model_is_cut(
    name: str, spread: Callable[[str], Found]
) -> None:
    assert spread(name)["collectives"] == (0 if name.startswith("ddp") else 1)


@pytest.mark.proof
def test_a_checkpoint_of_one_strategy_and_number_of_processes_resumes_under_another(
    plain: Plain, spread: Callable[[str], Found]
) -> None:
    legs = [f"relay {mesh}" for mesh in ("replicate 2", "shard 3", "replicate 1", "replicate 1 x stage 2")]
    losses = [one for leg in legs for one in spread(leg)["losses"]]
    assert losses == pytest.approx(plain.losses[: len(losses)], abs=EXACT)


@pytest.mark.proof
def test_bfloat16_is_really_less_precise(plain: Plain, spread: Callable[[str], Found]) -> None:
    for name in (name for name in STEPS if "bfloat16" in name):
        assert spread(name)["losses"] != pytest.approx(plain.losses[:SOME], abs=EXACT)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "share"), [("fsdp", 0.5), ("fsdp of 4", 0.25), ("fsdp, copied", 0.5), ("pipeline", 0.5), ("tensor", 0.5)]
)
def test_a_process_keeps_its_share_of_parameters_gradients_and_moments(
    name: str, share: float, spread: Callable[[str], Found]
) -> None:
    whole = spread("relay replicate 1")["kept"]
    assert spread(name)["kept"] / whole == pytest.approx(share, rel=0.1)


@pytest.mark.proof
def test_fsdp_keeps_no_whole_gradients_between_micro_batches(spread: Callable[[str], Found]) -> None:
    of_gradients = spread("fsdp of 4")["kept"] / 4  # beside parameters and two moments
    assert spread("fsdp of 4")["cut"] == pytest.approx(of_gradients, rel=0.1)


@pytest.mark.proof
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_blocks_lose_as_much_as_others(name: str, plain: Plain, compiled: dict[str, Found]) -> None:
    assert compiled[name]["losses"] == pytest.approx(plain.losses[:SOME], abs=EXACT)


def test_compile_without_a_compiler_is_refused_with_what_to_install() -> None:
    with pytest.raises(TrainerError, match=r"no-such-compiler isn't installed; .* apt-get install"):
        layout.require_compiler("no-such-compiler")


PLAIN = """
from dataclasses import dataclass

import torch

from trainer.data import DataFlags

@dataclass(frozen=True, kw_only=True)
class ModelFlags(DataFlags):
    width: int = 16

def findings(config):
    return ()

def build(config, example):
    width = config.width
    first = torch.nn.Linear(example.inputs[0].size, width)
    return torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.ReLU(), torch.nn.Linear(width, config.classes))

def losses(output, batch):
    return torch.nn.functional.cross_entropy(output, batch.labels, reduction="none")

def metrics(output, batch):
    return {"margin": output.topk(2).values.diff().abs().squeeze(1)}
"""
VIEW = """

class View(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.blocks = layers

    def forward(self, images):
        logits = self.blocks(images)
        return logits.view(logits.shape)

plain = build

def build(config, example):
    return View(plain(config, example))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One whose model is PLAIN."""
    shutil.copytree(PROJECT / "trainer", tmp_path / "trainer")
    (tmp_path / "trainer/model.py").write_text(PLAIN)
    return tmp_path


def run(project: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer.task", "--steps", "5", "--warmup", "1", *flags]
    environment = {"PYTHONPATH": str(project), "PATH": os.environ["PATH"]}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=DEADLINE)


@pytest.mark.proof
@pytest.mark.skipif("labels" not in Batch._fields, reason="is a model for images")
def test_a_model_without_parts_trains_with_ddp_and_is_refused_by_name_otherwise(project: Path) -> None:
    trained = run(project, "--width", "24")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert re.search(r"heldout loss \d.*  heldout margin \d", trained.stdout)
    assert (project / "output/model/weights.pt").exists()
    refused = run(project, "--strategy", "pipeline")
    assert refused.returncode == 1
    sentence = "--strategy pipeline requires a model with the attributes embed, blocks, head; add embed"
    assert sentence in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


@pytest.mark.proof
@pytest.mark.skipif("labels" not in Batch._fields, reason="is a model for images")
def test_a_model_that_returns_a_view_is_sharded_without_a_warning(project: Path) -> None:
    file = project / "trainer/model.py"
    file.write_text(file.read_text() + VIEW)
    sharded = run(project, "--strategy", "fsdp")
    assert sharded.returncode == 0, sharded.stdout + sharded.stderr
    assert "view" not in sharded.stdout + sharded.stderr


@pytest.mark.parametrize(
    ("flag", "dtype"), [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_a_cpu_computes_in_bfloat16_only_when_told_to(flag: str, dtype: torch.dtype) -> None:
    assert precision(Config(precision=flag), torch.device("cpu")) == dtype  # type: ignore[arg-type]
