"""For every rule a job that trips it alone, and a neighbor, as near as can be, that trips none."""

import atexit
import fcntl
import json
import re
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import IO, Any

import yaml

from tests.conftest import ROOT
from vertex_launch.facts import catalog
from vertex_launch.job import lease
from vertex_launch.rules import Project
from vertex_launch.settings import Settings


def held(output: Path) -> IO[bytes]:
    """Hold the lease of an output folder, as job 17, while the file that is returned is open."""
    claim = output / lease.FOLDER / "17.json"
    claim.parent.mkdir(parents=True)
    claim.touch()
    file = claim.open("rb")
    fcntl.flock(file, fcntl.LOCK_EX)
    words = {"job": "17", "host": "HOST", "since": "2026-11-27T08:31:02+00:00", "lock": lease.machine(file)}
    claim.write_text(json.dumps(words))
    atexit.register(shutil.rmtree, BUCKETS)
    return file


Part = dict[str, Any]  # of a job, in the API's camelCase
Edits = dict[str, Any]  # values by path, such as workerPoolSpecs.0.replicaCount

CATALOG = catalog.standard()
SETTINGS = Settings("demo", "us-central1", "demo-data", "us-central1-docker.pkg.dev/demo/training/trainer:1")
# A day on which all of Google's training images were there.
PROJECT = Project(
    date(2024, 1, 1),
    {
        "steps": 600,
        "learning_rate": 0.002,
        "global_batch": None,
        "data": "digits",
        "size": "tiny",
        "rollcall_timeout": None,
        "anyway": False,
        "strategy": "ddp",
        "min_replicas": 1,
    },
    {
        "strategy": ("ddp", "elastic", "model_parallel", "pipeline"),
        "steps": ("int",),
        "learning_rate": ("float",),
        "size": ("tiny", "small"),
        "anyway": ("bool",),
    },
    'LABEL reduction-server="google-reduction-server"\nLABEL cuda="12.6"\n',
    {"min_replicas": ("elastic",)},
    metrics=("accuracy", "loss"),
    trains=True,
)
# The same beside the scripts of benchmarks/rivals, of which the image gets trainer/ alone, and where the trainer is.
BESIDE = replace(PROJECT, folder=ROOT / "benchmarks/rivals", dockerfile="COPY trainer trainer\n")
WITH_LAUNCHER = replace(PROJECT, folder=ROOT / "{{cookiecutter.project_slug}}/frameworks/pytorch/parts")
BUCKETS = Path(tempfile.mkdtemp())
OTHERS = re.compile(r"[yYnN]|[-+]?[0-9.]+[eE][-+]?[0-9]+")
# A script beside requirements that do not bring what it imports.
BESIDE_LIGHTNING = BUCKETS / "script"
INSTALLS = f"FROM python:3.13\n{PROJECT.dockerfile}COPY . .\nRUN pip install -r requirements.txt\n"
BESIDE_LIGHTNING.mkdir()
(BESIDE_LIGHTNING / "lit.py").write_text("import os\n\nimport lightning\n")
(BESIDE_LIGHTNING / "requirements.txt").write_text("numpy==2.4.6\n")
(BESIDE_LIGHTNING / "half").mkdir()
(BESIDE_LIGHTNING / "half/train.py").write_text("import half.model\n")
(BESIDE_LIGHTNING / "half/model.py").write_text("\nprint(\n")
LEASE = held(BUCKETS / "demo-data/busy")  # while this process lives
REDUCER_IMAGE = CATALOG.reduction_server_image("us-central1")
PREBUILT = f"{CATALOG.prebuilt_registries[0]}/sklearn-cpu.1-6:latest"
A100: Part = {"machineType": "a2-highgpu-8g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 8}
H100: Part = {"machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8}
H200: Part = {"machineType": "a3-ultragpu-8g", "acceleratorType": "NVIDIA_H200_141GB", "acceleratorCount": 8}
ONE_L4: Part = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
ONE_V100: Part = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 1}
TWO_L4: Part = {"machineType": "g2-standard-24", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 2}
CPU: Part = {"machineType": "n1-standard-8"}
TPU: Part = {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"}
TASK: Part = {
    "imageUri": SETTINGS.image,
    "command": ["python", "-m", "trainer.task"],
    "args": ["--steps", "100"],
    "env": [{"name": "SEED", "value": "7"}],
}
PACKAGE: Part = {
    "executorImageUri": PREBUILT,
    "packageUris": ["gs://demo-data/trainer.tar.gz"],
    "pythonModule": "trainer.task",
}
CHIEF: Part = {"machineSpec": A100, "replicaCount": 1, "containerSpec": TASK}
SERVERS: Part = {"machineSpec": CPU, "replicaCount": 2, "containerSpec": TASK}
EVALUATOR: Part = SERVERS | {"replicaCount": 1}
REDUCERS: Part = {
    "machineSpec": {"machineType": "n1-highcpu-16"},
    "replicaCount": 13,
    "containerSpec": {"imageUri": REDUCER_IMAGE},
}

# Four machines of 100 Gbps and as many reducers as these need: nothing to find.
GOOD: Part = {
    "workerPoolSpecs": [CHIEF, CHIEF | {"replicaCount": 3}, REDUCERS],
    "scheduling": {"timeout": "3600s", "strategy": "STANDARD", "restartJobOnWorkerRestart": True},
    "baseOutputDirectory": {"outputUriPrefix": "gs://demo-data/run"},
}
RATE: Part = {"parameterId": "learning_rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}
# A parameter with a child, under names that the trainer of PROJECT has.
OPTIMIZER: Part = {"parameterId": "size", "categoricalValueSpec": {"values": ["tiny", "small"]}}
BETA: Part = {"parameterId": "data", "doubleValueSpec": {"minValue": 0.8, "maxValue": 0.99}}
WITH_ADAM: Part = {"parentCategoricalValues": {"values": ["tiny"]}, "parameterSpec": BETA}
BELOW_ITSELF: Part = {"parameterSpec": {"parameterId": "data"}}
GOOD_TUNING: Part = {
    "maxTrialCount": 6,
    "parallelTrialCount": 2,
    "studySpec": {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}], "parameters": [RATE]},
    "trialJobSpec": GOOD | {"workerPoolSpecs": GOOD["workerPoolSpecs"][:2]},
}
GONE = object()

P0, P1, P2 = "workerPoolSpecs.0", "workerPoolSpecs.1", "workerPoolSpecs.2"
T0, T1 = f"trialJobSpec.{P0}", f"trialJobSpec.{P1}"


@dataclass(frozen=True)
class Case:
    """What trips a rule, what does not, and words of the finding; settings and project are those of the former."""

    code: str
    wrong: Edits
    right: Edits
    words: tuple[str, ...]
    settings: Settings = SETTINGS
    project: Project = PROJECT
    base: Part = field(default_factory=lambda: GOOD)


def edited(edits: Edits, base: Part = GOOD) -> dict[str, Any]:
    """The good job with values set, or removed."""
    document: dict[str, Any] = _copy(base)
    for path, value in edits.items():
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        place: Any = document
        for key in keys:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        if value is GONE:
            del place[last]
        else:
            place[last] = _copy(value)
    return document


def _copy(value: Any) -> Any:
    """One in which no two pools share a part."""
    return json.loads(json.dumps(value))


class Dumper(yaml.SafeDumper):
    """Quotes text that gcloud would take for a boolean or a number, and PyYAML writes as it is."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if OTHERS.fullmatch(text) else None)


Dumper.add_representer(str, Dumper.represent_str)


def write(folder: Path, document: Any) -> Path:
    """The document as a job file."""
    path = folder / "run.yaml"
    path.write_text(yaml.dump(_copy(document), Dumper=Dumper, sort_keys=False), encoding="utf-8")
    return path


def started(*words: str) -> Edits:
    """Edits for pools 0 and 1 with this program and nothing behind it."""
    return {
        f"{pool}.containerSpec.{key}": value for pool in (P0, P1) for key, value in (("command", words), ("args", []))
    }


def alone(machine: Part, **more: Any) -> Edits:
    """Edits for a job of one pool with one machine."""
    pool = {"machineSpec": machine, "replicaCount": 1, "containerSpec": TASK}
    return {"workerPoolSpecs": [pool], **{f"{P0}.{path}": value for path, value in more.items()}}


def evaluated(**more: Any) -> Edits:
    """Edits for a fourth pool, of evaluators."""
    return {"workerPoolSpecs": [*GOOD["workerPoolSpecs"], EVALUATOR | more]}


def both(machine: Part, reducers: int = 1) -> Edits:
    """Edits for a chief and a worker of one type, with reducers."""
    return {
        f"{P0}.machineSpec": machine,
        f"{P1}.machineSpec": machine,
        f"{P1}.replicaCount": 1,
        f"{P2}.replicaCount": reducers,
    }


def packaged(**more: Any) -> Edits:
    """Edits for a job that installs a Python package."""
    return alone(CPU, containerSpec=GONE, pythonPackageSpec=PACKAGE | more)


def env(*names: str) -> Edits:
    return {f"{P0}.containerSpec.env": [{"name": name, "value": "x"} for name in names]}


def mounted(**more: Any) -> Edits:
    """Edits for a job that mounts a share of NFS."""
    return {f"{P0}.nfsMounts": [SHARE | more], **NETWORK}


def peered(**more: Any) -> Edits:
    """Edits for a job with a network attachment whose DNS is peered."""
    config = {"networkAttachment": "ours", "dnsPeeringConfigs": [PEERING | more]}
    return {"pscInterfaceConfig": config}


def tuning(code: str, wrong: Edits, right: Edits, *words: str) -> Case:
    return Case(code, wrong, right, words, base=GOOD_TUNING)


def told(*flags: str) -> Edits:
    """Edits for flags of the trainer in both pools."""
    return {f"{P0}.containerSpec.args": [*flags], f"{P1}.containerSpec.args": [*flags]}


def registry(name: str) -> str:
    return f"{CATALOG.prebuilt_registries[0]}/{name}"


FLEX: Part = {"strategy": "FLEX_START", "timeout": "604800s", "restartJobOnWorkerRestart": True}
BOARD = "projects/demo/locations/us-central1/tensorboards/1"
ACCOUNT: Part = {"serviceAccount": "trainer@demo.iam.gserviceaccount.com"}
RESERVATION: Part = {
    "reservationAffinityType": "SPECIFIC_RESERVATION",
    "key": "compute.googleapis.com/reservation-name",
    "values": ["projects/demo/zones/us-central1-a/reservations/ours"],
}
RESERVED: Part = {"reservationAffinity": RESERVATION}
NETWORK: Part = {"network": "projects/4711/global/networks/ours"}
SHARE: Part = {"server": "10.0.0.2", "path": "/share", "mountPoint": "data"}
CONTEXTS = "projects/demo/locations/us-central1/metadataStores/default/contexts"
PEERING: Part = {"domain": "ours.example.", "targetProject": "demo", "targetNetwork": "ours"}
KMS = "projects/demo/locations/us-central1/keyRings/ours/cryptoKeys/training"
SAFETY: Part = {"metricId": "accuracy", "goal": "MAXIMIZE", "safetyConfig": {"safetyThreshold": 0.5}}
NO_REDUCERS: Part = {P2: GONE}
TOLD = ("--nproc-per-node=8", "--nnodes=$(WORLD_SIZE)", "--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)")
ACCELERATE = ("--num_machines=$(WORLD_SIZE)", "--machine_rank=$(RANK)", "--main_process_ip=$(MASTER_ADDR)")

CASES = [
    # the form
    Case("form", {f"{P0}.containerSpec.args": ["--steps", 100]}, {}, ("args[1]", "100 is a number", 'quote it: "100"')),
    Case("form", {f"{P0}.machineSpec.machinType": "x"}, {}, ("machinType", "did you mean machineType?")),
    tuning(
        "form",
        {
            "studySpec.parameters": [
                RATE | {"conditionalParameterSpecs": [{"parentDiscreteValues": {"values": ["adam"]}}]}
            ]
        },
        {},
        'parentDiscreteValues.values[0]: must be a number, not "adam"',
        "for text, use parentCategoricalValues under the parameter that has these values",
    ),
    tuning(
        "form",
        {"studySpec.parameters": [{"parameterId": "size", "discreteValueSpec": {"values": ["adam"]}}]},
        {},
        "use a categoricalValueSpec for text",
    ),
    # pools
    Case("chief-count", {f"{P0}.replicaCount": 3, **NO_REDUCERS}, NO_REDUCERS, ("not 3", "set it to 1")),
    Case("chief-count", {f"{P0}.replicaCount": GONE}, {}, ("must be 1", "not 0")),
    Case("chief-count", {"workerPoolSpecs": []}, {}, ("workerPoolSpecs[0]", "missing or empty")),
    Case(
        "pool-count",
        {"workerPoolSpecs": [CHIEF, CHIEF, SERVERS, EVALUATOR, EVALUATOR]},
        {"workerPoolSpecs": [CHIEF, CHIEF, SERVERS, EVALUATOR]},
        ("at most 4 pools", "not 5"),
    ),
    Case("pool-gap", {P1: {}, P2: SERVERS}, {P2: SERVERS}, ("workerPoolSpecs[1]", "but gcloud doesn't")),
    Case("pool-trailing", {P2: {}}, NO_REDUCERS, ("workerPoolSpecs[2]", "isn't followed by", "remove")),
    Case("pool-replicas", {f"{P1}.replicaCount": 0, **NO_REDUCERS}, NO_REDUCERS, ("workerPoolSpecs[1]", "is 0")),
    Case("pool-replicas", {f"{P1}.replicaCount": -1, **NO_REDUCERS}, NO_REDUCERS, ("is -1",)),
    Case("pool-machine", alone(CPU, machineSpec=GONE), alone(CPU), ("machineSpec.machineType", "is missing")),
    Case("pool-task", alone(CPU, containerSpec=GONE), alone(CPU), ("doesn't specify a program", "containerSpec")),
    Case("task-field", alone(CPU, containerSpec={}), alone(CPU), ("containerSpec: imageUri is missing",)),
    Case("task-field", packaged(pythonModule=""), packaged(), ("pythonPackageSpec: pythonModule is missing",)),
    # machines
    Case(
        "machine-unknown",
        alone({"machineType": "n1-standard-5"}),
        alone({"machineType": "n1-standard-4"}),
        (
            '"n1-standard-5"',
            f"{len(CATALOG.machines)} machine types",
            "n1-standard-4, n1-standard-8. If",
            "[machines.n1-standard-5]",
        ),
    ),
    Case(
        "machine-unknown",
        {f"{P1}.machineSpec.machineType": "a2-megagpu-8g"},
        {},
        ("use one of a2-highgpu-8g, a2-megagpu-16g, a2-ultragpu-8g.",),
    ),
    Case(
        "machine-unknown",
        alone({"machineType": "mainframe"}),
        alone(CPU),
        ("use one such as n1-standard-4",),
    ),
    Case(
        "machine-unknown",
        alone(CPU | {"machineType": "c3-standard-8"}),
        alone(CPU),
        ('"c3-standard-8" isn\'t one of', "n2-standard-8, n4-standard-8, c2-standard-8."),
    ),
    Case(
        "accelerator-fit",
        {f"{P1}.machineSpec": {"machineType": "a2-highgpu-8g"}},
        {},
        ("doesn't specify them", "acceleratorType: NVIDIA_TESLA_A100 and acceleratorCount: 8"),
    ),
    Case(
        "accelerator-fit",
        {f"{P1}.machineSpec.acceleratorCount": 4},
        {},
        ("a2-highgpu-8g doesn't support 4 x", "for 4 x NVIDIA_TESLA_A100, use a2-highgpu-4g, or write"),
    ),
    Case(
        "accelerator-fit", {f"{P1}.machineSpec.acceleratorCount": GONE}, {}, ("doesn't support 0 x NVIDIA_TESLA_A100",)
    ),
    Case("accelerator-fit", {f"{P1}.machineSpec.acceleratorType": GONE}, {}, ("8 x (no acceleratorType)",)),
    Case(
        "accelerator-fit",
        alone(ONE_L4 | {"machineType": "e2-standard-8"}),
        alone(ONE_L4),
        ("doesn't support", "remove"),
    ),
    Case(
        "accelerator-fit",
        alone(ONE_L4 | {"machineType": "n1-standard-8"}),
        alone(ONE_L4),
        ("for 1 x NVIDIA_L4, use one of g2-standard-4, g2-standard-8, ", "or use 1/2/4 x NVIDIA_TESLA_P4"),
    ),
    Case(
        "accelerator-fit",
        {f"{P1}.machineSpec": ONE_L4 | {"machineType": "a2-highgpu-8g", "acceleratorCount": 3}},
        {},
        ("for NVIDIA_L4, use one of g2-standard-4, ", "or write acceleratorType: NVIDIA_TESLA_A100"),
    ),
    Case("accelerator-fit", alone(ONE_L4 | TPU), alone(TPU), ("ct5lp-hightpu-1t doesn't support 1 x NVIDIA_L4",)),
    Case(
        "accelerator-fit",
        alone({"machineType": "n1-standard-32", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}),
        alone({"machineType": "n1-standard-32", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}),
        ("2/4 x NVIDIA_TESLA_T4 or 4/8 x NVIDIA_TESLA_V100",),
    ),
    Case(
        "accelerator-fit",
        alone({"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_K80", "acceleratorCount": 1}),
        alone({"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}),
        ("NVIDIA_TESLA_K80", "no machine type offers it anymore"),
    ),
    Case(
        "accelerator-retired",
        alone({"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_P100", "acceleratorCount": 1}),
        alone({"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 1}),
        ("NVIDIA_TESLA_P100", "2026-09-15"),
    ),
    Case(
        "gpu-partition",
        alone(ONE_L4 | {"gpuPartitionSize": "10gb"}),
        alone(ONE_L4 | {"gpuPartitionSize": "1g.10gb"}),
        ('"10gb" isn\'t a valid partition size', "1g.10gb"),
    ),
    Case(
        "gpu-partition",
        {f"{P0}.machineSpec": A100 | {"gpuPartitionSize": "1g.5gb"}},
        {},
        ("machineSpec.acceleratorCount: a partitioned GPU doesn't support an acceleratorCount of 8", "set it to 1"),
    ),
    Case(
        "tpu-alone",
        {"workerPoolSpecs": [CHIEF | {"machineSpec": TPU}, SERVERS]},
        alone(TPU),
        ("one pool with one replica", "larger tpuTopology"),
    ),
    Case(
        "tpu-topology",
        alone({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "3x3"}),
        alone({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}),
        ('"3x3"', "2x2, 2x4"),
    ),
    Case(
        "disk-size",
        {f"{P0}.diskSpec": {"bootDiskSizeGb": 99}},
        {f"{P0}.diskSpec": {"bootDiskSizeGb": 100}},
        ("99 GB", "100 to 64000"),
    ),
    Case(
        "disk-size",
        {f"{P0}.diskSpec": {"bootDiskSizeGb": 64_001}},
        {f"{P0}.diskSpec": {"bootDiskSizeGb": 64_000}},
        ("64001 GB",),
    ),
    Case(
        "disk-type",
        {f"{P0}.diskSpec": {"bootDiskType": "pd_ssd"}},
        {f"{P0}.diskSpec": {"bootDiskType": "pd-ssd"}},
        ('"pd_ssd"', "did you mean pd-ssd?"),
    ),
    # region and output
    Case(
        "region-name",
        alone(CPU),
        alone(CPU),
        ("region: ", '"us-central"', "did you mean us-central1?"),
        settings=replace(SETTINGS, region="us-central"),
    ),
    Case(
        "region-words",
        alone(CPU),
        alone(CPU),
        ("region: ", '"us-centrl1" from vertex.toml isn\'t a known region', "did you mean us-central1?"),
        settings=replace(SETTINGS, region="us-centrl1"),
    ),
    Case(
        "region-words",
        alone(CPU),
        alone(CPU),
        ("region: ", '"eu" from vertex.toml is a multi-region', "they might not run jobs"),
        settings=replace(SETTINGS, region="eu"),
    ),
    Case(
        "region-accelerator",
        alone(A100),
        alone(A100),
        ("us-west2 doesn't offer NVIDIA_TESLA_A100", "europe-west4"),
        settings=replace(SETTINGS, region="us-west2"),
    ),
    Case(
        "region-accelerator",
        alone(TPU),
        alone(TPU),
        ("europe-west4 doesn't offer TPU_V5E", "us-central1"),
        settings=replace(SETTINGS, region="europe-west4"),
    ),
    Case("output-missing", {"baseOutputDirectory": GONE}, {}, ("the model are lost", "set it to gs://demo-data/run")),
    Case(
        "output-shared",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data/run/"},
        {},
        ("outputUriPrefix: jobs/first.yaml has the same output folder", "its own folder"),
        project=replace(PROJECT, outputs={"gs://demo-data/run": "jobs/first.yaml"}),
    ),
    Case(
        "output-in-use",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data/busy"},
        {},
        ("/busy/checkpoints has been in use by job 17 on HOST since 2026-11-27 08:31 UTC", "until that job ends"),
        project=replace(PROJECT, buckets=BUCKETS),
    ),
    Case(
        "output-folder", {"baseOutputDirectory.outputUriPrefix": "/gcs/run"}, {}, ('"/gcs/run"', "gs://demo-data/run")
    ),
    Case(
        "output-folder",
        {"baseOutputDirectory.outputUriPrefix": "gs://.uploads/run"},
        {},
        ('"gs://.uploads/run"', "doesn't begin with a valid bucket name"),
    ),
    Case(
        "output-folder",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data/../run"},
        {},
        ('"gs://demo-data/../run"', "a path segment that isn't a filename"),
    ),
    Case(
        "output-folder",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data/run\n"},
        {},
        ('"gs://demo-data/run\\n"', "contains a NUL character or a line break"),
    ),
    Case(
        "gcs-mount",
        alone(H200, **{"containerSpec.args": ["--data=/gcs/b/shards"]}),
        alone(A100, **{"containerSpec.args": ["--data=/gcs/b/shards"]}),
        ("machineSpec.machineType: /gcs might be missing on a3-ultragpu-8g", "an unconfirmed report from 2026-01-29"),
    ),
    Case(
        "bucket-differs",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data-2"},
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data"},
        ('"gs://demo-data-2"', "use a folder in gs://demo-data/", "vertex.toml"),
    ),
    Case(
        "tensorboard-account",
        {"tensorboard": BOARD},
        ACCOUNT | {"tensorboard": BOARD},
        ("TensorBoard requires a service account",),
    ),
    Case(
        "tensorboard-name", ACCOUNT | {"tensorboard": "1"}, ACCOUNT | {"tensorboard": BOARD}, ('"1"', "tensorboards/ID")
    ),
    Case(
        "tensorboard-region",
        ACCOUNT | {"tensorboard": BOARD.replace("us-central1", "us-west1")},
        ACCOUNT | {"tensorboard": BOARD},
        ("is in us-west1", "use a TensorBoard in us-central1"),
    ),
    # names of resources
    Case(
        "resource-name",
        {"network": "default"},
        NETWORK,
        ('network: "default"', "write projects/NUMBER/global/networks/NETWORK, with the project number"),
    ),
    Case("resource-name", {"network": "projects/demo/global/networks/ours"}, NETWORK, ("instead of the project ID",)),
    Case("resource-name", {"experiment": "ours"}, {"experiment": f"{CONTEXTS}/ours"}, ("/contexts/EXPERIMENT",)),
    Case("resource-name", {"experimentRun": "1"}, {"experimentRun": f"{CONTEXTS}/ours-1"}, ("/EXPERIMENT-RUN",)),
    Case(
        "resource-name",
        {"models": ["ours"]},
        {"models": ["projects/demo/locations/us-central1/models/ours@2"]},
        ('models[0]: "ours"', "/models/MODEL"),
    ),
    Case(
        "account-name",
        {"serviceAccount": "not-an-account"},
        ACCOUNT,
        ('"not-an-account"', "write NAME@demo.iam.gserviceaccount.com"),
    ),
    Case("account-name", {"serviceAccount": "jane@example.com"}, ACCOUNT, ('"jane@example.com"',)),
    Case(
        "persistent-name",
        {"persistentResourceId": "projects/demo/locations/us-central1/persistentResources/ours-1"},
        {"persistentResourceId": "ours-1"},
        ("isn't the ID of a persistent resource", "write ours-1"),
    ),
    Case("persistent-name", {"persistentResourceId": "Ours"}, {"persistentResourceId": "ours"}, ('"Ours"',)),
    Case(
        "artifact-location",
        {"protectedArtifactLocationId": "us"},
        {"protectedArtifactLocationId": "us-west1"},
        ('"us" isn\'t a region',),
    ),
    Case(
        "artifact-location",
        {"protectedArtifactLocationId": "us-central1"},
        {"protectedArtifactLocationId": "us-west1"},
        ("the job's own region", "remove the field"),
    ),
    tuning(
        "key-name",
        {"encryptionSpec": {"kmsKeyName": "training"}},
        {"encryptionSpec": {"kmsKeyName": KMS}},
        '"training"',
        "/keyRings/RING/cryptoKeys/KEY",
    ),
    tuning(
        "key-region",
        {"encryptionSpec": {"kmsKeyName": KMS.replace("us-central1", "europe-west4")}},
        {"encryptionSpec": {"kmsKeyName": KMS}},
        "the key is in europe-west4, but the tuning job is in us-central1",
    ),
    # network
    Case(
        "mount-field", mounted(server=""), mounted(), ("workerPoolSpecs[0].nfsMounts[0].server: is missing", "add it")
    ),
    Case(
        "mount-field",
        {f"{P0}.lustreMounts": [{"instanceIp": "10.0.0.2", "volumeHandle": "x", "filesystem": "fs"}]},
        {
            f"{P0}.lustreMounts": [
                {"instanceIp": "10.0.0.2", "volumeHandle": "x", "filesystem": "fs", "mountPoint": "data"}
            ]
        },
        ("lustreMounts[0].mountPoint: is missing",),
    ),
    Case("mount-path", mounted(path="share"), mounted(), ('nfsMounts[0].path: "share"', "write /share")),
    Case("mount-path", mounted(server="nas.ours"), mounted(server="10.1.2.3"), ('"nas.ours" isn\'t an IP address',)),
    Case(
        "mount-point",
        mounted(mountPoint="/data"),
        mounted(mountPoint="/mnt/nfs/data"),
        ('nfsMounts[0].mountPoint: "/data" isn\'t a folder in /mnt/nfs/', "which becomes the folder /mnt/nfs/data"),
    ),
    Case(
        "mount-network",
        {f"{P0}.nfsMounts": [SHARE]},
        {f"{P0}.nfsMounts": [SHARE], "pscInterfaceConfig": {"networkAttachment": "ours"}},
        ("workerPoolSpecs[0].nfsMounts", "the job doesn't specify one", "pscInterfaceConfig"),
    ),
    Case("ip-ranges", {"reservedIpRanges": ["ours"]}, {"reservedIpRanges": ["ours"], **NETWORK}, ("add network",)),
    Case(
        "dns-peering",
        peered(domain="ours.example"),
        peered(),
        ("pscInterfaceConfig.dnsPeeringConfigs[0].domain", "doesn't end with a dot", "write ours.example."),
    ),
    Case("dns-peering", peered(targetProject=""), peered(), ("dnsPeeringConfigs[0].targetProject: is missing",)),
    # reducers
    Case(
        "reducer-pool", {f"{P1}.containerSpec": REDUCERS["containerSpec"], **NO_REDUCERS}, {}, ("must run in pool 2",)
    ),
    Case(
        "reducer-image",
        {f"{P2}.containerSpec.imageUri": REDUCER_IMAGE.replace("reductionserver", "reduction-server")},
        {},
        ("there is no", f"did you mean {REDUCER_IMAGE}?"),
    ),
    Case(
        "reducer-region",
        {f"{P2}.containerSpec.imageUri": CATALOG.reduction_server_image("asia-east1")},
        {},
        ("asia-docker.pkg.dev", REDUCER_IMAGE),
    ),
    Case(
        "reducer-accelerator",
        {f"{P2}.machineSpec": ONE_L4 | {"machineType": "g2-standard-16"}},
        {},
        ("workerPoolSpecs[2]", "remove"),
    ),
    Case("reducer-command", {f"{P2}.containerSpec.command": ["sh"]}, {}, ("remove command and args",)),
    Case("reducer-command", {f"{P2}.containerSpec.args": ["--fast"]}, {}, ("its own command",)),
    Case(
        "reducer-gpus", {f"{P1}.machineSpec": CPU}, {}, ("workerPoolSpecs[1].machineSpec", "reducers serve only GPUs")
    ),
    Case(
        "reducer-backend",
        {f"{P0}.containerSpec.command": ["python", "train.py", "--backend=gloo"]},
        {f"{P0}.containerSpec.command": ["python", "train.py", "--backend=nccl"]},
        ("containerSpec.command[2]", "gloo isn't NCCL"),
    ),
    Case(
        "reducer-backend",
        {f"{P0}.containerSpec.command": ["python", "train.py", "--strategy", "parameter_server"]},
        {f"{P0}.containerSpec.command": ["python", "train.py", "--strategy", "mirrored"]},
        ("parameter_server isn't NCCL",),
    ),
    Case(
        "reducer-backend",
        {f"{P0}.containerSpec.env": [{"name": "BACKEND", "value": "gloo"}]},
        {f"{P0}.containerSpec.env": [{"name": "BACKEND", "value": "nccl"}]},
        ("env[0].value",),
    ),
    Case(
        "reducer-backend",
        {f"{P0}.containerSpec.command": ["python", "train.py", "--strategy", "hsdp"]},
        {f"{P0}.containerSpec.command": ["python", "train.py", "--strategy", "ddp"]},
        ("containerSpec.command[2]", "hsdp doesn't all-reduce gradients across all GPUs", "keep the whole model"),
    ),
    Case("reducer-machines", {P1: {}}, {f"{P1}.replicaCount": 1}, ("workerPoolSpecs[2]", "two or more machines")),
    Case("reducer-gain", both(ONE_L4), both(TWO_L4, 2), ("two single-GPU machines", "remove pool 2")),
    Case(
        "reducer-count",
        {f"{P2}.replicaCount": 6},
        {f"{P2}.replicaCount": 7},
        ("6 x 32 Gbps aren't enough for the 400 Gbps", "faster without reducers", "set it to 13"),
    ),
    Case(
        "reducer-fabric",
        both(H100, 13),
        both(A100, 7),
        ("workerPoolSpecs[2]", "a3-highgpu-8g use their own 800 Gbps network", "reducers cost $8.47 per hour"),
    ),
    Case(
        "reducer-bypassed",
        both({"machineType": "a3-highgpu-4g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 4}, 7),
        both(A100, 7),
        ("workerPoolSpecs[2]", "an a3-highgpu-4g has its own network plug-in", "remove pool 2"),
    ),
    Case(
        "reducer-bypassed",
        both({"machineType": "a2-megagpu-16g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 16}, 7),
        both(A100, 7),
        ("with at most 8 GPUs, but an a2-megagpu-16g has 16. The unused reducers cost $", "such as a2-highgpu-8g"),
    ),
    Case(
        "reducer-plugin",
        {},
        {},
        ("doesn't contain a LABEL that lists google-reduction-server",),
        project=replace(PROJECT, dockerfile="FROM scratch\n"),
    ),
    Case(
        "reducer-plugin",
        {f"{pool}.containerSpec.imageUri": registry("pytorch-tpu.2-0:latest") for pool in (P0, P1)},
        {},
        ("pytorch-tpu.2-0 doesn't contain the reducer plug-in",),
    ),
    # scheduling
    Case("timeout-missing", {"scheduling.timeout": GONE}, {}, ("seven days", "3600s")),
    Case("timeout-zero", {"scheduling.timeout": "0s"}, {"scheduling.timeout": "600s"}, ("the job can't run",)),
    Case(
        "timeout-short",
        {"scheduling.timeout": "599s"},
        {"scheduling.timeout": "600s"},
        ("scheduling.timeout", "599 s", "set it to 600s or more"),
    ),
    Case(
        "timeout-short",
        alone(A100, **{"containerSpec.args": ["--rollcall-timeout", "1800"]}) | {"scheduling.timeout": "900s"},
        alone(A100, **{"containerSpec.args": ["--rollcall-timeout=60"]}) | {"scheduling.timeout": "300s"},
        ("scheduling.timeout", "900 s", "set it to 1800s or more"),
    ),
    Case(
        "flex-start-timeout",
        alone(A100) | {"scheduling": FLEX | {"timeout": "604801s"}},
        alone(A100) | {"scheduling": FLEX},
        ("7 days", "604800s"),
    ),
    Case(
        "flex-start-machines",
        {"scheduling": FLEX},
        {"scheduling": FLEX, **NO_REDUCERS},
        ("same machines", "remove the reducers", "SPOT"),
    ),
    Case(
        "flex-start-machines",
        {"scheduling": FLEX, P2: SERVERS},
        {"scheduling": FLEX, P2: SERVERS | {"machineSpec": A100}},
        ("write the same machineSpec in every pool",),
    ),
    Case(
        "flex-start-accelerator",
        alone(CPU) | {"scheduling": FLEX},
        alone(ONE_L4) | {"scheduling": FLEX},
        ("NVIDIA_L4", "SPOT"),
    ),
    Case(
        "flex-start-reservation",
        alone(A100 | RESERVED) | {"scheduling": FLEX},
        alone(A100 | RESERVED),
        ("reservationAffinity", "remove the reservation"),
    ),
    Case(
        "persistent-reservation",
        alone(A100 | RESERVED) | {"persistentResourceId": "ours"},
        alone(A100 | RESERVED),
        ("reservationAffinity", "remove the reservation"),
    ),
    Case(
        "persistent-strategy",
        {"persistentResourceId": "ours", "scheduling.strategy": "SPOT"},
        {"persistentResourceId": "ours"},
        ("scheduling.strategy: SPOT", "remove the strategy"),
    ),
    Case(
        "wait-unread",
        {"scheduling.maxWaitDuration": "3600s"},
        alone(A100) | {"scheduling": FLEX | {"maxWaitDuration": "3600s"}},
        ("scheduling.maxWaitDuration", "this job uses STANDARD", "remove the field, or use FLEX_START"),
    ),
    Case(
        "reservation-field",
        alone(A100 | {"reservationAffinity": {"reservationAffinityType": "SPECIFIC_RESERVATION"}}),
        alone(A100 | RESERVED),
        ("machineSpec.reservationAffinity: doesn't specify a reservation", "compute.googleapis.com/reservation-name"),
    ),
    Case(
        "reservation-field",
        alone(A100 | {"reservationAffinity": {"key": "compute.googleapis.com/reservation-name"}}),
        alone(A100 | {"reservationAffinity": {}}),
        ("reservationAffinityType: is missing", "write NO_RESERVATION,"),
    ),
    Case("strategy-deprecated", {"scheduling.strategy": "LOW_COST"}, {"scheduling.strategy": "SPOT"}, ("write SPOT",)),
    Case("strategy-deprecated", {"scheduling.strategy": "ON_DEMAND"}, {}, ("write STANDARD",)),
    Case(
        "spot-output",
        {"scheduling.strategy": "SPOT", "baseOutputDirectory": GONE},
        {"scheduling.strategy": "SPOT"},
        ("restarts from its first step", "gs://demo-data/run"),
    ),
    Case(
        "restart-alone",
        {"scheduling.restartJobOnWorkerRestart": GONE},
        {"scheduling.restartJobOnWorkerRestart": GONE, P2: SERVERS},
        ("if one replica fails", "set it to true"),
    ),
    Case(
        "restart-alone",
        {"scheduling.restartJobOnWorkerRestart": False, **told("--strategy", "ddp")},
        {"scheduling.restartJobOnWorkerRestart": False, **told("--strategy", "elastic")},
        ("if one replica fails", "set it to true"),
    ),
    Case(
        "restart-elastic",
        told("--strategy", "elastic"),
        {"scheduling.restartJobOnWorkerRestart": GONE, **told("--strategy", "elastic")},
        ("if one replica is lost, all replicas restart", "set it to false"),
    ),
    Case(
        "restart-elastic",
        {"scheduling": {"timeout": "3600s", "disableRetries": True}, **told("--strategy", "elastic")},
        {"scheduling": {"timeout": "3600s", "disableRetries": True}, **told("--strategy", "ddp")},
        ("scheduling.disableRetries", "a lost replica never returns"),
    ),
    Case(
        "spot-elastic",
        {"scheduling": {"timeout": "3600s", "strategy": "SPOT"}, **told("--strategy=elastic")},
        {"scheduling": {"timeout": "3600s"}, **told("--strategy=elastic")},
        ("scheduling.strategy", "the service restarts all replicas"),
    ),
    Case(
        "restart-overridden",
        {"scheduling.disableRetries": True},
        {"scheduling.disableRetries": True, "scheduling.restartJobOnWorkerRestart": GONE},
        ("scheduling.disableRetries", "keep only one"),
    ),
    # containers
    Case(
        "image-name",
        alone(CPU, **{"containerSpec.imageUri": "my image!"}),
        alone(CPU),
        ('imageUri: "my image!" isn\'t a valid image name', "in lowercase"),
    ),
    Case(
        "image-name",
        alone(CPU, **{"containerSpec.imageUri": "us-docker.pkg.dev/<project-id>/training/${IMAGE}:1"}),
        alone(CPU),
        ("replace <project-id> with its value",),
    ),
    Case("image-name", packaged(executorImageUri="https://gcr.io/ours/image:1"), packaged(), ("executorImageUri",)),
    Case(
        "package-address",
        packaged(packageUris=["dist/trainer.tar.gz"]),
        packaged(),
        ('packageUris[0]: "dist/trainer.tar.gz"', "gs://BUCKET/NAME"),
    ),
    Case(
        "module-name", packaged(pythonModule="trainer/task.py"), packaged(), ('"trainer/task.py"', "write trainer.task")
    ),
    Case(
        "env-apostrophe",
        {f"{P0}.containerSpec.env": [{"name": "TAGS", "value": "['nightly']"}]},
        {f"{P0}.containerSpec.env": [{"name": "TAGS", "value": r"[\'nightly\', \"a\"]"}]},
        ("env[0].value: Vertex AI rejects values with an apostrophe", "double quotes"),
    ),
    Case(
        "placeholder",
        {f"{P0}.containerSpec.env": [{"name": "KEY", "value": "${WANDB_API_KEY}"}]},
        {f"{P0}.containerSpec.env": [{"name": "KEY", "value": "$(WANDB_API_KEY)"}]},
        ("env[0].value: ${WANDB_API_KEY} is a placeholder that Vertex AI doesn't replace", "or $(WANDB_API_KEY)"),
    ),
    Case(
        "placeholder",
        {"baseOutputDirectory.outputUriPrefix": "gs://demo-data/YOUR_RUN"},
        {},
        ("outputUriPrefix: YOUR_RUN is a placeholder", "write its value"),
    ),
    Case(
        "placeholder",
        {f"{P0}.containerSpec.command": ["bash", "-c", "cd /app && python train.py --epochs={{ epochs }}"]},
        {f"{P0}.containerSpec.command": ["bash", "-c", "sed 's/{{ epochs }}/3/' a.yaml > b.yaml && python train.py"]},
        ("containerSpec.command[2]: {{ epochs }} is a placeholder",),
    ),
    Case(
        "placeholder",
        told("--data", "{data_path}"),
        told("--data", "{split}"),
        ("args[1]: {data_path} is a placeholder",),
    ),
    Case(
        "placeholder-engine",
        told("--data", "{{$.inputs.parameters['data']}}"),
        told("--data", '{"a": {"b": 1}}'),
        ("args[1]: {{$.inputs.parameters['data']}} is a template placeholder", "write its value"),
    ),
    Case(
        "placeholder-engine",
        {f"{P0}.containerSpec.env": [{"name": "TAG", "value": "${{ github.sha }}"}]},
        {f"{P0}.containerSpec.env": [{"name": "TAG", "value": "d{2}"}]},
        ("env[0].value: ${{ github.sha }}",),
    ),
    Case(
        "image-differs",
        {f"{P0}.containerSpec.imageUri": "trainer:2", f"{P1}.containerSpec.imageUri": "trainer:2"},
        {},
        ("workerPoolSpecs[0].containerSpec.imageUri", '"trainer:2"', f"use {SETTINGS.image}, or"),
    ),
    Case(
        "image-tag", {P2: SERVERS | {"containerSpec": {"imageUri": "registry/ps"}}}, {P2: SERVERS}, ("latest", "digest")
    ),
    Case(
        "image-tag",
        {P2: SERVERS | {"containerSpec": {"imageUri": "registry:80/ps:latest"}}},
        {P2: SERVERS | {"containerSpec": {"imageUri": f"registry:80/ps@sha256:{'0' * 64}"}}},
        ("workerPoolSpecs[2].containerSpec.imageUri",),
    ),
    Case(
        "image-cuda",
        alone(ONE_V100),
        alone(ONE_V100),
        (
            "workerPoolSpecs[0].containerSpec.imageUri",
            "with CUDA 13.0",
            "doesn't support NVIDIA_TESLA_V100",
            "12.6",
        ),
        project=replace(PROJECT, dockerfile=PROJECT.dockerfile.replace("12.6", "13.0")),
    ),
    Case(
        "image-purpose",
        alone(ONE_L4, **{"containerSpec.imageUri": f"{SETTINGS.image}-cpu"}),
        alone(CPU, **{"containerSpec.imageUri": f"{SETTINGS.image}-cpu"}),
        ("workerPoolSpecs[0].containerSpec.imageUri", "doesn't contain CUDA", f"use {SETTINGS.image}"),
    ),
    Case(
        "image-purpose",
        alone(ONE_L4, **{"containerSpec.imageUri": registry("pytorch-xla.2-4.py310:latest")}),
        alone(CPU, **{"containerSpec.imageUri": registry("pytorch-xla.2-4.py310:latest")}),
        ("the machine has GPUs, but this image doesn't contain CUDA", "use a GPU image"),
    ),
    Case(
        "image-purpose",
        alone(CPU, **{"containerSpec.imageUri": registry("tf-gpu.2-17.py310:latest")}),
        alone(ONE_L4, **{"containerSpec.imageUri": registry("tf-gpu.2-17.py310:latest")}),
        ("this image is for GPUs, but the machine doesn't have any", "use an image for CPUs"),
    ),
    Case(
        "image-purpose",
        {P2: SERVERS | {"containerSpec": {"imageUri": "europe-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:1"}}},
        {P2: SERVERS},
        ("workerPoolSpecs[2].containerSpec.imageUri", "is for prediction", "use a training image"),
    ),
    Case(
        "image-file",
        alone(CPU, **{"containerSpec.command": ["python", "with_accelerate.py"]}),
        alone(CPU),
        ("containerSpec.command[1]", "doesn't copy with_accelerate.py", "COPY with_accelerate.py with_accelerate.py"),
        project=BESIDE,
    ),
    Case(
        "image-syntax",
        alone(CPU, **{"containerSpec.command": ["python", "-m", "half.train"]}),
        alone(CPU, **{"containerSpec.command": ["python", "lit.py"]}),
        ("command[2]: half/model.py isn't valid Python 3.", "'(' was never closed (line 2); correct half/model.py"),
        project=replace(PROJECT, folder=BESIDE_LIGHTNING, dockerfile="COPY . .\n"),
    ),
    Case(
        "image-import",
        alone(CPU, **{"containerSpec.command": ["python", "lit.py"]}),
        alone(CPU, **{"containerSpec.command": ["python", "elsewhere.py"]}),
        ("command[1]: lit.py imports lightning, but the Dockerfile", "add lightning to requirements.txt"),
        project=replace(PROJECT, folder=BESIDE_LIGHTNING, dockerfile=INSTALLS),
    ),
    Case(
        "image-version",
        alone(CPU, **{"containerSpec.imageUri": registry("tf-cpu.2-17.py310:latest")}),
        alone(CPU, **{"containerSpec.imageUri": registry("tf-cpu.2-17.py310:latest")}),
        (
            "workerPoolSpecs[0].containerSpec.imageUri",
            "the image has tensorflow 2.17, according to its name",
            "run with 2.21.0",
            "tensorflow==2.17.*",
        ),
        project=replace(PROJECT, versions={"tensorflow": "2.21.0"}),
    ),
    Case(
        "prebuilt-unknown",
        alone(CPU, **{"containerSpec.imageUri": registry("sklearn-cpu.1-7:latest")}),
        alone(CPU, **{"containerSpec.imageUri": PREBUILT}),
        ('"sklearn-cpu.1-7"', "use one of sklearn-cpu.1-6"),
    ),
    Case(
        "prebuilt-unknown",
        alone(CPU, **{"containerSpec.imageUri": registry("scikit-learn-cpu.1-6:latest")}),
        alone(CPU, **{"containerSpec.imageUri": PREBUILT}),
        ("did you mean sklearn-cpu.1-6:latest? This image reached its end of availability on 2026-07-11, so build",),
        project=replace(PROJECT, today=date(2026, 7, 12)),
    ),
    Case(
        "prebuilt-ended",
        packaged(),
        packaged(),
        ("this image reached its end of availability on 2026-07-11", "your own image"),
        project=replace(PROJECT, today=date(2026, 7, 12)),
    ),
    Case(
        "prebuilt-tag",
        packaged(executorImageUri=registry("sklearn-cpu.1-6:20250101")),
        packaged(),
        ('only the tag "latest"', PREBUILT),
    ),
    Case("executor-foreign", packaged(executorImageUri="registry/mine:1"), packaged(), ('"registry/mine:1"',)),
    Case("package-count", packaged(packageUris=["gs://b/c"] * 101), packaged(packageUris=["gs://b/c"] * 100), ("101",)),
    Case("env-count", env(*(f"V{i}" for i in range(101))), env(*(f"V{i}" for i in range(100))), ("101", "100")),
    Case("env-name", env("MY-SEED"), env("MY_SEED"), ('"MY-SEED"', "write MY_SEED")),
    Case("env-name", env("7TH"), env("_7TH"), ("env[0].name", "write _7TH")),
    Case(
        "env-service",
        env("AIP_MODEL_DIR"),
        env("NODE_RANK"),
        ("env[0].name: Vertex AI also sets AIP_MODEL_DIR", "use a different name"),
    ),
    Case("env-service", env("RANK"), alone(CPU) | env("RANK"), ("Vertex AI also sets RANK",)),
    Case("env-repeated", env("SEED", "SEED"), env("SEED", "SEED_2"), ("SEED is set 2 times",)),
    Case(
        "command-letters",
        {f"{P0}.containerSpec.command": [*"python -m trainer.task"]},
        {f"{P0}.containerSpec.command": ["python", "-m", "trainer.task"]},
        (
            "containerSpec.command",
            'the string "python -m trainer.task"',
            'pass a list: ["python", "-m", "trainer.task"]',
        ),
    ),
    Case("command-letters", packaged(args=[*"--epochs=5"]), packaged(args=["1", "2", "3", "4"]), ('["--epochs=5"]',)),
    Case(
        "env-unset",
        alone(CPU, **{"containerSpec.args": ["--steps", "$(RANK)"]}),
        told("--steps", "$(RANK)"),
        ("containerSpec.args[1]", "$(RANK) isn't replaced", "write 0, or"),
    ),
    Case(
        "launcher-machines",
        started("torchrun", "--nproc-per-node=8", "train.py", "--epochs", "3"),
        started("torchrun", *TOLD, "train.py"),
        (
            "containerSpec.command[0]: torchrun isn't configured for the other machines",
            f"write torchrun {' '.join(TOLD)} --master-port=",
        ),
    ),
    Case(
        "launcher-machines",
        started("torchrun", *TOLD, "-m", "mine.train", "--epochs", "3"),
        started("python", "-m", "trainer.cluster.run", "-m", "mine.train", "--epochs", "3"),
        ("exits with code 1", "write python -m trainer.cluster.run -m mine.train --epochs 3"),
        project=WITH_LAUNCHER,
    ),
    Case(
        "launcher-machines",
        started("deepspeed", "--hostfile=hosts", "train.py"),
        {f"{P0}.containerSpec.command": ["deepspeed", "--hostfile=hosts", "train.py"], f"{P0}.containerSpec.args": []},
        ("deepspeed starts processes on other machines over SSH", "write torchrun --nproc-per-node=8"),
    ),
    *(
        Case("launcher-options", started("torchrun", *wrong, "train.py"), started("torchrun", *TOLD, "train.py"), words)
        for wrong, words in (
            (("--nnodes=2", *TOLD[:1], *TOLD[2:]), ("--nnodes is 2, but pools 0 and 1 have 4", "write --nnodes=$(W")),
            (("--nnodes=1:4", *TOLD[:1], *TOLD[2:]), ("is 1:4, so the job can start without late machines",)),
            (("--nproc-per-node=4", *TOLD[1:]), ("--nproc-per-node is 4, but the machine has 8 GPUs",)),
            (("--node-rank=0", *TOLD[:2], *TOLD[3:]), ("--node-rank is 0 on 4 machines", "write --node-rank=$(RANK)")),
            (
                ("--master-addr=localhost", *TOLD[:3]),
                ("localhost, which is each machine's own address", "=$(MASTER_ADDR)"),
            ),
        )
    ),
    Case(
        "launcher-options",
        started("accelerate", "launch", "--num_processes=8", *ACCELERATE, "train.py"),
        started("accelerate", "launch", "--num_processes=32", *ACCELERATE, "train.py"),
        ("--num_processes is 8, but pools 0 and 1 have 32 GPUs", "write --num_processes=32"),
    ),
    Case(
        "launcher-group",
        both(CPU) | NO_REDUCERS | started("accelerate", "launch", "train.py"),
        both(CPU) | NO_REDUCERS | started("accelerate", "launch", "--cpu", "train.py"),
        ("they don't form a process group", "write accelerate launch --cpu train.py"),
    ),
    Case(
        "launcher-group",
        started("python3", "-u", "with_accelerate.py", "--steps", "9"),
        started("python3", "-u", "launch.py", "with_accelerate.py", "--steps", "9"),
        (
            "command[0]: python starts only one process on a machine with 8 GPUs",
            "torchrun",
            "with_accelerate.py --steps 9",
        ),
        project=replace(BESIDE, dockerfile=f"{PROJECT.dockerfile}COPY . .\n"),
    ),
    Case(
        "exit-hidden",
        started("bash", "-c", "python train.py 2>&1 | tee log"),
        started("bash", "-c", "set -o pipefail; python train.py 2>&1 | tee log"),
        ("command[2]: the pipe hides the exit code of python train.py", "begin the script with set -o pipefail"),
    ),
    Case(
        "exit-hidden",
        started("sh", "-c", "python train.py; gsutil cp log gs://b/"),
        started("sh", "-ec", "python train.py; gsutil cp log gs://b/"),
        ("gsutil cp log gs://b/ hides the exit code", "write python train.py || exit 1"),
    ),
    # training
    Case(
        "flag-unknown",
        alone(CPU, **{"containerSpec.args": ["--stepz", "100"]}),
        alone(CPU),
        ("containerSpec.args[0]", "the flag --stepz", "did you mean --steps?"),
    ),
    Case(
        "flag-unknown",
        evaluated(containerSpec=TASK | {"args": ["--stepz", "100"]}),
        evaluated(),
        ("workerPoolSpecs[3].containerSpec.args[0]", "the flag --stepz"),
    ),
    Case(
        "evaluator-count",
        evaluated(replicaCount=2),
        evaluated(),
        ("workerPoolSpecs[3].replicaCount", "the pool has 2 evaluators", "set it to 1"),
    ),
    Case(
        "evaluator-program",
        evaluated(),
        evaluated(containerSpec=TASK | {"command": ["python", "-m", "trainer.evaluator"]}),
        ("workerPoolSpecs[3].containerSpec.command[2]", "trainer.task doesn't evaluate", "run trainer.evaluator"),
        project=replace(WITH_LAUNCHER, dockerfile=""),
    ),
    Case(
        "flag-unknown",
        evaluated(containerSpec=TASK | {"command": ["python", "-m", "trainer.evaluator"], "args": ["--stepz", "100"]}),
        evaluated(containerSpec=TASK | {"command": ["python", "-m", "trainer.evaluator"]}),
        ("workerPoolSpecs[3].containerSpec.args[0]", "the flag --stepz"),
    ),
    Case(
        "flag-value",
        alone(CPU, **{"containerSpec.args": ["--steps", "six"]}),
        alone(CPU, **{"containerSpec.args": ["--steps", "6"]}),
        ("containerSpec.args[0]", '--steps is "six"', "write a whole number"),
    ),
    Case(
        "flag-value",
        alone(CPU, **{"containerSpec.args": ["--size=tinyy"]}),
        alone(CPU, **{"containerSpec.args": ["--size=tiny", "--learning-rate=1e-3"]}),
        ('--size is "tinyy"', "did you mean tiny?"),
    ),
    Case(
        "flag-value",
        alone(CPU, **{"containerSpec.args": ["--anyway=true"]}),
        alone(CPU, **{"containerSpec.args": ["--no-anyway", "--steps=6"]}),
        ('--anyway has the value "true", but it doesn\'t accept one', "write only --anyway or --no-anyway"),
    ),
    Case(
        "flag-unknown",
        alone(CPU, **{"containerSpec.args": ["--no-steps"]}),
        alone(CPU, **{"containerSpec.args": ["--anyway", "--steps=6"]}),
        ("the flag --no-steps",),
    ),
    Case(
        "flag-compile",
        alone(CPU, **{"containerSpec.args": ["--compile"]}),
        alone(CPU, **{"containerSpec.args": ["--steps", "6"]}),
        ("containerSpec.args[0]", "doesn't contain a compiler", "write ARG COMPILE=1"),
        project=replace(PROJECT, flags={**PROJECT.flags, "compile": False}, dockerfile="ARG COMPILE=\n"),
    ),
    Case(
        "flags-differ",
        {f"{P1}.containerSpec.args": ["--steps", "200"]},
        {f"{P1}.containerSpec.args": ["--steps=100"]},
        (
            "workerPoolSpecs[1].containerSpec.args[0]",
            "--steps is 200 in this pool, but 100 in pool 0",
            "the same flags",
        ),
    ),
    Case(
        "flags-differ",
        {f"{P0}.containerSpec.args": ["--steps", "100", "--learning-rate", "0.001"]},
        {f"{P0}.containerSpec.args": ["--steps", "100", "--learning-rate", "2e-3"]},
        ("workerPoolSpecs[1].containerSpec.args", "--learning-rate is missing in this pool, but 0.001 in pool 0"),
    ),
    Case(
        "flags-vary",
        {f"{P0}.containerSpec.args": ["--data", "gs://b/one"], f"{P1}.containerSpec.args": ["--data", "gs://b/two"]},
        told("--data", "gs://b/one"),
        ("workerPoolSpecs[1].containerSpec.args[0]", "--data is gs://b/two in this pool, but gs://b/one in pool 0"),
    ),
    Case(
        "flags-vary",
        {f"{pool}.containerSpec.args": ["--anyway", "--steps", steps] for pool, steps in ((P0, "100"), (P1, "200"))},
        told("--anyway", "--steps", "100"),
        ("workerPoolSpecs[1].containerSpec.args[1]", "--steps is 200 in this pool, but 100 in pool 0"),
    ),
    Case(
        "batch-small",
        told("--global-batch", "16"),
        told("--global-batch", "32"),
        ("16 is too small for 32 GPUs", "use 32 or more"),
    ),
    Case(
        "batch-uneven",
        told("--global_batch=80"),
        told("--global_batch=96"),
        ("80 can't be divided evenly among 32 GPUs", "use 64 or 96"),
    ),
    Case(  # the chief of parameter servers takes no part of the batch
        "batch-uneven",
        {f"{P0}.machineSpec": CPU, P2: SERVERS} | told("--global_batch=64"),
        {f"{P0}.machineSpec": CPU, P2: SERVERS} | told("--global_batch=72"),
        ("64 can't be divided evenly among 24 GPUs", "use 48 or 72"),
    ),
    # tuning
    tuning("study-counts", {"maxTrialCount": 0}, {"maxTrialCount": 3}, "maxTrialCount", "1 or more"),
    tuning("study-counts", {"parallelTrialCount": 0}, {"parallelTrialCount": 1}, "parallelTrialCount"),
    tuning("study-metrics", {"studySpec.metrics": []}, {}, "doesn't have a metric", "add a metric"),
    tuning("study-parameters", {"studySpec.parameters": []}, {}, "a parameter to tune", "add a parameter"),
    tuning(
        "study-parameters",
        {"studySpec.parameters": [RATE, OPTIMIZER, BETA | {"conditionalParameterSpecs": [WITH_ADAM | BELOW_ITSELF]}]},
        {"studySpec.parameters": [RATE, OPTIMIZER | {"conditionalParameterSpecs": [WITH_ADAM]}]},
        "parameters[2].conditionalParameterSpecs[0]: data depends on itself",
        "move data and its values to the conditionalParameterSpecs of size",
    ),
    tuning(
        "study-parameters",
        {"studySpec.parameters": [OPTIMIZER, RATE | {"conditionalParameterSpecs": [WITH_ADAM]}]},
        {"studySpec.parameters": [RATE, OPTIMIZER | {"conditionalParameterSpecs": [WITH_ADAM]}]},
        "[0]: this parameter is under learning_rate, but its values belong to size",
        "move data and its values to the conditionalParameterSpecs of size",
    ),
    tuning("study-local", {"studySpec.metrics.0": SAFETY}, {}, "safetyConfig", "local Vertex"),
    tuning("search-name", {"displayName": "x" * 129}, {"displayName": "x" * 128}, "displayName: has 129 characters"),
    tuning("label", {"labels": {"-x": "y"}}, {"labels": {"x": "y"}}, '"-x" isn\'t a valid label key'),
    tuning("metric-unknown", {"studySpec.metrics.0.metricId": "f1"}, {}, '"f1"', "use accuracy or loss"),
    tuning(
        "parameter-unknown",
        {"studySpec.parameters.0.parameterId": "learning_rat"},
        {},
        "parameters[0].parameterId",
        "did you mean learning_rate?",
    ),
    *(
        tuning("parameter-value", {"studySpec.parameters": [wrong]}, {"studySpec.parameters": [right]}, *said)
        for wrong, right, *said in (
            (
                {"parameterId": "steps", "doubleValueSpec": {"minValue": 10, "maxValue": 20}},
                {"parameterId": "steps", "integerValueSpec": {"minValue": 10, "maxValue": 20}},
                "parameters[0].doubleValueSpec",
                "which trainer/config.py doesn't accept; write a whole number",
            ),
            (
                {"parameterId": "steps", "discreteValueSpec": {"values": [16, 16.5]}},
                {"parameterId": "steps", "discreteValueSpec": {"values": [16, 32]}},
                '--steps is "16.5"',
            ),
            (
                {"parameterId": "size", "categoricalValueSpec": {"values": ["tiny", "smal"]}},
                OPTIMIZER,
                '--size is "smal", which',
                "did you mean small?",
            ),
            (
                {"parameterId": "anyway", "categoricalValueSpec": {"values": ["true", "false"]}},
                RATE,
                '--anyway has the value "true", but it doesn\'t accept one',
            ),
        )
    ),
    tuning(
        "trial-flags",
        {f"{T0}.containerSpec.command": ["bash", "-c", "cd /app && python train.py"], f"{T0}.containerSpec.args": GONE}
        | {T1: GONE},
        {
            f"{T0}.containerSpec.command": ["bash", "-c", 'cd /app && python train.py "$@"', "_"],
            f"{T0}.containerSpec.args": GONE,
            T1: GONE,
        },
        "trialJobSpec.workerPoolSpecs[0].containerSpec.command[2]",
        "every trial trains with the defaults",
        'write python train.py "$@" in the script. After the script, add a placeholder such as _',
    ),
    tuning(
        "trial-parallel",
        {"parallelTrialCount": 6},
        {"parallelTrialCount": 5},
        "6 of 6 trials run in parallel",
        "RANDOM_SEARCH",
    ),
    tuning(
        "trial-replicas",
        {f"{T0}.containerSpec.command": ["python", "train.py"]},
        {f"{T0}.containerSpec.command": ["python", "train.py"], T1: GONE},
        "has 4 replicas",
    ),
    tuning("trial-reducers", {"trialJobSpec": GOOD}, {}, "trialJobSpec.workerPoolSpecs[2]", "remove pool 2"),
]
