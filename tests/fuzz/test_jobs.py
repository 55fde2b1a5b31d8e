"""Job files: a file that can be read has findings, each with a cure; another one has sentences."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import event, example, given
from hypothesis import strategies as st

from launcher.tests.casebook import GOOD, GOOD_TUNING, PROJECT, SETTINGS
from launcher.tests.test_agreement import CHOICES
from tests.fuzz.shapes import as_json, changed, sentences, some, torn
from vertex_launch import rules
from vertex_launch.errors import FaultError
from vertex_launch.job import spec

NAMES = {name: tuple(values) for name, values in CHOICES.items()}
MACHINES = some(**{name: NAMES[name] for name in ("machineType", "acceleratorType", "acceleratorCount")})
POOL = st.fixed_dictionaries(
    {"machineSpec": MACHINES, "replicaCount": st.sampled_from(NAMES["replicaCount"])},
    optional={
        "containerSpec": some(imageUri=NAMES["imageUri"], command=[["true"], ["sh", "-c", "$(X)"]]),
        "diskSpec": some(bootDiskType=NAMES["bootDiskType"], bootDiskSizeGb=NAMES["bootDiskSizeGb"]),
        "nfsMounts": st.just([{"server": "10.0.0.1", "path": "/share", "mountPoint": "share"}]),
    },
)
JOB = st.fixed_dictionaries(
    {"workerPoolSpecs": st.lists(POOL, min_size=1, max_size=5)},
    optional={
        "scheduling": some(strategy=NAMES["strategy"], timeout=NAMES["timeout"], maxWaitDuration=["60s", "-1s"]),
        "baseOutputDirectory": some(outputUriPrefix=NAMES["outputUriPrefix"]),
        "serviceAccount": st.sampled_from(NAMES["serviceAccount"]),
        "tensorboard": st.sampled_from(NAMES["tensorboard"]),
    },
)
DOCUMENT = changed(JOB | st.sampled_from((GOOD, GOOD_TUNING)))


def as_yaml(value: Any) -> bytes:
    return yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False).encode()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs") / "run.yaml"


@example(b'{"\\ud800\\udc00": ""}')
@example(b'{"workerPoolSpecs": {"\\ud800\\udc00": ""}}')
@given(as_json(DOCUMENT) | torn(DOCUMENT.map(as_yaml)))
def test_any_file(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    try:
        job = spec.load(path)
    except FaultError as error:
        sentences(error)
        return
    event("read")
    assert all(one.fault and one.code for one in rules.findings(job, SETTINGS, PROJECT))
