"""Data that is not what it says, or not what the run began with, is named before a step is taken."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.samples import EXAMPLE
from tests.training import DEADLINE, PROJECT
from trainer import data
from trainer.cluster.spec import Cluster, Node
from trainer.config import Config, Job
from trainer.data import EXAMPLES
from trainer.samples import shards
from trainer.samples.batches import Data
from trainer.samples.fingerprint import FILE, Fingerprint, require_same, require_unchanged
from trainer.samples.shards import Dataset
from trainer.vertex.errors import TrainerError
from trainer.vertex.storage import Storage

FOUR = {f"train-{number:05d}-of-00004.array_record": (1000, 30) for number in range(4)}
WHOLE = Fingerprint(24, 0, FOUR, {"heldout-mine.array_record": (10, 1)})


def damage(file: Path) -> None:
    """Invert 8 bytes of the first record, behind the headers of the file and of its chunk."""
    content = bytearray(file.read_bytes())
    content[120:128] = bytes(255 - byte for byte in content[120:128])
    file.write_bytes(content)


def without(number: int) -> dict[str, tuple[int, int]]:
    return {name: size for name, size in FOUR.items() if f"-{number:05d}-" not in name}


def refused(present: Fingerprint, folder: Path | None = None) -> str:
    """What the run says that is refused; with --anyway it says the same and goes on."""
    require_unchanged(present, folder, anyway=True, is_chief=False)
    with pytest.raises(TrainerError) as told:
        require_unchanged(present, folder, anyway=False, is_chief=False)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_shard_that_the_names_of_others_promise_is_named() -> None:
    assert refused(replace(WHOLE, train=without(1))) == (
        "train-00001-of-00004.array_record is missing; copy or write one complete set of shards, or train on"
        " these shards with --anyway"
    )
    two = without(0).keys() & without(3).keys()
    assert "train-00000-of-00004.array_record is missing (and 1 more)" in refused(
        replace(WHOLE, train=dict.fromkeys(two, (1, 1)))
    )


@pytest.mark.parametrize(
    "names", [["train-a", "train-b"], ["train-1-of-2", "train-2-of-2"], ["train-x-0-of-1", "train-y-0-of-1"]]
)
def test_any_name_will_do(names: list[str]) -> None:
    train = {f"{name}.array_record": (10, 1) for name in names}
    require_unchanged(replace(WHOLE, train=train), None, anyway=False, is_chief=True)


def test_two_sets_of_shards_in_one_folder_are_refused() -> None:
    eight = {f"train-{number:05d}-of-00008.array_record": (500, 15) for number in range(8)}
    assert refused(replace(WHOLE, train=FOUR | eight)) == (
        "train has shards of two sets, -of-00004 and -of-00008; copy or write one complete set of shards, or train on"
        " these shards with --anyway"
    )


def test_a_shard_without_records_is_named_unless_there_are_too_few_for_all() -> None:
    name = "train-00002-of-00004.array_record"
    assert f"{name} contains no records; " in refused(replace(WHOLE, train=FOUR | {name: (20, 0)}))
    few = replace(WHOLE, train=dict.fromkeys(FOUR, (20, 0)) | {name: (30, 3)})
    require_unchanged(few, None, anyway=False, is_chief=True)


def test_other_samples_than_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    WHOLE.keep(tmp_path)
    require_unchanged(WHOLE, tmp_path, anyway=False, is_chief=True)
    name = "train-00003-of-00004.array_record"
    assert refused(replace(WHOLE, global_batch=48, seed=1), tmp_path) == (
        "--global-batch was 24 and is now 48; --seed was 0 and is now 1; "
        f"restore the data and flags of {tmp_path.name}, or continue with --anyway"
    )
    assert f"{name} had 30 records in 1000 bytes, and now has 29 in 999; " in refused(
        replace(WHOLE, train=FOUR | {name: (999, 29)}), tmp_path
    )
    assert f"{name} is gone; {name} is missing; restore the" in refused(replace(WHOLE, train=without(3)), tmp_path)
    assert "train-more.array_record is new; " in refused(
        replace(WHOLE, train=FOUR | {"train-more.array_record": (1, 1)}), tmp_path
    )


def test_a_shard_with_other_records_of_the_same_size_is_refused(tmp_path: Path) -> None:
    samples, name = EXAMPLES[EXAMPLE]()["train"], "train-00000-of-00001.array_record"
    found = []
    for part in (slice(9), slice(9, 18)):
        shards.write(samples[part], tmp_path, "train", shard_count=1)
        found.append(replace(WHOLE, train=Dataset(tmp_path, "train").described()))
    assert {Dataset(tmp_path, "train").shards[name]} == {one.train[name][:2] for one in found}
    found[0].keep(tmp_path)
    assert refused(found[1], tmp_path).startswith(f"{name} now has different records; restore")
    replace(found[0], train={name: found[0].train[name][:2]}).keep(tmp_path)  # of an older version
    require_unchanged(found[1], tmp_path, anyway=False, is_chief=True)


def test_a_shard_with_other_records_in_its_middle_is_refused_where_checksums_were_kept(tmp_path: Path) -> None:
    samples, name = EXAMPLES[EXAMPLE]()["train"][:9], "train-00000-of-00001.array_record"
    swapped = [samples[0], *samples[7:0:-1], samples[8]]
    found = []
    for each in (samples, swapped):
        shards.write(each, tmp_path, "train", shard_count=1)
        found.append(replace(WHOLE, train=Dataset(tmp_path, "train").described()))
    assert found[0].train[name][:3] == found[1].train[name][:3]
    found[0].keep(tmp_path)
    assert refused(found[1], tmp_path).startswith(f"{name} now has different records; restore")
    (tmp_path / "train-checksums.json").unlink()
    require_unchanged(
        replace(WHOLE, train=Dataset(tmp_path, "train").described()), tmp_path, anyway=False, is_chief=True
    )


def test_other_flags_of_the_model_are_refused_also_where_all_shapes_are_alike(tmp_path: Path) -> None:
    replace(WHOLE, model={"heads": "4"}).keep(tmp_path)
    assert refused(replace(WHOLE, model={"heads": "2", "new": "1"}), tmp_path).startswith(
        "--heads was 4 and is now 2; "
    )


def test_a_checkpoint_under_another_name_is_refused(tmp_path: Path) -> None:
    forty, fifty = (tmp_path / f"step-{step:09d}" for step in (40, 50))
    forty.mkdir()
    WHOLE.keep(forty)
    forty.rename(fifty)
    assert refused(WHOLE, fifty).startswith(f"{fifty.name} is {forty.name} under a different name; ")


def test_a_checkpoint_of_an_older_version_is_compared_with_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_unchanged(WHOLE, tmp_path, anyway=False, is_chief=True)
    assert capsys.readouterr().out == ""


def test_a_damaged_record_is_named_with_its_shard_and_index(tmp_path: Path) -> None:
    samples = EXAMPLES[EXAMPLE]()["train"][:40]
    shards.write(samples, tmp_path, "train", shard_count=2)
    damage(tmp_path / "train-00001-of-00002.array_record")
    with pytest.raises(TrainerError) as told:
        Dataset(tmp_path, "train").batch(range(40), Config())
    words, _, index = str(told.value).partition(": record ")
    assert words == f"{tmp_path}/train-00001-of-00002.array_record"
    assert 0 <= int(index.partition(" is damaged (")[0]) < 20
    assert str(told.value).endswith("); write this shard again")
    assert "\n" not in str(told.value)


def test_processes_that_see_other_samples_are_named(tmp_path: Path) -> None:
    samples, names = EXAMPLES[EXAMPLE]()["train"], ("chief", "fewer", "others", "same")
    for name, part in zip(names, (slice(60), slice(40), slice(60, 120), slice(60)), strict=True):
        shards.write(samples[part], tmp_path / name, "train", shard_count=2)
        shards.write(samples[:4], tmp_path / name, "heldout", shard_count=1)
    nodes = tuple(Node(f"workerpool{min(i, 1)}-{max(i - 1, 0)}", f"localhost:{i}") for i in range(4))
    cluster = Cluster(nodes, nodes[0].name)
    jobs = [Job(Config(anyway=name == "same"), Storage(), tmp_path / name, cluster) for name in names]
    digests = [Data(job).fingerprint.digest for job in jobs]
    with pytest.raises(TrainerError) as told:
        require_same(jobs[0], digests)
    assert str(told.value).startswith(
        "workerpool1-0 and workerpool0-0 see different training samples: 40 in 2 shards, "
    )
    assert str(told.value).endswith(" (and 1 more); give all replicas the same data, or continue with --anyway")
    require_same(jobs[3], digests)
    require_same(jobs[0], [digests[0], digests[3], digests[3], digests[0]])


def test_a_batch_that_lacks_samples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.write(EXAMPLES[EXAMPLE]()["train"][:40], tmp_path, "train", shard_count=2)
    collate = data.collate
    monkeypatch.setattr(data, "collate", lambda samples, config: collate(samples[1:], config))
    with pytest.raises(TrainerError, match=r"returns 23 inputs for 24 samples; keep all samples in their original"):
        Dataset(tmp_path, "train").batch(range(24), Config())


def run(folder: Path, *flags: str) -> tuple[int, list[str]]:
    """Exit code of a run in this folder, and its sentences."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer.task", "--data", "set", "--warmup", "1", "--checkpoint-every", "2"]
    done = subprocess.run([*command, *flags], cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, [json.loads(line)["message"] for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.proof
@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_run_ends_with_the_name_of_a_damaged_record(processes: str, tmp_path: Path) -> None:
    shards.write_example(EXAMPLE, tmp_path / "set")
    damage(tmp_path / "set/train-00002-of-00004.array_record")
    code, said = run(tmp_path, "--steps", "200", "--data-processes", processes)
    assert code == 1
    assert any("set/train-00002-of-00004.array_record: record " in text and "is damaged" in text for text in said)


@pytest.mark.proof
def test_a_run_resumes_with_its_own_samples_alone(tmp_path: Path) -> None:
    shards.write_example(EXAMPLE, tmp_path / "set")
    (code, said), root = run(tmp_path, "--steps", "2"), tmp_path / "output/checkpoints"
    assert code == 0, said
    assert [*json.loads((root / "step-000000002" / FILE).read_text())["train"]] == [*FOUR]
    code, said = run(tmp_path, "--steps", "4", "--global-batch", "48", "--learning-rate", "1e-4")
    assert code == 1
    assert any(
        text.startswith("--global-batch was 96 and is now 48; restore the data and flags of step-000000002")
        for text in said
    )
    code, said = run(tmp_path, "--steps", "4", "--global-batch", "48", "--learning-rate", "1e-4", "--anyway")
    assert code == 0, said
    assert "--global-batch was 96 and is now 48; continuing because of --anyway" in said
    (tmp_path / "set/train-00002-of-00004.array_record").unlink()
    code, said = run(tmp_path, "--steps", "6", "--global-batch", "48")
    assert code == 1
    assert any("train-00002-of-00004.array_record is gone" in text for text in said)
