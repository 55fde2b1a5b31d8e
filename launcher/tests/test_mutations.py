"""Random jobs: none brings the rules down, and none that a documented rule forbids is accepted."""

import contextlib
import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.cloud.aiplatform_v1.types import CustomJobSpec, HyperparameterTuningJob
from rich.console import Console

from launcher.tests.casebook import (
    CATALOG,
    GOOD,
    PACKAGE,
    PROJECT,
    REDUCER_IMAGE,
    REDUCERS,
    RESERVATION,
    SETTINGS,
    SHARE,
    TASK,
)
from launcher.tests.test_agreement import mutated
from launcher.tests.test_plan import WORKLOAD
from vertex_launch import rules
from vertex_launch.errors import FaultError
from vertex_launch.facts import catalog
from vertex_launch.job.spec import Job, TuningJob, read
from vertex_launch.job.strict_yaml import from_json
from vertex_launch.plan import planner
from vertex_launch.plan.report import report
from vertex_launch.rules import RULES

COUNT = 1000
ODD_COUNT = 150
REGION = CATALOG.regions[SETTINGS.region]
# (type, accelerator, count) of every machine with GPUs that the region has, but for those that are no longer supported.
MACHINES = [
    (name, kind, count)
    for name, machine in CATALOG.machines.items()
    for kind, counts in machine.gpus.items()
    for count in counts
    if kind in REGION and kind not in CATALOG.retired_accelerators
]

Document = dict[str, Any]
M = TypeVar("M")


def accepted(document: Any) -> bool:
    try:
        spec = read(from_json(json.dumps(document)), CustomJobSpec)
    except FaultError:
        return False
    found = rules.findings(Job(Path("run.yaml"), "run", spec), SETTINGS, PROJECT)
    assert all(finding.fault and finding.cure for finding in found)
    return not any(finding.severity == "error" for finding in found)


def valid(dice: random.Random) -> Document:
    """A job of one machine or of several, with and without reducers."""
    name, kind, count = dice.choice(MACHINES)
    machine = {"machineType": name, "acceleratorType": kind, "acceleratorCount": count}
    chief = {"machineSpec": machine, "replicaCount": 1, "containerSpec": TASK}
    workers = dice.choice((0, 1, 2, 3, 7, 50))
    pools: list[Document] = [chief, chief | {"replicaCount": workers}] if workers else [chief]
    gbps = CATALOG.network_gbps(name, kind, count)
    if workers and gbps and dice.random() < 0.7:
        pools.append(REDUCERS | {"replicaCount": catalog.reducers_needed(workers + 1, gbps, 32)})
    disk = {"bootDiskType": dice.choice(CATALOG.limits.disk_types), "bootDiskSizeGb": dice.randint(100, 64_000)}
    pools = [pool | {"diskSpec": disk} if dice.random() < 0.5 else pool for pool in pools]
    strategy = {"strategy": dice.choice(("STANDARD", "SPOT"))} if dice.random() < 0.5 else {}
    scheduling = {"scheduling": {"timeout": f"{dice.randint(1, 10**7)}s"} | strategy}
    return json.loads(json.dumps(GOOD | {"workerPoolSpecs": pools} | scheduling))  # type: ignore[no-any-return]


def some_pool(document: Document, dice: random.Random) -> Document:
    pool: Document = dice.choice(document["workerPoolSpecs"])
    return pool


def set_in(key: str, part: str, value: Callable[[random.Random], Any]) -> Callable[[Document, random.Random], None]:
    """A mutation that sets one value in a part of any pool."""

    def mutate(document: Document, dice: random.Random) -> None:
        some_pool(document, dice).setdefault(part, {})[key] = value(dice)

    return mutate


def set_at_top(**values: Any) -> Callable[[Document, random.Random], None]:
    return lambda document, dice: document.update(values)


def reduce(document: Document, dice: random.Random) -> None:
    document["workerPoolSpecs"][2:] = [json.loads(json.dumps(REDUCERS))]
    document["workerPoolSpecs"][1:1] = [] if len(document["workerPoolSpecs"]) == 3 else [{}]


def reducers_with(part: str, values: Document) -> Callable[[Document, random.Random], None]:
    def mutate(document: Document, dice: random.Random) -> None:
        reduce(document, dice)
        document["workerPoolSpecs"][2][part] |= values

    return mutate


def reducers_in_pool_1(document: Document, dice: random.Random) -> None:
    document["workerPoolSpecs"][1:] = [REDUCERS]


def flexible(document: Document, dice: random.Random) -> None:
    document["scheduling"] |= {"strategy": "FLEX_START", "timeout": f"{dice.randint(604_801, 10**8)}s"}


def of_two_kinds(document: Document, dice: random.Random) -> None:
    other = {"machineSpec": {"machineType": "n2-standard-8"}, "replicaCount": 1, "containerSpec": TASK}
    document["workerPoolSpecs"][1:] = [other]
    document["scheduling"] = {"strategy": "FLEX_START", "timeout": "60s"}


def reserved(document: Document, dice: random.Random) -> None:
    document["scheduling"] = {"strategy": "FLEX_START", "timeout": "60s"}
    affinity = RESERVATION
    for pool in document["workerPoolSpecs"]:
        pool["machineSpec"]["reservationAffinity"] = affinity


def reserved_and_persistent(document: Document, dice: random.Random) -> None:
    some_pool(document, dice)["machineSpec"]["reservationAffinity"] = RESERVATION
    document["persistentResourceId"] = "ours"


def tpu(document: Document, dice: random.Random) -> None:
    kind = dice.choice([name for name, machine in CATALOG.machines.items() if machine.topologies])
    machine = {"machineType": kind, "tpuTopology": CATALOG.machines[kind].topologies[0]}
    some_pool(document, dice)["machineSpec"] = machine
    document["workerPoolSpecs"].append({"machineSpec": machine, "replicaCount": 1, "containerSpec": TASK})


def tpu_of_another_form(document: Document, dice: random.Random) -> None:
    machine = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": f"{dice.randint(3, 99)}x3"}
    document["workerPoolSpecs"] = [{"machineSpec": machine, "replicaCount": 1, "containerSpec": TASK}]


def packages(document: Document, dice: random.Random) -> None:
    uris = ["gs://b/c"] * dice.randint(101, 200)
    package = {"executorImageUri": "image", "packageUris": uris, "pythonModule": "task"}
    pool = document["workerPoolSpecs"][0]
    del pool["containerSpec"]
    pool["pythonPackageSpec"] = package


def packaged(**more: Any) -> Callable[[Document, random.Random], None]:
    """A mutation of the chief into a package."""

    def mutate(document: Document, dice: random.Random) -> None:
        pool = document["workerPoolSpecs"][0]
        del pool["containerSpec"]
        pool["pythonPackageSpec"] = PACKAGE | more

    return mutate


def mounted(**more: Any) -> Callable[[Document, random.Random], None]:
    return lambda document, dice: some_pool(document, dice).update({"nfsMounts": [SHARE | more]})


def reserved_without_a_name(document: Document, dice: random.Random) -> None:
    affinity = {"reservationAffinityType": "SPECIFIC_RESERVATION"}
    some_pool(document, dice)["machineSpec"]["reservationAffinity"] = affinity


def incomplete(document: Document, dice: random.Random) -> None:
    del some_pool(document, dice)["containerSpec"]["imageUri"]


def idle(document: Document, dice: random.Random) -> None:
    del some_pool(document, dice)["containerSpec"]


def nameless(document: Document, dice: random.Random) -> None:
    some_pool(document, dice)["machineSpec"] = {}


def empty(document: Document, dice: random.Random) -> None:
    document["workerPoolSpecs"][1:] = [REDUCERS | {"replicaCount": dice.randint(-9, 0)}]


def crowded(document: Document, dice: random.Random) -> None:
    document["workerPoolSpecs"] += [some_pool(document, dice)] * dice.randint(4, 9)


def led_by_many(document: Document, dice: random.Random) -> None:
    document["workerPoolSpecs"][0]["replicaCount"] = dice.choice((-1, 0, 2, 3, 99))


def retired(document: Document, dice: random.Random) -> None:
    machine = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_K80", "acceleratorCount": 1}
    some_pool(document, dice)["machineSpec"] = machine


def misspelt(document: Document, dice: random.Random) -> None:
    pool = some_pool(document, dice)
    key = dice.choice([*pool])
    pool[key[:-1]] = pool.pop(key)


def variables(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "value": "x"} for name in names]


BOARD = "projects/demo/locations/us-central1/tensorboards/1"
ELSEWHERE = {"tensorboard": BOARD.replace("central1", "west1"), "serviceAccount": "a@b.iam.gserviceaccount.com"}
FORBIDDEN: Mapping[str, Callable[[Document, random.Random], None]] = {
    "form": misspelt,
    "chief-count": led_by_many,
    "pool-count": crowded,
    "pool-replicas": empty,
    "pool-machine": nameless,
    "pool-task": idle,
    "task-field": incomplete,
    "machine-unknown": set_in("machineType", "machineSpec", lambda dice: f"n1-standard-{dice.randint(97, 999)}"),
    "accelerator-fit": retired,
    "tpu-alone": tpu,
    "tpu-topology": tpu_of_another_form,
    "disk-size": set_in("bootDiskSizeGb", "diskSpec", lambda dice: dice.choice((-1, 1, 99, 64_001, 10**6))),
    "disk-type": set_in("bootDiskType", "diskSpec", lambda dice: dice.choice(("pd-hdd", "ssd", "local-ssd"))),
    "output-folder": set_at_top(baseOutputDirectory={"outputUriPrefix": "/gcs/b"}),
    "tensorboard-account": set_at_top(tensorboard=BOARD),
    "tensorboard-name": set_at_top(tensorboard="tensorboards/1"),
    "tensorboard-region": set_at_top(**ELSEWHERE),
    "reducer-pool": reducers_in_pool_1,
    "reducer-image": reducers_with("containerSpec", {"imageUri": REDUCER_IMAGE.replace("server", "")}),
    "reducer-accelerator": reducers_with("machineSpec", {"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}),
    "reducer-command": reducers_with("containerSpec", {"args": ["--verbose"]}),
    "flex-start-timeout": flexible,
    "flex-start-machines": of_two_kinds,
    "flex-start-reservation": reserved,
    "package-count": packages,
    "env-count": set_in("env", "containerSpec", lambda dice: variables(*map(str, range(dice.randint(101, 300))))),
    "package-address": packaged(packageUris=["trainer.tar.gz"]),
    "module-name": packaged(pythonModule="trainer/task.py"),
    "image-name": set_in("imageUri", "containerSpec", lambda dice: dice.choice(("my image", "<image>", "a//b", "A/B"))),
    "command-letters": set_in("command", "containerSpec", lambda dice: [*dice.choice(("true", "trainer.task"))]),
    "env-apostrophe": set_in("env", "containerSpec", lambda dice: [{"name": "TAGS", "value": "['a']"}]),
    "placeholder-engine": set_in(
        "args", "containerSpec", lambda dice: [dice.choice(("{{$}}", "--tag=${{ github.sha }}"))]
    ),
    "reservation-field": reserved_without_a_name,
    "resource-name": set_at_top(network="default"),
    "account-name": set_at_top(serviceAccount="trainer"),
    "persistent-reservation": reserved_and_persistent,
    "persistent-name": set_at_top(persistentResourceId="Ours"),
    "mount-field": mounted(server=""),
    "mount-path": mounted(path="share"),
    "mount-network": mounted(),
    "dns-peering": set_at_top(pscInterfaceConfig={"dnsPeeringConfigs": [{"domain": "ours.example"}]}),
    "env-name": set_in("env", "containerSpec", lambda dice: variables(dice.choice(("", "1ST", "A-B", "A B", "É")))),
}
# In vertex.toml, not in the file; or of a study; or of the project's trainer.
ELSEWHERE_SET = {"region-name", "region-accelerator", "study-counts", "study-metrics", "study-parameters"}
ELSEWHERE_SET |= {"search-name", "label", "key-name", "key-region", "flags-differ", "evaluator-program"}


def test_every_error_has_a_mutation() -> None:
    errors = {code for code, rule in RULES.items() if rule.severity == "error"}
    assert FORBIDDEN.keys() | ELSEWHERE_SET == errors


@pytest.mark.proof
def test_no_mutation_that_a_documented_rule_forbids_is_accepted() -> None:
    dice = random.Random(20261121)
    for number in range(COUNT):
        document = valid(dice)
        assert accepted(document), document
        code = [*FORBIDDEN][number % len(FORBIDDEN)]
        FORBIDDEN[code](document, dice)
        assert not accepted(document), (code, document)


@pytest.mark.parametrize("seed", range(4))
def test_no_mutation_brings_the_rules_down(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(COUNT // 4):
        document: Any = valid(dice)
        for _ in range(dice.randrange(1, 5)):
            document = mutated(document, dice)
        accepted(document)


COUNTS = (None, 1 - 2**63, -1, 0, 1, 2, 3, 7, 2**31, 2**63 - 1)
GPU_COUNTS = (None, None, 1 - 2**31, -1, 0, 1, 2, 8, 16, 2**31 - 1)
WORDS = (
    *(
        "",
        "-",
        "--",
        "---",
        "--=",
        "=",
        "--steps",
        "--steps=",
        "--no-",
        "-m",
        "trainer.task",
        "\0",
        "\n",
        "é",
        "$(NAME)",
    ),
    *("--global-batch", "--global_batch=0", "--global-batch=-1", "--global-batch=1", "--global-batch=97", "--backend"),
    *(
        "0",
        "-1",
        "nan",
        "1e400",
        "inf",
        "٣",
        "9" * 4000,
        "gloo",
        "--size=$(SIZE)",
        "--learning-rate",
        "--learning-rate=1e400",
    ),
)
IMAGES = (
    SETTINGS.image,
    SETTINGS.image,
    REDUCER_IMAGE,
    REDUCER_IMAGE,
    "",
    ":",
    "@",
    "/",
    "a@sha256:",
    f"{REDUCER_IMAGE}@",
)
ADDRESSES = ("", "gs://", "gs://demo-data/run", "gs:///", "/", "\0", "gs://demo-data/../x")


def odd_pool(dice: random.Random) -> Document:
    """A pool that parses, of which each part may be missing, empty or absurd."""
    name, kind, count = dice.choice(MACHINES)
    names = (name, name, name, "", "n1-standard-8", "ct5lp-hightpu-1t", "mainframe", "a3-highgpu-8g", "a2-megagpu-16g")
    machine = {
        "machineType": dice.choice(names),
        "acceleratorType": dice.choice((kind, kind, kind, None, 0, "TPU_V3", "NVIDIA_TESLA_K80")),
        "acceleratorCount": dice.choice((count, *GPU_COUNTS)),
        "tpuTopology": dice.choice((None, None, "", "2x2")),
    }
    args = [dice.choice(WORDS) for _ in range(dice.choice((0, 1, 2, 9)))]
    env = [{"name": dice.choice(WORDS), "value": dice.choice(WORDS)} for _ in range(dice.choice((0, 1, 2)))]
    command = dice.choice(
        (None, [], [""], ["python"], ["python", "-m", "trainer.task"], ["python", "-m", "trainer.task"])
    )
    container = {"imageUri": dice.choice(IMAGES), "command": command, "args": args, "env": env}
    package = {"executorImageUri": dice.choice(IMAGES), "pythonModule": dice.choice(("", "trainer.task")), "args": args}
    task = dice.choice(({"containerSpec": container}, {"containerSpec": container}, {"pythonPackageSpec": package}, {}))
    disk = {"bootDiskSizeGb": dice.choice(GPU_COUNTS), "bootDiskType": dice.choice((None, "", "pd-ssd", "\0"))}
    parts = {"machineSpec": machine, "replicaCount": dice.choice(COUNTS), "diskSpec": disk, **task}
    return {key: value for key, value in parts.items() if dice.random() < 0.9}


def odd(dice: random.Random) -> Document:
    """A job that parses, with pools that may be skipped, too many or absurd."""
    pools = [odd_pool(dice) if dice.random() < 0.8 else {} for _ in range(dice.choice((0, 1, 2, 3, 3, 3, 4, 5)))]
    scheduling = {
        "timeout": dice.choice((None, "0s", "0.5s", "99999999999s")),
        "strategy": dice.choice((None, 0, "SPOT", "FLEX_START", "LOW_COST")),
        "disableRetries": dice.choice((None, True)),
    }
    output = {"outputUriPrefix": dice.choice(ADDRESSES)}
    document = {"workerPoolSpecs": pools, "scheduling": scheduling, "baseOutputDirectory": output}
    return whole({key: value for key, value in document.items() if dice.random() < 0.9})


def whole(document: Document) -> Document:
    """Without the keys that have no value."""
    return {key: _whole(value) for key, value in document.items() if value is not None}


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return whole(value)
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def odd_study(dice: random.Random) -> Document:
    """A search that parses around such a job."""

    def number() -> float | None:
        return dice.choice((None, -1e308, -1, 0, 1, 1e308))

    values = dice.choice(([], [0], [1, 1], [2, 1]))
    parameter = dice.choice(
        (
            {},
            {"doubleValueSpec": {"minValue": number(), "maxValue": number()}},
            {"integerValueSpec": {"minValue": dice.choice(COUNTS), "maxValue": dice.choice((None, -1, 3))}},
            {"discreteValueSpec": {"values": values}},
            {"categoricalValueSpec": {"values": [str(value) for value in values]}},
        )
    )
    names = ("", " ", "\0", "steps", "learning-rate", "a.b", "-", "x" * 1000)
    child = {"parameterSpec": parameter | {"parameterId": dice.choice(names)}, "parentIntValues": {"values": [0]}}
    scale = dice.choice((None, "UNIT_LOG_SCALE"))
    above = parameter | {"parameterId": dice.choice(names), "scaleType": scale}
    metric = {"metricId": dice.choice((*names, "accuracy")), "goal": dice.choice((None, "MINIMIZE"))}
    return whole(
        {
            "maxTrialCount": dice.choice((-1, 0, 1, 6, 2**31 - 1)),
            "parallelTrialCount": dice.choice((-1, 0, 1, 6)),
            "studySpec": {
                "metrics": dice.choice(([], [metric], [metric, metric])),
                "parameters": dice.choice(([], [above, above], [above | {"conditionalParameterSpecs": [child]}])),
                "algorithm": dice.choice((None, "GRID_SEARCH")),
            },
            "trialJobSpec": odd(dice),
        }
    )


def examined(document: Document, kind: type[M]) -> M:
    """The message that a document holds; it must be one."""
    return read(from_json(json.dumps(document)), kind)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 4))])
def test_whatever_parses_brings_neither_the_rules_nor_the_planner_down(seed: int) -> None:
    dice = random.Random(seed)
    planned, console = 0, Console(file=io.StringIO())
    for _ in range(ODD_COUNT):
        job = Job(Path("run.yaml"), "run", examined(odd(dice), CustomJobSpec))
        search = TuningJob(Path("run.yaml"), "run", examined(odd_study(dice), HyperparameterTuningJob))
        for subject in (job, search):
            assert all(one.fault and one.cure for one in rules.findings(subject, SETTINGS, PROJECT)), subject
            workload = replace(WORKLOAD, global_batch=dice.choice((1, 96, 10**18)), micro_batches=dice.choice((1, 7)))
            with contextlib.suppress(FaultError):
                console.print(report(planner.plan(subject, SETTINGS, workload)))
                planned += 1
    assert planned > ODD_COUNT / 20  # the planner has seen some, too
