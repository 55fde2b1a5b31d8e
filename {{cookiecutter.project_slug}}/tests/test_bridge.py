"""What `vertex_launch` writes, `trainer` reads: the environment is the only thing that they share."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import trainer
import vertex_launch
from trainer.cluster import Cluster, from_env
from trainer.resource_estimate import ResourceEstimate
from trainer.storage import from_env as storage_from_env
from trainer.telemetry import TensorBoard
from trainer.utilization import peak_flops
from vertex_launch import catalog
from vertex_launch.plan import measured_speed
from vertex_launch.plan.workload import Workload
from vertex_launch.replicas import Replica, replicas
from vertex_launch.spec import REDUCERS, Job, TuningJob, load

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


def test_what_the_trainer_says_it_needs_is_what_the_planner_asks() -> None:
    assert {field.name for field in fields(ResourceEstimate)} == {field.name for field in fields(Workload)}


def test_the_speed_of_a_run_is_read_from_its_curves(tmp_path: Path) -> None:
    curves = TensorBoard(tmp_path / "logs")
    curves.write(1, {"train/samples_per_second_per_device": 400.0})
    curves.close()
    assert measured_speed.samples_per_second_per_gpu(tmp_path) == 400


@pytest.mark.parametrize(("package", "other"), [(vertex_launch, "trainer"), (trainer, "vertex_launch")])
def test_neither_package_imports_the_other(package: ModuleType, other: str) -> None:
    sources = sorted(path for folder in package.__path__ for path in Path(folder).rglob("*.py"))
    assert sources
    assert [path.name for path in sources if other in imported(path)] == []


def imported(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    whole = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | whole}


def test_the_planner_and_the_trainer_measure_a_gpu_by_the_same_peak() -> None:
    cards = catalog.standard().accelerators
    peaks = {name: peak_flops(name.replace("_", " "), card.precision) for name, card in cards.items()}
    assert peaks == {name: card.tflops * 1e12 for name, card in cards.items()}
