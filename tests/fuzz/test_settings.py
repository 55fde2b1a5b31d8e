"""vertex.toml: settings whose names can be folders, or sentences."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from tests.fuzz.shapes import changed, sentences, some, torn
from vertex_launch import settings
from vertex_launch.errors import FaultError

GOOD = {"project": "my-project", "region": "us-central1", "bucket": "my-bucket", "image": "image:1"}
TABLES = some(
    commands=[{"image": ["python", "-m", "x"]}, {"image": []}],
    env=[{"NAME": True}, {"NAME": "value"}, {"RANK": "1"}, {"1": ""}],
    labels=[{"team": "vision"}, {"Team": "x" * 64}],
    prices=[{"n1-standard-8": 1.25}, {"NVIDIA_L4": 0}, {"NVIDIA_TESLA_T4": -1}],
    machines=[
        {"mine-8": {"vcpus": 8, "memory_gb": 30, "gbps": 16, "gpus": {"NVIDIA_L4": [1, 2]}}},
        {"n1-standard-8": {}},
    ],
    rules=[{"region-words": "off"}, {"severity": 3}, {"module": "none.py"}],
    service_account=["", "me@my-project.iam.gserviceaccount.com"],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "vertex.toml"


def toml(value: Any) -> str:
    """A value as TOML writes it, or something near to it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf").replace("null", "2026-11-27")


def lines(table: Any) -> bytes:
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in dict(table).items()).encode()


PARTS = st.tuples(changed(st.just(GOOD), 1), changed(TABLES, 2))
TABLE = PARTS.map(lambda parts: {key: value for part in parts if isinstance(part, dict) for key, value in part.items()})


@example(b"project = " + b"[" * 10**5)
@example(b"project = " + b"9" * 5000)
@given(torn(TABLE.map(lines)))
def test_any_file(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    try:
        read = settings.load(path)
        read.catalog  # noqa: B018
    except FaultError as error:
        sentences(error)
        return
    event("read")
    for name in (read.project, read.region, read.bucket):
        assert name == Path(name).name
        assert "\0" not in name
