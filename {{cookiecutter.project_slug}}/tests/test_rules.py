import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud.aiplatform_v1.types import CustomJobSpec, HyperparameterTuningJob

from launch import catalog
from launch.rules import RULES, Finding, Rule, findings
from launch.settings import Settings
from launch.spec import Job, TuningJob, parse

Part = Mapping[str, object]  # of a job, in the API's camelCase
Edits = dict[str, object]  # values by path, such as workerPoolSpecs.0.replicaCount

CATALOG = catalog.standard()
SETTINGS = Settings("demo", "us-central1", "demo-data", "us-central1-docker.pkg.dev/demo/training/trainer:1")
REDUCER_IMAGE = CATALOG.reduction_server_image("us-central1")
A100 = {"machineType": "a2-highgpu-8g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 8}
H100 = {"machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8}
ONE_L4 = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
CPU = {"machineType": "n1-standard-8"}
TASK = {"imageUri": SETTINGS.image, "args": ["--steps", "100"], "env": [{"name": "SEED", "value": "7"}]}
CHIEF = {"machineSpec": A100, "replicaCount": 1, "containerSpec": TASK}

# Four machines of 100 Gbps and as many reducers as these need: nothing to find.
GOOD = {
    "workerPoolSpecs": [
        CHIEF,
        CHIEF | {"replicaCount": 3},
        {
            "machineSpec": {"machineType": "n1-highcpu-16"},
            "replicaCount": 13,
            "containerSpec": {"imageUri": REDUCER_IMAGE},
        },
    ],
    "scheduling": {"timeout": "3600s", "strategy": "STANDARD"},
    "baseOutputDirectory": {"outputUriPrefix": "gs://demo-data/run"},
}
TPU = {
    "machineSpec": {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"},
    "replicaCount": 1,
    "containerSpec": TASK,
}
GONE = object()


def edited(edits: Mapping[str, object]) -> Job:
    """The good job with values set, or removed."""
    document = json.loads(json.dumps(GOOD))  # a copy in which no two pools share a part
    for path, value in edits.items():
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        place = document
        for key in keys:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        if value is GONE:
            del place[last]
        else:
            place[last] = value
    return Job(Path("jobs/run.yaml"), "run", parse(json.dumps(document), "jobs/run.yaml"))


def chief(machine: Part, **more: object) -> Edits:
    """Edits for a job of one pool with one machine."""
    pool = {"machineSpec": machine, "replicaCount": 1, "containerSpec": TASK}
    return {"workerPoolSpecs": [pool], **{f"workerPoolSpecs.0.{path}": value for path, value in more.items()}}


def both(machine: Part, reducers: int = 1) -> Edits:
    """Edits for a chief and a worker of one type, with reducers."""
    return {
        "workerPoolSpecs.0.machineSpec": machine,
        "workerPoolSpecs.1.machineSpec": machine,
        "workerPoolSpecs.1.replicaCount": 1,
        "workerPoolSpecs.2.replicaCount": reducers,
    }


P0, P1, P2 = "workerPoolSpecs.0", "workerPoolSpecs.1", "workerPoolSpecs.2"
PREBUILT = {"executorImageUri": "a", "packageUris": ["gs://b/c"], "pythonModule": "trainer.task"}

# The code, the edits of the good job, and words of the only finding.
Row = tuple[str, Edits, list[str]]
ERRORS: list[Row] = [
    (
        "chief-count",
        {f"{P0}.replicaCount": 3, P2: GONE},
        ["workerPoolSpecs[0].replicaCount", "not 3", "set it to 1"],
    ),
    ("chief-count", {f"{P0}.replicaCount": GONE}, ["must be 1", "not 0"]),
    ("chief-count", {P0: {}}, ["workerPoolSpecs[0]", "missing or empty"]),
    ("chief-count", {"workerPoolSpecs": []}, ["workerPoolSpecs[0]", "missing or empty"]),
    ("pool-count", {"workerPoolSpecs": [CHIEF] * 5}, ["has 5 pools", "takes 4"]),
    (
        "pool-machine",
        chief(CPU, machineSpec=GONE),
        ["workerPoolSpecs[0].machineSpec.machineType: is missing"],
    ),
    ("pool-replicas", {f"{P1}.replicaCount": 0, P2: GONE}, ["workerPoolSpecs[1].replicaCount: is 0"]),
    ("pool-replicas", {f"{P1}.replicaCount": -1, P2: GONE}, ["workerPoolSpecs[1].replicaCount: is -1"]),
    ("pool-task", chief(CPU, containerSpec=GONE), ["workerPoolSpecs[0]", "nothing to run", "containerSpec"]),
    ("pool-task", chief(CPU, containerSpec={}), ["workerPoolSpecs[0].containerSpec: imageUri is missing"]),
    (
        "pool-task",
        chief(CPU, containerSpec=GONE, pythonPackageSpec={**PREBUILT, "pythonModule": ""}),
        ["workerPoolSpecs[0].pythonPackageSpec: pythonModule is missing"],
    ),
    (
        "machine-unknown",
        chief({"machineType": "n1-standard-5"}),
        ['"n1-standard-5"', f"{len(CATALOG.machines)} types", "did you mean n1-standard-"],
    ),
    ("machine-unknown", {f"{P1}.machineSpec.machineType": "a2-megagpu-8g"}, ["did you mean a2-megagpu-16g?"]),
    ("machine-unknown", chief({"machineType": "mainframe"}), ["launch/machines.yaml"]),
    (
        "accelerator-fit",
        {f"{P1}.machineSpec": {"machineType": "a2-highgpu-8g"}},
        ["must state", "acceleratorType: NVIDIA_TESLA_A100 and acceleratorCount: 8"],
    ),
    (
        "accelerator-fit",
        {f"{P1}.machineSpec.acceleratorCount": 4},
        ["a2-highgpu-8g cannot have 4 x", "acceleratorCount: 8"],
    ),
    ("accelerator-fit", {f"{P1}.machineSpec.acceleratorCount": GONE}, ["cannot have 0 x NVIDIA_TESLA_A100"]),
    (
        "accelerator-fit",
        {f"{P1}.machineSpec.acceleratorType": GONE},
        ["cannot have 8 x (no acceleratorType)"],
    ),
    (
        "accelerator-fit",
        chief({**ONE_L4, "machineType": "e2-standard-8"}),
        ["e2-standard-8 cannot", "remove"],
    ),
    (
        "accelerator-fit",
        chief({"machineType": "n1-standard-32", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}),
        ["2/4 x NVIDIA_TESLA_T4 or 4/8 x NVIDIA_TESLA_V100"],
    ),
    (
        "accelerator-fit",
        chief({"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_K80", "acceleratorCount": 1}),
        ["NVIDIA_TESLA_K80", "no machine type offers it any more"],
    ),
    ("tpu-alone", {"workerPoolSpecs": [TPU, CHIEF]}, ["one pool with one replica"]),
    ("tpu-topology", chief({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "3x3"}), ['"3x3"', "2x2, 2x4"]),
    ("reducer-pool", {f"{P1}.containerSpec.imageUri": REDUCER_IMAGE}, ["workerPoolSpecs[1]", "pool 2 only"]),
    (
        "reducer-accelerator",
        {f"{P2}.machineSpec": {**ONE_L4, "machineType": "g2-standard-16"}},
        ["workerPoolSpecs[2]", "remove"],
    ),
    (
        "reducer-command",
        {f"{P2}.containerSpec.command": ["sh"]},
        ["workerPoolSpecs[2]", "remove command and args"],
    ),
    ("reducer-command", {f"{P2}.containerSpec.args": ["--fast"]}, ["a command of its own"]),
    ("reducer-workers", both(CPU), ["two or more machines with GPUs", "have 0"]),
    ("reducer-workers", {f"{P1}.machineSpec": CPU}, ["two or more machines with GPUs", "have 1"]),
    (
        "flex-start-machines",
        {"scheduling.strategy": "FLEX_START"},
        ["same machines", "remove the reducers", "SPOT"],
    ),
    (
        "flex-start-machines",
        {
            "scheduling.strategy": "FLEX_START",
            P2: {"machineSpec": CPU, "replicaCount": 1, "containerSpec": TASK},
        },
        ["make every machineSpec the same"],
    ),
    ("timeout", {"scheduling.timeout": "0s"}, ["scheduling.timeout", "no time"]),
    (
        "timeout",
        chief(A100) | {"scheduling": {"strategy": "FLEX_START", "timeout": "604801s"}},
        ["7 days", "604800s"],
    ),
    ("disk-size", {f"{P0}.diskSpec": {"bootDiskSizeGb": 50}}, ["50 GB", "100 to 64000"]),
    ("disk-size", {f"{P0}.diskSpec": {"bootDiskSizeGb": 64001}}, ["64001 GB", "100 to 64000"]),
    ("disk-type", {f"{P0}.diskSpec": {"bootDiskType": "pd_ssd"}}, ['"pd_ssd"', "did you mean pd-ssd?"]),
    (
        "env-count",
        {f"{P0}.containerSpec.env": [{"name": f"V{index}", "value": "x"} for index in range(101)]},
        ["workerPoolSpecs[0].containerSpec.env", "101", "100"],
    ),
    (
        "env-repeated",
        {f"{P0}.containerSpec.env": [{"name": "SEED", "value": "1"}, {"name": "SEED", "value": "2"}]},
        ["SEED is set 2 times"],
    ),
    (
        "output-folder",
        {"baseOutputDirectory.outputUriPrefix": "/gcs/run"},
        ['"/gcs/run"', "gs://demo-data/run"],
    ),
]
WARNINGS: list[Row] = [
    (
        "pool-empty",
        {P1: {}, P2: {"machineSpec": CPU, "replicaCount": 1, "containerSpec": TASK}},
        ["workerPoolSpecs[1]", "gcloud"],
    ),
    ("pool-empty", {P2: {}}, ["workerPoolSpecs[2]", "no pool follows", "remove"]),
    (
        "accelerator-retired",
        chief({**ONE_L4, "machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_P100"}),
        ["NVIDIA_TESLA_P100", "2026-09-15"],
    ),
    ("reducer-gain", both(ONE_L4), ["two machines with one GPU each", "remove pool 2"]),
    (
        "reducer-image",
        {f"{P2}.containerSpec.imageUri": CATALOG.reduction_server_image("asia-east1")},
        ["asia-docker.pkg.dev", REDUCER_IMAGE],
    ),
    ("reducer-count", {f"{P2}.replicaCount": 12}, ["12 x 32 Gbps", "400 Gbps", "set it to 13"]),
    ("flex-start-accelerator", chief(CPU) | {"scheduling.strategy": "FLEX_START"}, ["NVIDIA_L4", "SPOT"]),
    ("strategy-deprecated", {"scheduling.strategy": "LOW_COST"}, ["LOW_COST", "write SPOT"]),
    ("strategy-deprecated", {"scheduling.strategy": "ON_DEMAND"}, ["ON_DEMAND", "write STANDARD"]),
    ("output-missing", {"baseOutputDirectory": GONE}, ["kept", "set it to gs://demo-data/run"]),
    (
        "image-differs",
        {f"{P0}.containerSpec.imageUri": "trainer:2", f"{P1}.containerSpec.imageUri": "trainer:2"},
        ["workerPoolSpecs[0].containerSpec.imageUri", '"trainer:2"', f"write {SETTINGS.image} here", "vertex.toml"],
    ),
    ("image-differs", {f"{P1}.containerSpec.imageUri": f"{SETTINGS.image}0"}, ["workerPoolSpecs[1].containerSpec"]),
    (
        "bucket-differs",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo/run"},
        ["baseOutputDirectory.outputUriPrefix", '"gs://demo/run"', "gs://demo-data/ here", "vertex.toml"],
    ),
    ("bucket-differs", {"baseOutputDirectory.outputUriPrefix": "gs://demo-data-2"}, ['"gs://demo-data-2"']),
]
IDS = [f"{code}: {words[0]}" for code, _, words in ERRORS + WARNINGS]
ROWS = [(*row, "error") for row in ERRORS] + [(*row, "warning") for row in WARNINGS]


def test_a_good_job_has_no_findings() -> None:
    assert findings(edited({}), SETTINGS) == []


@pytest.mark.parametrize(("code", "edits", "words", "severity"), ROWS, ids=IDS)
def test_one_mistake_is_one_finding(code: str, edits: Edits, words: list[str], severity: str) -> None:
    (finding,) = findings(edited(edits), SETTINGS)
    assert (finding.code, finding.severity) == (code, severity)
    assert [word for word in words if word not in str(finding)] == []


def test_a_finding_reads_as_place_fault_and_cure() -> None:
    finding = Finding("chief-count", "workerPoolSpecs[0]", "must be 1, not 3", "move them to pool 1")
    assert str(finding) == "workerPoolSpecs[0]: must be 1, not 3; move them to pool 1"


def test_all_findings_come_at_once() -> None:
    edits = {f"{P0}.replicaCount": 2, f"{P2}.replicaCount": 1, "baseOutputDirectory": GONE}
    codes = [finding.code for finding in findings(edited(edits), SETTINGS)]
    assert codes == ["chief-count", "reducer-count", "output-missing"]


def test_a_gpu_that_the_region_lacks_is_an_error_for_each_pool_with_it() -> None:
    region = replace(SETTINGS, region="us-west2")
    found = findings(edited({}), region)
    assert [(finding.code, finding.place) for finding in found] == [
        ("region-accelerator", "workerPoolSpecs[0].machineSpec"),
        ("region-accelerator", "workerPoolSpecs[1].machineSpec"),
    ]
    assert "europe-west4" in found[0].cure


def test_machines_without_accelerators_run_in_regions_the_catalog_does_not_know() -> None:
    assert findings(edited(chief(CPU)), replace(SETTINGS, region="europe-west9")) == []


def test_a_region_that_cannot_be_one_is_an_error_and_a_near_one_offered() -> None:
    (finding,) = findings(edited(chief(CPU)), replace(SETTINGS, region="us-central"))
    assert (finding.code, finding.cure) == ("region-name", "did you mean us-central1?")


def test_reducers_from_the_registry_of_the_region_are_right() -> None:
    job = edited({f"{P2}.containerSpec.imageUri": CATALOG.reduction_server_image("europe-west4")})
    assert findings(job, replace(SETTINGS, region="europe-west4")) == []


def test_a_mirror_of_the_reduction_server_may_be_anywhere() -> None:
    mirror = "us-central1-docker.pkg.dev/demo/mirror/reductionserver:latest"
    assert findings(edited({f"{P2}.containerSpec.imageUri": mirror}), SETTINGS) == []


def test_gpus_with_a_network_of_their_own_make_reducers_doubtful() -> None:
    found = findings(edited(both(H100, reducers=13)), SETTINGS)
    assert [(finding.code, finding.severity) for finding in found] == [("reducer-fabric", "warning")] * 2


def test_pool_2_may_hold_parameter_servers() -> None:
    job = edited({P2: {"machineSpec": CPU, "replicaCount": 2, "containerSpec": TASK}})
    assert findings(job, SETTINGS) == []


def test_two_images_that_differ_are_two_warnings() -> None:
    edits = {f"{P0}.containerSpec.imageUri": "trainer:2", f"{P1}.containerSpec.imageUri": "trainer:3"}
    found = findings(edited(edits), SETTINGS)
    assert [(finding.code, finding.place) for finding in found] == [
        ("image-differs", "workerPoolSpecs[0].containerSpec.imageUri"),
        ("image-differs", "workerPoolSpecs[1].containerSpec.imageUri"),
    ]


def test_our_image_pinned_by_digest_is_ours() -> None:
    pinned = f"{SETTINGS.image.rpartition(':')[0]}@sha256:{'0' * 64}"
    job = edited({f"{P0}.containerSpec.imageUri": pinned, f"{P1}.containerSpec.imageUri": pinned})
    assert findings(job, SETTINGS) == []


@pytest.mark.parametrize("folder", ["gs://demo-data", "gs://demo-data/", "gs://demo-data/team/run"])
def test_any_folder_of_the_bucket_is_right(folder: str) -> None:
    assert findings(edited({"baseOutputDirectory.outputUriPrefix": folder}), SETTINGS) == []


def test_a_python_package_and_a_tpu_are_jobs_too() -> None:
    tpu = {"machineType": "cloud-tpu", "acceleratorType": "TPU_V3", "acceleratorCount": 8}
    job = edited(chief(tpu, containerSpec=GONE, pythonPackageSpec=PREBUILT))
    assert findings(job, SETTINGS) == []


def test_flex_start_takes_one_kind_of_machine_for_a_week() -> None:
    edits = {P2: GONE, "scheduling": {"strategy": "FLEX_START", "timeout": "604800s"}}
    assert findings(edited(edits), SETTINGS) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("text", ["{}", "workerPoolSpecs: [{}, {replicaCount: 1}, {containerSpec: {}}]"])
def test_no_rule_stumbles_over_a_job_that_is_hardly_there(rule: Rule, text: str) -> None:
    found = list(rule(Job(Path("run.yaml"), "run", parse(text, "run.yaml")), SETTINGS))
    assert all(isinstance(finding, Finding) for finding in found)


STUDY = {
    "metrics": [{"metric_id": "accuracy"}],
    "parameters": [{"parameter_id": "learning_rate", "double_value_spec": {"min_value": 0.1, "max_value": 1}}],
}


def tuning(trial_job: CustomJobSpec, study: Mapping[str, object], trial_count: int = 4) -> TuningJob:
    spec = HyperparameterTuningJob(
        max_trial_count=trial_count, parallel_trial_count=1, study_spec=study, trial_job_spec=trial_job
    )
    return TuningJob(Path("jobs/tuning.yaml"), "tuning", spec)


def test_there_is_nothing_to_find_in_a_good_tuning_job() -> None:
    assert findings(tuning(edited({}).spec, STUDY), SETTINGS) == []


def test_what_is_wrong_with_a_trials_job_is_found_below_trial_job_spec() -> None:
    job = tuning(edited({"baseOutputDirectory.outputUriPrefix": "run"}).spec, STUDY)
    (finding,) = findings(job, SETTINGS)
    assert (finding.code, finding.place) == ("output-folder", "trialJobSpec.baseOutputDirectory.outputUriPrefix")


def test_the_region_is_in_no_job_file() -> None:
    job = tuning(edited(chief(CPU)).spec, STUDY)
    assert [finding.place for finding in findings(job, replace(SETTINGS, region="mars"))] == ["region"]


def test_what_is_wrong_with_a_study_comes_first_and_as_an_error() -> None:
    trial_job = edited({"baseOutputDirectory.outputUriPrefix": "run"}).spec
    found = findings(tuning(trial_job, STUDY | {"parameters": []}, trial_count=0), SETTINGS)
    assert [(finding.place, finding.severity) for finding in found] == [
        ("maxTrialCount", "error"),
        ("studySpec.parameters", "error"),
        ("trialJobSpec.baseOutputDirectory.outputUriPrefix", "error"),
    ]
    assert found[1].cure == "add one"


def test_a_metric_that_the_trainer_does_not_report_is_doubtful() -> None:
    job = tuning(edited({}).spec, STUDY | {"metrics": [{"metric_id": "loss"}, {"metric_id": "f1"}]})
    (finding,) = findings(job, SETTINGS)
    assert (finding.code, finding.severity) == ("metric-unknown", "warning")
    assert str(finding).startswith('studySpec.metrics[1].metricId: "f1" is nothing that trainer/telemetry.py reports')


@pytest.mark.parametrize("trial_job", [CustomJobSpec(), CustomJobSpec(worker_pool_specs=[{}])])
def test_no_rule_stumbles_over_a_tuning_job_that_is_hardly_there(trial_job: CustomJobSpec) -> None:
    assert findings(tuning(trial_job, {}), SETTINGS)
