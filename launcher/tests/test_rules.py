import ast
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import CustomJobSpec, HyperparameterTuningJob

from launcher.tests.casebook import (
    A100,
    CASES,
    CATALOG,
    CPU,
    EVALUATOR,
    GONE,
    GOOD,
    GOOD_TUNING,
    H100,
    P0,
    P1,
    P2,
    PREBUILT,
    PROJECT,
    REDUCERS,
    SERVERS,
    SETTINGS,
    TASK,
    Case,
    Edits,
    Part,
    alone,
    both,
    edited,
    told,
    write,
)
from launcher.tests.running import TEMPLATE
from tests.conftest import LAUNCHER
from vertex_launch import rules
from vertex_launch.errors import Finding, first
from vertex_launch.job import strict_yaml
from vertex_launch.job.spec import Job, TuningJob, parse
from vertex_launch.local.api.errors import invalid
from vertex_launch.rules import RULES, Project, check, explain, training
from vertex_launch.rules.rule import RuleContext
from vertex_launch.settings import Settings


def found(
    folder: Path, edits: Edits, settings: Settings = SETTINGS, project: Project = PROJECT, base: Part = GOOD
) -> list[Finding]:
    path = write(folder, edited(edits, base))
    return [*check.examine(path, settings, project).findings]


def names(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.place) for finding in findings]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.words[0]}")
def test_a_job_trips_a_rule_alone_and_its_neighbour_none(case: Case, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, case.wrong, case.settings, case.project, case.base)
    assert finding.code == case.code
    assert [word for word in case.words if word not in str(finding)] == []
    assert finding.fault
    assert finding.cure
    assert found(tmp_path, case.right, base=case.base) == []


def test_every_rule_is_in_the_table() -> None:
    assert {case.code for case in CASES} == RULES.keys()
    assert len(RULES) == len(rules.OURS)  # no code is there twice


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_what_it_is_and_rests_on(rule: Any, project: Path) -> None:
    assert rule.severity == "warning" or rule.certainty == "documented"
    assert rule.text.endswith(".")
    assert rule.consequence.endswith(".")
    assert "\n" not in rule.text
    ours = [source for source in rule.sources if source not in CATALOG.sources]
    assert all((project / source).exists() or (LAUNCHER / source).exists() for source in ours)
    assert rule.sources


REFUSED = [case for case in CASES if RULES[case.code].severity == "error" and "trainer" not in RULES[case.code].sources]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.code)
def test_what_stands_around_a_file_makes_no_error(case: Case, tmp_path: Path) -> None:
    # The local Vertex knows neither the day nor the trainer, and refuses the same.
    for project in (Project(), replace(PROJECT, today=date(2030, 1, 1), dockerfile="FROM scratch\n")):
        errors = [
            one for one in found(tmp_path, case.wrong, case.settings, project, case.base) if one.severity == "error"
        ]
        assert [one.code for one in errors] == [case.code]


def test_flags_that_may_differ_are_those_that_the_trainer_does_not_compare() -> None:
    source = ast.parse((TEMPLATE / "trainer/config.py").read_text(encoding="utf-8"))
    lines = (node for node in source.body if isinstance(node, ast.Assign))
    (own,) = (line.value for line in lines if ast.unparse(line.targets[0]) == "OWN")
    assert ast.literal_eval(own) == training.UNCOMPARED


@pytest.mark.parametrize(
    ("there", "here", "codes"),
    [
        (["--learning-rate", "0.001"], ["--learning-rate", "1e-3"], []),
        (["--steps", "600"], [], []),  # the default
        (["--anyway"], [], ["flags-vary"]),
        (["--anyway"], ["--steps", "7"], ["flags-vary", "flags-vary"]),
        (["--steps", "7", "--data=a"], ["--steps", "8", "--data=b"], ["flags-differ", "flags-vary"]),
        (["--unknown", "7"], [], ["flag-unknown", "flags-vary"]),
        (["--global-batch", "32"], [], ["flags-vary"]),  # whose default check can't read
    ],
)
def test_flags_that_decide_samples_or_updates_are_an_error_where_the_trainer_would_take_other_values(
    there: list[str], here: list[str], codes: list[str], tmp_path: Path
) -> None:
    edits = {f"{P0}.containerSpec.args": there, f"{P1}.containerSpec.args": here}
    assert sorted(one.code for one in found(tmp_path, edits)) == codes


def test_all_findings_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    edits = {f"{P0}.replicaCount": 2, f"{P2}.replicaCount": 1, "scheduling.timeout": "0s", "baseOutputDirectory": GONE}
    several = found(tmp_path, edits)
    assert [one.code for one in several] == ["output-missing", "chief-count", "reducer-count", "timeout-zero"]
    assert [one.line for one in several] == sorted(one.line for one in several)


def test_a_finding_reads_as_place_fault_and_cure() -> None:
    finding = Finding("workerPoolSpecs[0]", "must be 1, not 3", "move them to pool 1")
    assert str(finding) == "workerPoolSpecs[0]: must be 1, not 3; move them to pool 1"


def test_a_gpu_that_the_region_lacks_is_an_error_for_each_pool_with_it(tmp_path: Path) -> None:
    assert names(found(tmp_path, {}, replace(SETTINGS, region="us-west2"))) == [
        ("region-accelerator", "workerPoolSpecs[0].machineSpec"),
        ("region-accelerator", "workerPoolSpecs[1].machineSpec"),
    ]


def test_what_is_no_region_is_one_finding_whatever_it_would_offer(tmp_path: Path) -> None:
    assert names(found(tmp_path, {}, replace(SETTINGS, region="us-west1-a"))) == [("region-name", "region")]


@pytest.mark.parametrize("region", ["europe-west9", "europe-southwest1", "africa-south1", "northamerica-south1"])
def test_machines_without_accelerators_run_in_regions_the_catalog_does_not_know(tmp_path: Path, region: str) -> None:
    assert found(tmp_path, alone(CPU), replace(SETTINGS, region=region)) == []


def test_reducers_from_the_registry_of_the_region_are_right(tmp_path: Path) -> None:
    edits = {f"{P2}.containerSpec.imageUri": CATALOG.reduction_server_image("europe-west4")}
    assert found(tmp_path, edits, replace(SETTINGS, region="europe-west4")) == []


@pytest.mark.parametrize(
    "image",
    [
        "us-central1-docker.pkg.dev/demo/mirror/reductionserver:latest",
        f"us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver@sha256:{'0' * 64}",
    ],
)
def test_the_reduction_server_may_be_a_mirror_or_a_digest(image: str, tmp_path: Path) -> None:
    assert found(tmp_path, {f"{P2}.containerSpec.imageUri": image}) == []


def test_pool_2_may_hold_parameter_servers(tmp_path: Path) -> None:
    assert found(tmp_path, {P2: SERVERS}) == []


def test_a_tpu_job_has_no_reducers(tmp_path: Path) -> None:
    tpu = {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"}
    edits = {"workerPoolSpecs": [{"machineSpec": tpu, "replicaCount": 1, "containerSpec": TASK}, {}, REDUCERS]}
    assert [one.code for one in found(tmp_path, edits) if one.severity == "error"] == ["tpu-alone"]


def test_two_images_that_differ_are_two_warnings(tmp_path: Path) -> None:
    edits = {f"{P0}.containerSpec.imageUri": "trainer:2", f"{P1}.containerSpec.imageUri": "trainer:3"}
    assert names(found(tmp_path, edits)) == [
        ("image-differs", "workerPoolSpecs[0].containerSpec.imageUri"),
        ("image-differs", "workerPoolSpecs[1].containerSpec.imageUri"),
    ]


def test_our_image_pinned_by_digest_is_ours(tmp_path: Path) -> None:
    pinned = f"{SETTINGS.image.rpartition(':')[0]}@sha256:{'0' * 64}"
    edits = {f"{P0}.containerSpec.imageUri": pinned, f"{P1}.containerSpec.imageUri": pinned}
    assert found(tmp_path, edits) == []


@pytest.mark.parametrize("folder", ["gs://demo-data", "gs://demo-data/", "gs://demo-data/team/run"])
def test_any_folder_of_the_bucket_is_right(folder: str, tmp_path: Path) -> None:
    assert found(tmp_path, {"baseOutputDirectory.outputUriPrefix": folder}) == []


def test_the_account_of_vertex_toml_writes_to_a_tensorboard(tmp_path: Path) -> None:
    board = {"tensorboard": "projects/demo/locations/us-central1/tensorboards/1"}
    assert found(tmp_path, board, replace(SETTINGS, service_account="a@demo.iam.gserviceaccount.com")) == []


def test_a_machine_of_vertex_toml_is_known(tmp_path: Path) -> None:
    c3 = {"c3-standard-8": {"vcpus": 8, "memory_gb": 32, "gbps": 23}}
    assert found(tmp_path, alone({"machineType": "c3-standard-8"}), replace(SETTINGS, machines=c3)) == []


V100S: Part = {"machineType": "n1-highmem-96", "acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 8}
A100S: Part = {"machineType": "a2-megagpu-16g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 16}
TWO_V100: Part = {"machineType": "n1-standard-16", "acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 2}
FOUR_A100: Part = {"machineType": "a2-highgpu-4g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 4}


@pytest.mark.parametrize(
    ("machine", "count", "reducers"),
    [
        (V100S, 5, 16),  # the documentation's first example
        (A100S, 8, 25),  # and its second
        (V100S, 2, 6),  # samples: Horovod, a little below the documented rule and above the ring
        (TWO_V100, 3, 4),  # a notebook
        (FOUR_A100, 2, 4),  # another notebook
    ],
)
def test_the_published_sizings_pass(machine: Part, count: int, reducers: int, tmp_path: Path) -> None:
    edits = {**both(machine, reducers), f"{P1}.replicaCount": count - 1}
    # NCCL has changed since: from 2.12 on it passes reducers by where a machine has more than 8 GPUs.
    assert [one.code for one in found(tmp_path, edits)] == ["reducer-bypassed"] * (machine is A100S)


def test_the_flags_of_the_trainer_are_read_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    source = "class Other:\n    a: int\nclass Config:\n    steps: int = 5\n    data: str\n    rate: float = 2 * 3\n"
    source += "    size: Literal['a', 'b'] = 'a'\n    limit: float | None = None\n"
    (tmp_path / "trainer/config.py").write_text(source)
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    day = date(2026, 1, 1)
    flags = {"steps": 5, "data": None, "rate": None, "size": "a", "limit": None}
    values = {"steps": ("int",), "rate": ("float",), "size": ("a", "b"), "limit": ("float", "None")}
    project = training.project(tmp_path, day)
    assert replace(project, folder=None) == Project(day, flags, values, "FROM scratch\n", trains=True)


def test_the_strategies_of_the_trainer_are_the_modules_that_define_one(tmp_path: Path) -> None:
    folder = tmp_path / "trainer/parallel"
    (folder / "servers").mkdir(parents=True)
    source = 'class Config:\n    strategy: Annotated[str, module_in("parallel")] = "ddp"\n'
    (tmp_path / "trainer/config.py").write_text(source)
    (folder / "servers/__init__.py").write_text('"""Servers."""\n\nSTRATEGY = Servers()\n')
    (folder / "ddp.py").write_text('"""Copies."""\n\nSTRATEGY = Copies()\n')
    (folder / "mesh.py").write_text("def lay_out():\n    STRATEGY = None\n")
    assert training.project(tmp_path, date(2026, 1, 1)).values == {"strategy": ("ddp", "servers")}


def test_a_flag_of_another_strategy_is_told_as_the_trainer_tells_it(project: Path, tmp_path: Path) -> None:
    ours = training.project(project, date(2024, 1, 1))
    assert ours.takers["degree"] == ("fsdp", "pipeline", "tensor")
    assert ours.takers[training.ELASTIC] == ("elastic",)

    def faults(*flags: str) -> list[str]:
        edits = alone(CPU, **{"containerSpec.args": [*flags]})
        return [one.fault for one in found(tmp_path, edits, project=ours) if one.code.startswith("flag-")]

    assert faults("--degree", "2") == ["--strategy ddp doesn't support --degree (supported by fsdp, pipeline, tensor)"]
    foreign = ["--strategy pipeline doesn't support --no-reshard (supported by fsdp, tensor)"]
    assert faults("--strategy=pipeline", "--schedule", "gpipe", "--no-reshard") == foreign
    assert faults("--strategy", "fsdp", "--degree", "2", "--no-reshard", "--recompute") == []
    assert faults("--strategy", "$(STRATEGY)", "--degree", "2") == []  # nobody knows which
    assert faults("--strategy", "fsdp", "--degree", "two") == [
        '--degree is "two", which trainer/config.py doesn\'t accept'
    ]


def flags_of(folder: Path, **files: str) -> dict[str, object]:
    """The flags that are read from a trainer with these files."""
    (folder / "trainer").mkdir()
    for name, source in files.items():
        (folder / f"trainer/{name}.py").write_text(source)
    return {**training.project(folder, date(2026, 1, 1)).flags}


def test_flags_that_the_trainer_inherits_are_its_own(tmp_path: Path) -> None:
    config = "from trainer.sizes import Sizes\nclass Config(Sizes):\n    steps: int = 5\n"
    assert flags_of(tmp_path, config=config, sizes="class Sizes:\n    width: int = 7\n") == {"width": 7, "steps": 5}


@pytest.mark.parametrize("base", ["library.Base", "Config", "Sizes"])
def test_of_a_trainer_whose_flags_cannot_all_be_read_none_is_denied(base: str, tmp_path: Path) -> None:
    config = f"import library\nfrom library import Sizes\nclass Config({base}):\n    steps: int = 5\n"
    assert flags_of(tmp_path, config=config) == {}
    theirs = training.project(tmp_path, date(2024, 1, 1))
    assert found(tmp_path, told("--stepz", "1"), project=replace(PROJECT, flags=theirs.flags)) == []


def test_of_a_trainer_in_another_image_nothing_is_believed(tmp_path: Path) -> None:
    theirs = TASK | {"imageUri": "registry/theirs:1", "args": ["--stepz", "1", "--global-batch", "7"]}
    assert [one.code for one in found(tmp_path, alone(CPU, containerSpec=theirs))] == ["image-differs"]
    ours = theirs | {"imageUri": SETTINGS.image.replace(":1", ":2")}  # pushed since vertex.toml was written
    assert [one.code for one in found(tmp_path, alone(CPU, containerSpec=ours))] == ["image-differs", "flag-unknown"]


def test_where_no_trainer_lies_nothing_is_believed_of_one(tmp_path: Path) -> None:
    edits = alone(CPU, **{"containerSpec.args": ["--stepz", "1"]}) | {"scheduling.timeout": "60s"}
    assert found(tmp_path, edits, project=Project(date(2024, 1, 1))) == []


@pytest.mark.parametrize("edits", [{}, {"baseOutputDirectory.outputUriPrefix": "gs://theirs/run"}])
def test_what_nobody_said_is_held_against_no_job(edits: Edits, tmp_path: Path) -> None:
    assert found(tmp_path, edits, settings=Settings()) == []


def test_a_proposal_without_a_bucket_leaves_its_name_open(tmp_path: Path) -> None:
    (missing,) = found(tmp_path, {"baseOutputDirectory": GONE}, settings=Settings())
    assert missing.cure == "set it to gs://BUCKET/run"


def test_a_finding_names_the_flag_or_variable_that_it_compares_with(tmp_path: Path) -> None:
    ours = replace(SETTINGS, image="mine:1", bucket="mine", origins={"image": "--image", "bucket": "VERTEX_BUCKET"})
    said = [str(one) for one in found(tmp_path, alone(CPU), settings=ours)]
    assert any("isn't the image that --image specifies; use mine:1, or change the image" in one for one in said)
    assert any("isn't in the bucket that VERTEX_BUCKET specifies" in one for one in said)


def searched_for(metric: str, project: Project, folder: Path) -> list[str]:
    edits = {"studySpec.metrics.0.metricId": metric}
    return [str(one) for one in found(folder, edits, project=project, base=GOOD_TUNING) if "metric" in one.code]


def test_a_metric_that_the_trainer_reports_is_not_denied(tmp_path: Path, project: Path) -> None:
    ours = training.project(project, date(2024, 1, 1))
    assert searched_for("accuracy", ours, tmp_path) == searched_for("loss", ours, tmp_path) == []
    assert searched_for("f1", ours, tmp_path) == [
        'studySpec.metrics[0].metricId: the trainer doesn\'t report the metric "f1"; use accuracy or loss, or return'
        " the metric from metrics() in trainer/model.py"
    ]
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/model.py").write_text('def metrics(output): return {"perplexity": output}\n')
    theirs = training.project(tmp_path, date(2024, 1, 1))
    assert searched_for("perplexity", theirs, tmp_path) == []
    assert "use perplexity or loss, or return the" in searched_for("accuracy", theirs, tmp_path)[0]
    assert searched_for("f1", Project(), tmp_path) == []  # of a trainer that cannot be read, nothing is claimed


@pytest.mark.parametrize(
    ("returned", "metrics"),
    [
        ('return {"f1": a, "recall": {"b": c}}', ("f1", "recall", "loss")),
        ("return {}", ("loss",)),
        ('if a:\n        return {"f1": a}\n    return {"recall": b}', ("f1", "recall", "loss")),
        ('return {"f1": a, **others}', ()),
        ('return {"f1": a, NAME: b}', ()),
        ('return {"f1": a} | others', ()),
        ("return dict(f1=a)", ()),
        ("raise NotImplementedError", ()),
    ],
)
def test_metrics_are_known_if_their_names_stand_in_what_metrics_returns(
    returned: str, metrics: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/model.py").write_text(f"def metrics(output, batch):\n    {returned}\n")
    assert {*training.project(tmp_path, date(2026, 1, 1)).metrics} == {*metrics}


@pytest.mark.parametrize("source", ["", "class Config", "\0", "steps = 5"])
def test_a_trainer_that_cannot_be_read_has_no_flags(source: str, tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/config.py").write_text(source)
    assert training.project(tmp_path, date(2026, 1, 1)).flags == {}


def test_the_default_batch_is_the_trainers(tmp_path: Path) -> None:
    project = replace(PROJECT, flags={"steps": 600, "global_batch": 80})
    (finding,) = found(tmp_path, {}, project=project)
    assert (finding.code, finding.place) == ("batch-uneven", "workerPoolSpecs[0].containerSpec.args")


@pytest.mark.parametrize("flags", [("--strategy", "pipeline"), ("--strategy", "model_parallel")])
def test_gpus_that_share_one_model_need_no_sample_each(flags: tuple[str, str], tmp_path: Path) -> None:
    few, without_reducers = ("--global-batch", "12"), {P2: GONE}  # which serve no pipelines
    assert [one.code for one in found(tmp_path, told(*few) | without_reducers)] == ["batch-small"]
    assert found(tmp_path, told(*few, *flags) | without_reducers) == []


def test_the_flags_of_another_program_are_its_own_business(tmp_path: Path) -> None:
    program = {"command": ["python", "-m", "mine"], "args": ["--stepz", "1", "--global-batch", "7"]}
    assert found(tmp_path, {f"{P0}.containerSpec": TASK | program, f"{P1}.containerSpec": TASK | program}) == []


def test_a_flag_has_the_value_of_the_variable_that_it_names(tmp_path: Path) -> None:
    def steps(value: str) -> list[tuple[str, str]]:
        env = [{"name": "STEPS", "value": value}]
        return names(
            found(tmp_path, alone(CPU, **{"containerSpec.args": ["--steps=$(STEPS)"], "containerSpec.env": env}))
        )

    assert steps("5") == steps("$(CLOUD_ML_TRIAL_ID)") == []  # what only the service knows may be right
    assert steps("six") == [("flag-value", "workerPoolSpecs[0].containerSpec.args[0]")]


def test_what_is_wrong_in_the_model_leaves_the_flags_known(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/config.py").write_text("class Config:\n    steps: int = 1\n")
    (tmp_path / "trainer/model.py").write_text("def metrics(:\n")
    assert training.project(tmp_path, date(2026, 11, 1)).flags == {"steps": 1}


def test_a_machine_of_ones_own_may_have_several_counts_of_gpus(tmp_path: Path) -> None:
    g9 = {"vcpus": 8, "memory_gb": 32, "gbps": 16, "gpus": {"NVIDIA_L4": [1, 2]}}
    ours = replace(SETTINGS, machines={"g9-standard-8": g9})
    wrong = {"machineType": "g9-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 4}
    cures = [one.cure for one in found(tmp_path, alone(wrong), ours) if one.code == "accelerator-fit"]
    assert cures == [
        "for 4 x NVIDIA_L4, use g2-standard-48, or write acceleratorType: NVIDIA_L4 and acceleratorCount: 1 or 2"
    ]


def test_an_image_without_a_command_runs_what_vertex_toml_says(tmp_path: Path) -> None:
    container = {"imageUri": SETTINGS.image, "args": ["--stepz", "1"]}
    commands = {SETTINGS.image: ["python", "-m", "trainer.task"]}
    (finding,) = found(tmp_path, alone(CPU, containerSpec=container), replace(SETTINGS, commands=commands))
    assert finding.code == "flag-unknown"


def test_what_vertex_toml_says_that_an_image_runs_is_its_program_for_reducers_too(tmp_path: Path) -> None:
    commands = {SETTINGS.image: ["python", "-m", "mine", "--backend=gloo"]}
    bare = {f"{pool}.containerSpec.{key}": GONE for pool in (P0, P1) for key in ("command", "args")}
    assert [str(one) for one in found(tmp_path, bare, replace(SETTINGS, commands=commands))] == [
        f"workerPoolSpecs[{pool}].containerSpec: gloo isn't NCCL, which reducers require; use NCCL, or remove pool 2"
        for pool in (0, 1)
    ]


@pytest.mark.parametrize("batch", ["9" * 5000, "many", "-1", "1e3", ""])
def test_a_batch_that_is_no_number_is_for_the_trainer_to_refuse(batch: str, tmp_path: Path) -> None:
    assert found(tmp_path, told("--global-batch", batch)) == []


def test_the_flags_before_the_module_are_the_starters(tmp_path: Path) -> None:
    command = ["starter", "--processes", "8", "-m", "trainer.task", "--steps", "100"]
    assert found(tmp_path, {f"{P0}.containerSpec": TASK | {"command": command, "args": []}}) == []


@pytest.mark.parametrize("flag", ["--help", "--learning_rate=1", "--learning-rate=1", "--no-data"])
def test_flags_that_are_no_fields_are_known_too(flag: str, tmp_path: Path) -> None:
    assert found(tmp_path, told(flag)) == []


def test_the_two_trainers_of_one_job_may_come_from_a_package(tmp_path: Path) -> None:
    package = {"executorImageUri": PREBUILT, "packageUris": ["gs://b/c"], "pythonModule": "trainer.task"}
    pool = {"machineSpec": CPU, "replicaCount": 1, "pythonPackageSpec": package | {"args": ["--stepz=1"]}}
    (finding,) = found(tmp_path, {"workerPoolSpecs": [pool]})
    assert finding.place == "workerPoolSpecs[0].pythonPackageSpec.args[0]"


@pytest.mark.parametrize("code", [rule.code for rule in rules.OURS if rule.subject is not TuningJob])
@pytest.mark.parametrize("text", ["{}", "workerPoolSpecs: [{}, {replicaCount: 1}, {containerSpec: {}}]"])
def test_no_rule_stumbles_over_a_job_that_is_hardly_there(code: str, text: str) -> None:
    given = RuleContext(SETTINGS, CATALOG, PROJECT)
    found = RULES[code].findings(Job(Path("run.yaml"), "run", parse(text, "run.yaml")), given)
    assert all(finding.fault and finding.cure for finding in found)


@pytest.mark.parametrize("count", [0, -1, -(2**40)])
def test_a_batch_cannot_be_divided_among_fewer_than_one_gpu(count: int, tmp_path: Path) -> None:
    # The chief of parameter servers takes no part, so without workers nobody does.
    assert names(found(tmp_path, {P1: {}, P2: SERVERS} | {f"{P0}.containerSpec.args": ["--global-batch", "64"]})) == [
        ("pool-gap", "workerPoolSpecs[1]"),
    ]
    refused = names(found(tmp_path, {f"{P1}.replicaCount": count, P2: GONE} | told("--global-batch", "64")))
    assert refused == [("pool-replicas", "workerPoolSpecs[1].replicaCount")]


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (99, "workerPoolSpecs[0].containerSpec.args[50]: ... and 49 more; fix the findings above first"),
        (10_000, "workerPoolSpecs[0].containerSpec.args[50]: ... and at least 950 more; fix the findings above first"),
    ],
)
def test_of_each_kind_the_first_fifty_are_told_and_how_many_more_there_are(
    count: int, last: str, tmp_path: Path
) -> None:
    edits = alone(CPU, **{"containerSpec.args": [f"--odd-{number}" for number in range(count)]})
    told = found(tmp_path, edits | {"scheduling.timeout": "0s"})
    assert [(one.code, one.severity) for one in told] == [("flag-unknown", "warning")] * 51 + [
        ("timeout-zero", "warning")
    ]
    assert str(told[50]) == last


@pytest.mark.parametrize(("count", "told"), [(50, 50), (51, 51), (52, 51), (5000, 51)])
def test_what_was_cut_off_once_is_not_cut_off_again(count: int, told: int) -> None:
    once = [*first(Finding("", f"fault {number}", "mend it") for number in range(count))]
    assert len(once) == told
    assert [*first(once)] == once
    assert invalid(once).findings == tuple(once)  # so an answer tells as much as the command line


def test_pools_that_are_too_many_are_counted_and_not_judged(tmp_path: Path) -> None:
    pools = [*GOOD["workerPoolSpecs"], EVALUATOR, *[{"replicaCount": -1}] * 5000]
    (finding,) = found(tmp_path, {"workerPoolSpecs": pools})
    assert str(finding).startswith("workerPoolSpecs: Vertex AI accepts at most 4 pools, not 5004; ")


@pytest.mark.parametrize("trial_job", [CustomJobSpec(), CustomJobSpec(worker_pool_specs=[{}])])
def test_no_rule_stumbles_over_a_tuning_job_that_is_hardly_there(trial_job: CustomJobSpec) -> None:
    job = TuningJob(Path("run.yaml"), "run", HyperparameterTuningJob(trial_job_spec=trial_job))
    assert rules.findings(job, SETTINGS, PROJECT)


def test_what_is_wrong_with_a_trials_job_is_found_below_trial_job_spec(tmp_path: Path) -> None:
    edits = {"trialJobSpec.baseOutputDirectory.outputUriPrefix": "run"}
    (finding,) = found(tmp_path, edits, base=GOOD_TUNING)
    assert (finding.code, finding.place) == ("output-folder", "trialJobSpec.baseOutputDirectory.outputUriPrefix")
    assert finding.line > 1


def test_the_region_is_in_no_job_file(tmp_path: Path) -> None:
    edits = {"trialJobSpec.workerPoolSpecs": alone(CPU)["workerPoolSpecs"]}
    (finding,) = found(tmp_path, edits, replace(SETTINGS, region="mars"), base=GOOD_TUNING)
    assert (finding.place, finding.line) == ("region", 0)


def test_gpus_with_a_network_of_their_own_are_one_finding(tmp_path: Path) -> None:
    mixed = {**both(H100, 13), f"{P1}.machineSpec": A100}
    assert names(found(tmp_path, mixed)) == [("reducer-fabric", "workerPoolSpecs[2]")]


LINES = """\
workerPoolSpecs:
- &chief
  machineSpec:
    machineType: n1-standard-8
  replicaCount: 1
  containerSpec: {imageUri: trainer,
    args: [a,
      b]}
- <<: *chief
  replicaCount: 2
scheduling:
  restart_job_on_worker_restart: true
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("workerPoolSpecs", 1),
        ("workerPoolSpecs[0]", 2),
        ("workerPoolSpecs[0].machineSpec.machineType", 4),
        ("workerPoolSpecs[0].machineSpec.acceleratorType", 3),  # is not there: the line of what should have it
        ("workerPoolSpecs[0].containerSpec.args[1]", 8),
        ("workerPoolSpecs[1].replicaCount", 10),
        ("workerPoolSpecs[1].machineSpec", 3),  # merged in: where it was written
        ("workerPoolSpecs[4]", 1),
        ("scheduling.restartJobOnWorkerRestart", 12),
        ("region", 0),
    ],
)
def test_a_place_has_a_line(place: str, line: int) -> None:
    assert strict_yaml.line(strict_yaml.from_yaml(LINES), place) == line


def test_a_request_has_no_lines() -> None:
    document = strict_yaml.from_json('{"workerPoolSpecs": [{}]}')
    assert strict_yaml.line(document, "workerPoolSpecs[0]") == 0


def test_the_page_names_every_rule_with_its_sources() -> None:
    page = explain.page(CATALOG)
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == [*RULES]
    assert 'Vertex AI, "Distributed training"' in page
