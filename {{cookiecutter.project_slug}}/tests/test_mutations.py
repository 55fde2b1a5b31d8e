"""Random jobs: none brings the rules down, and none that a documented rule forbids is accepted."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import CustomJobSpec

from launch import catalog, rules
from launch.document import from_json
from launch.rules import RULES
from launch.spec import Job, JobError, read
from tests.casebook import CATALOG, GOOD, PROJECT, REDUCER_IMAGE, REDUCERS, SETTINGS, TASK
from tests.test_agreement import mutated

pytestmark = pytest.mark.launch

COUNT = 1000
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


def accepted(document: Any) -> bool:
    try:
        spec = read(from_json(json.dumps(document), "", JobError), CustomJobSpec)
    except JobError:
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


def over_gloo(document: Document, dice: random.Random) -> None:
    reduce(document, dice)
    document["workerPoolSpecs"][0]["containerSpec"]["args"] += ["--backend", "gloo"]


def without_gpus(document: Document, dice: random.Random) -> None:
    reduce(document, dice)
    document["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-8"}


def flexible(document: Document, dice: random.Random) -> None:
    document["scheduling"] |= {"strategy": "FLEX_START", "timeout": f"{dice.randint(604_801, 10**8)}s"}


def of_two_kinds(document: Document, dice: random.Random) -> None:
    other = {"machineSpec": {"machineType": "n2-standard-8"}, "replicaCount": 1, "containerSpec": TASK}
    document["workerPoolSpecs"][1:] = [other]
    document["scheduling"] = {"strategy": "FLEX_START", "timeout": "60s"}


def reserved(document: Document, dice: random.Random) -> None:
    document["scheduling"] = {"strategy": "FLEX_START", "timeout": "60s"}
    affinity = {"reservationAffinityType": "SPECIFIC_RESERVATION"}
    for pool in document["workerPoolSpecs"]:
        pool["machineSpec"]["reservationAffinity"] = affinity


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
    "reducer-gpus": without_gpus,
    "reducer-backend": over_gloo,
    "flex-start-timeout": flexible,
    "flex-start-machines": of_two_kinds,
    "flex-start-reservation": reserved,
    "package-count": packages,
    "env-count": set_in("env", "containerSpec", lambda dice: variables(*map(str, range(dice.randint(101, 300))))),
    "env-name": set_in("env", "containerSpec", lambda dice: variables(dice.choice(("", "1ST", "A-B", "A B", "É")))),
}
# In vertex.toml, not in the file; or of a study.
ELSEWHERE_SET = {"region-name", "region-accelerator", "study-counts", "study-metrics", "study-parameters"}


def test_every_error_has_a_mutation() -> None:
    errors = {code for code, rule in RULES.items() if rule.severity == "error"}
    assert FORBIDDEN.keys() | ELSEWHERE_SET == errors


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
