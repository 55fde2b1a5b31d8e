"""Tests that the trainer understands the commands and environment variables that the launcher sets for replicas."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

import vertex_launch
from trainer.cluster.spec import Cluster, from_env
from trainer.vertex.storage import from_env as storage_from_env
from vertex_launch import Replica

SERVERS = 2  # the pool of reducers and parameter servers, which never count as ranks
PROJECT = Path(__file__).resolve().parents[1]
JOBS = sorted((PROJECT / "jobs").glob("*.yaml"))


def without(environ: Mapping[str, str], variable: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name != variable}


def views(path: Path, ignored: str) -> list[tuple[Replica, Cluster]]:
    """Return each replica and its view of the cluster. Replicas don't read the variable `ignored`."""
    found = vertex_launch.replicas(path)
    environments = [without(replica.env, ignored) if len(found) > 1 else replica.env for replica in found]
    return [(replica, from_env(environ)) for replica, environ in zip(found, environments, strict=True)]


def test_there_are_job_files() -> None:
    assert {"single.yaml", "workers.yaml"} <= {path.name for path in JOBS}


@pytest.mark.parametrize("ignored", ["TF_CONFIG", "CLUSTER_SPEC"])
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_training_replicas_agree_on_one_contiguous_ranking_with_one_chief(path: Path, ignored: str) -> None:
    training = [(replica, cluster) for replica, cluster in views(path, ignored) if replica.trains]
    assert [cluster.rank for _, cluster in training] == list(range(len(training)))
    assert [cluster.name for _, cluster in training] == [replica.name for replica, _ in training]
    assert [replica.name for replica, cluster in training if cluster.rank == 0] == ["workerpool0-0"]


@pytest.mark.parametrize("ignored", ["TF_CONFIG", "CLUSTER_SPEC"])
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_replica_sees_the_same_nodes_and_none_of_pool_2_among_them(path: Path, ignored: str) -> None:
    seen = views(path, ignored)
    (nodes,) = {cluster.nodes for _, cluster in seen}
    assert [node.name for node in nodes] == [replica.name for replica, _ in seen if replica.trains]
    servers = [replica.name for replica, _ in seen if replica.pool == SERVERS]
    assert all([node.name for node in cluster.servers] == servers for _, cluster in seen)
    assert not any(cluster.trains for replica, cluster in seen if replica.pool == SERVERS)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_output_folder_of_the_file_is_where_the_trainer_writes(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    trial = "1" if "trialJobSpec" in document else ""  # each trial of a tuning job has its own folder
    prefix = document.get("trialJobSpec", document)["baseOutputDirectory"]["outputUriPrefix"].removeprefix("gs://")
    storage = storage_from_env(vertex_launch.replicas(path)[0].env)
    folders = [storage.model, storage.checkpoints, storage.logs]
    assert folders == [Path("/gcs", prefix, trial, name) for name in ("model", "checkpoints", "logs")]


def test_the_trainer_imports_nothing_of_the_launcher() -> None:
    sources = sorted((PROJECT / "trainer").rglob("*.py"))
    assert sources
    assert [path.name for path in sources if "vertex_launch" in imported(path)] == []


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports, anywhere in the file."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    whole = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | whole}
