"""What `launch` writes, `trainer` reads: the environment is the only thing that they share."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from launch.emulator.resources import search
from launch.replicas import Replica, replicas, with_arguments
from launch.spec import REDUCERS, Job, TuningJob, load
from trainer.cluster import Cluster, from_env
from trainer.config import parse
from trainer.storage import from_env as storage_from_env

PROJECT = Path(__file__).resolve().parents[1]
JOBS = sorted((PROJECT / "jobs").glob("*.yaml"))


def job_in(path: Path) -> Job:
    """The job of a file or, of a tuning job, that of its trials."""
    job = load(path)
    return job.trial_job if isinstance(job, TuningJob) else job


def everyone(path: Path) -> tuple[Replica, ...]:
    return replicas(job_in(path), "123", lambda pool, index: f"machine-{pool}-{index}:2222")


def without(environ: Mapping[str, str], variable: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name != variable}


def views(path: Path, ignored: str) -> list[tuple[Replica, Cluster]]:
    """Each replica and the cluster that it sees. A single replica has no TF_CONFIG: it keeps CLUSTER_SPEC."""
    found = everyone(path)
    environments = [without(replica.env, ignored) if len(found) > 1 else replica.env for replica in found]
    return [(replica, from_env(environ)) for replica, environ in zip(found, environments, strict=True)]


def test_there_are_job_files() -> None:
    assert {"single.yaml", "workers.yaml", "tuning.yaml"} <= {path.name for path in JOBS}


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
    servers = [replica.name for replica, _ in seen if replica.pool == REDUCERS]
    assert all([node.name for node in cluster.servers] == servers for _, cluster in seen)
    assert not any(cluster.trains for replica, cluster in seen if replica.pool == REDUCERS)


@pytest.mark.parametrize("path", [path for path in JOBS if job_in(path).reducers], ids=lambda path: path.name)
def test_a_job_with_reducers_shows_them_to_the_trainer(path: Path) -> None:
    _, cluster = views(path, "TF_CONFIG")[0]
    assert len(cluster.servers) >= 1


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_output_folder_of_the_file_is_where_the_trainer_writes(path: Path) -> None:
    prefix = job_in(path).spec.base_output_directory.output_uri_prefix
    storage = storage_from_env(everyone(path)[0].env)
    folders = [storage.model, storage.checkpoints, storage.logs]
    assert folders == [Path("/gcs", prefix.removeprefix("gs://"), name) for name in ("model", "checkpoints", "logs")]


def test_the_trainer_takes_what_the_tuning_job_tries() -> None:
    job = load(PROJECT / "jobs/tuning.yaml")
    assert isinstance(job, TuningJob)
    tried = search.Search(job.spec.study_spec).ask()
    assert tried
    chief, *workers = replicas(with_arguments(job.trial_job, search.arguments(tried.parameters)), "1", lambda *_: "a:1")
    config = parse(chief.command[3:])  # after python -m trainer.task
    assert {name: getattr(config, name) for name in tried.parameters} == dict(tried.parameters)
    assert all(worker.command == chief.command for worker in workers)


@pytest.mark.parametrize(("package", "other"), [("launch", "trainer"), ("trainer", "launch")])
def test_neither_package_imports_the_other(package: str, other: str) -> None:
    sources = sorted((PROJECT / package).rglob("*.py"))
    assert sources
    assert [path.name for path in sources if other in imported(path)] == []


def imported(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    whole = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | whole}
