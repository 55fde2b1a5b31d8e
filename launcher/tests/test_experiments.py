"""What Google's Python client notes about experiments and TensorBoards, as it is, against the local Vertex."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict
from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning as hpt
from google.cloud.aiplatform.metadata import metadata as sdk_metadata

from launcher.tests.sdk import init, prepare
from launcher.tests.vertex import BY_ID, PARENT, Service, custom_job, script, service
from vertex_launch.local.jobs import experiments

ACCOUNT = "trainer@p.iam.gserviceaccount.com"
CONTEXTS = f"{PARENT}/metadataStores/default/contexts"
POOL = {
    "machine_spec": {"machine_type": "n1-standard-8"},
    "replica_count": 1,
    "container_spec": {"image_uri": "image"},
}


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def _client(vertex: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepare(vertex, monkeypatch)
    yield
    sdk_metadata._experiment_tracker.reset()


def job(code: str) -> aiplatform.CustomJob:
    container = {"image_uri": "image", "command": list(script(code))}
    return aiplatform.CustomJob("job", worker_pool_specs=[POOL | {"container_spec": container}])


def tensorboard() -> str:
    return str(aiplatform.Tensorboard.create(display_name="board").resource_name)


def by_id(name: str) -> str:
    return name.replace(PARENT, BY_ID)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


PRINT_EXPERIMENT = "import os; print(os.environ['AIP_EXPERIMENT_NAME'], os.environ['AIP_EXPERIMENT_RUN_NAME'])"
PRINT_BOARD = "import os; print(os.environ['AIP_TENSORBOARD_RESOURCE_NAME'])"
PRINT_PROFILER = """
import os, time
print(*(os.environ[f"AIP_{name}"] for name in ("HTTP_HANDLER_PORT", "TF_PROFILER_PORT", "TENSORBOARD_API_URI")))
time.sleep(1 - int(os.environ["RANK"]))  # the chief's end is the worker's
"""


def test_a_job_with_a_tensorboard_ends_without_a_warning(vertex: Service, caplog: pytest.LogCaptureFixture) -> None:
    board, ours = tensorboard(), job(PRINT_BOARD)
    ours.run(tensorboard=board, service_account=ACCOUNT)
    assert vertex.log(ours.resource_name) == [f"workerpool0-0: {by_id(board)}"]
    assert warnings(caplog) == []


def test_the_profiler_of_each_replica_has_ports_of_its_own(vertex: Service) -> None:
    name = vertex.create(
        custom_job(*script(PRINT_PROFILER), workers=1, tensorboard=tensorboard(), serviceAccount=ACCOUNT)
    )
    vertex.wait(name, "SUCCEEDED")
    printed = [line.split()[1:] for line in vertex.log(name)]
    assert [line[2] for line in printed] == ["aiplatform.googleapis.com"] * 2
    assert len({port for line in printed for port in line[:2] if port.isdigit()}) == 4


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("tensorboard", "tensorboards/123"),
        ("experiment", "metadataStores/default/contexts/unknown"),
        ("experimentRun", "metadataStores/default/contexts/unknown-r"),
    ],
)
def test_a_job_is_refused_if_what_it_names_is_not_here(vertex: Service, place: str, name: str) -> None:
    body = custom_job("true", serviceAccount=ACCOUNT)
    body["jobSpec"][place] = f"{PARENT}/{name}"
    tuning = {"displayName": "t", "trialJobSpec": body["jobSpec"]}
    sent = {"customJobs": (body, "jobSpec"), "hyperparameterTuningJobs": (tuning, "trialJobSpec")}
    for collection, (resource, spec) in sent.items():
        status, refused = vertex.call("POST", f"/v1/{PARENT}/{collection}", resource)
        assert status == 400
        assert f"{spec}.{place}: {BY_ID}/{name} doesn't exist locally; create" in refused["error"]["message"]


def test_a_job_knows_its_experiment_and_its_run(vertex: Service) -> None:
    init(vertex, experiment="named")
    aiplatform.start_run("r")
    ours = job(PRINT_EXPERIMENT)
    ours.run(experiment="named", experiment_run="r", service_account=ACCOUNT)
    assert vertex.log(ours.resource_name) == ["workerpool0-0: named r"]
    run = aiplatform.ExperimentRun("r", "named")
    assert [one.resource_name for one in run.get_logged_custom_jobs()] == [ours.resource_name]


def test_a_job_with_an_experiment_alone_gets_a_run(vertex: Service, caplog: pytest.LogCaptureFixture) -> None:
    init(vertex, experiment="alone")
    ours = job(PRINT_EXPERIMENT)
    ours.run(experiment="alone", service_account=ACCOUNT)
    assert vertex.get(ours.resource_name)["jobSpec"]["experimentRun"] == f"{CONTEXTS}/alone-{ours.name}"
    assert vertex.log(ours.resource_name) == [f"workerpool0-0: alone {ours.name}"]
    (run,) = aiplatform.ExperimentRun.list(experiment="alone")
    assert (run.name, run.state.name) == (ours.name, "COMPLETE")
    assert [one.resource_name for one in run.get_logged_custom_jobs()] == [ours.resource_name]
    assert warnings(caplog) == []


@pytest.mark.proof
def test_a_local_script_logs_by_itself_with_the_mlflow_that_its_refusal_names(vertex: Service, tmp_path: Path) -> None:
    init(vertex, experiment="itself")
    path = tmp_path / "fit.py"
    path.write_text("""
from sklearn.linear_model import LinearRegression
LinearRegression().fit([[1], [2], [3]], [1, 2, 3])
""")

    def local(*requirements: str) -> aiplatform.CustomJob:
        return aiplatform.CustomJob.from_local_script(
            "itself", str(path), "image", enable_autolog=True, requirements=["scikit-learn", *requirements]
        )

    with pytest.raises(BadRequest, match=f'add "{experiments.MLFLOW}" to the package\'s requirements'):
        local().run(experiment="itself", service_account=ACCOUNT)
    local(experiments.MLFLOW).run(experiment="itself", service_account=ACCOUNT)
    (run,) = aiplatform.ExperimentRun.list(experiment="itself")
    assert run.get_metrics()["training_score"] == 1.0


def test_a_tuning_job_has_a_tensorboard(vertex: Service, caplog: pytest.LogCaptureFixture) -> None:
    board = tensorboard()
    ours = aiplatform.HyperparameterTuningJob(
        "tuning",
        custom_job=job(TRIAL),
        metric_spec={"loss": "minimize"},
        parameter_spec={"rate": hpt.DoubleParameterSpec(min=0.1, max=1, scale="linear")},
        max_trial_count=1,
        parallel_trial_count=1,
    )
    ours.run(tensorboard=board, service_account=ACCOUNT)
    (trial,) = vertex.get(ours.resource_name)["trials"]
    assert f"workerpool0-0: {by_id(board)}" in vertex.log(trial["customJob"])
    assert warnings(caplog) == []


TRIAL = f"""
import json
{PRINT_BOARD}
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
    file.write(json.dumps({{"loss": 1.0, "global_step": 1, "timestamp": 0, "trial": os.environ["CLOUD_ML_TRIAL_ID"]}}))
"""


def test_a_training_pipeline_has_a_tensorboard(vertex: Service) -> None:
    board = tensorboard()
    training = aiplatform.CustomContainerTrainingJob("pipeline", "image", command=list(script(PRINT_BOARD)))
    training.run(machine_type="n1-standard-8", tensorboard=board, service_account=ACCOUNT)
    backing = training._gca_resource.training_task_metadata["backingCustomJob"]
    assert vertex.log(backing) == [f"workerpool0-0: {by_id(board)}"]


def test_a_run_keeps_what_is_logged_to_it(vertex: Service) -> None:
    init(vertex, experiment="logged")
    aiplatform.start_run("first")
    aiplatform.log_params({"rate": 0.1, "optimizer": "adam"})
    aiplatform.log_metrics({"loss": 2.0})
    aiplatform.log_metrics({"loss": 1.5, "accuracy": 0.5})
    aiplatform.log_classification_metrics(labels=["a", "b"], matrix=[[3, 1], [0, 4]], display_name="confusion")
    aiplatform.end_run()

    run = aiplatform.ExperimentRun("first", "logged")
    assert run.get_params() == {"rate": 0.1, "optimizer": "adam"}
    assert run.get_metrics() == {"loss": 1.5, "accuracy": 0.5}
    assert run.state.name == "COMPLETE"
    (metrics,) = run.get_classification_metrics()
    assert metrics["matrix"] == [[3, 1], [0, 4]]


def test_an_experiment_has_its_runs_and_no_others(vertex: Service) -> None:
    for experiment, runs in (("one", ("a", "b")), ("two", ("c",))):
        init(vertex, experiment=experiment)
        for run in runs:
            aiplatform.start_run(run)
    assert {run.name for run in aiplatform.ExperimentRun.list(experiment="one")} == {"a", "b"}
    # As Experiment.get_data_frame asks; it needs pandas, which is not among this project's packages.
    titles = '(schema_title="system.ExperimentRun" OR schema_title="system.PipelineRun")'
    rows = aiplatform.Context.list(filter=f'{titles} AND parent_contexts:"{CONTEXTS}/two"')
    assert [row.display_name for row in rows] == ["c"]


def test_all_experiments_share_one_default_tensorboard(vertex: Service) -> None:
    for experiment in ("here", "there"):
        init(vertex, experiment=experiment)
    assert len(aiplatform.Tensorboard.list(filter="is_default=true")) == 1


def test_experiments_are_created_found_and_deleted(vertex: Service) -> None:
    created = aiplatform.Experiment.create("temporary", description="to delete")
    assert "temporary" in [one.name for one in aiplatform.Experiment.list()]
    aiplatform.ExperimentRun.create("run", experiment=created)
    found = aiplatform.Experiment.get("temporary")
    assert found is not None
    found.delete()
    assert aiplatform.Experiment.get("temporary") is None
    assert not [one for one in (vertex.state_dir / by_id(CONTEXTS)).iterdir() if one.name.startswith("temporary")]


def test_no_two_experiments_have_one_name() -> None:
    aiplatform.Experiment.create("twice")
    with pytest.raises(Conflict, match="already exists"):
        aiplatform.Experiment.create("twice")


def test_the_end_of_a_job_ends_its_run(vertex: Service, caplog: pytest.LogCaptureFixture) -> None:
    init(vertex, experiment="jobs")
    run = aiplatform.start_run("r")
    run.log_params({"rate": 0.1})
    ours = job("pass")
    ours.run(experiment="jobs", experiment_run="r", service_account=ACCOUNT)
    assert vertex.get(ours.resource_name)["jobSpec"]["experimentRun"] == f"{CONTEXTS}/jobs-r"
    ended = aiplatform.ExperimentRun("r", "jobs")
    assert ended.state.name == "COMPLETE"
    assert ended.get_params() == {"rate": 0.1}
    assert warnings(caplog) == []
    aiplatform.end_run()  # which holds what it read before the job


def test_a_mask_says_what_an_update_replaces(vertex: Service) -> None:
    aiplatform.Experiment.create("masked", description="before")
    name = f"{CONTEXTS}/masked"
    before = vertex.get(name)
    _, after = vertex.call("PATCH", f"/v1/{name}?updateMask=metadata", {"description": "after", "metadata": {"a": 1}})
    assert after["metadata"] == {"a": 1}
    assert after["description"] == "before"
    assert after["etag"] > before["etag"]
    status, refused = vertex.call("PATCH", f"/v1/{name}?updateMask=metadata.a", {"metadata": {"a": 2}})
    assert status == 400
    assert 'updateMask: "metadata.a" isn\'t a field' in refused["error"]["message"]


def test_what_is_deleted_takes_with_it_what_is_below(vertex: Service) -> None:
    board = tensorboard()
    vertex.call("POST", f"/v1/{board}/experiments?tensorboardExperimentId=e", {})
    vertex.call("POST", f"/v1/{board}/experiments/e/runs?tensorboardRunId=r", {"displayName": "r"})
    assert vertex.get(f"{board}/experiments/e/runs/r")["displayName"] == "r"
    aiplatform.Tensorboard(board).delete()
    assert vertex.get(f"{board}/experiments/e/runs") == {"tensorboardRuns": []}


@pytest.mark.parametrize(
    ("method", "address", "body", "status", "message"),
    [
        ("POST", "metadataStores/default/contexts:purge", {}, 400, "filter: is missing; set a filter that selects"),
        ("GET", "metadataStores/default/metadataSchemas", None, 501, "the local Vertex doesn't support"),
        ("DELETE", "metadataStores/default/contexts", None, 501, "the local Vertex doesn't support"),
        ("POST", "metadataStores/none/contexts?contextId=x", {}, 404, "metadataStores/none does not exist"),
        ("PATCH", "metadataStores/default/contexts/none", {}, 404, "contexts/none does not exist"),
        ("POST", "metadataStores/default/contexts?contextId=a+b", {}, 400, "isn't a valid resource name"),
        ("POST", "metadataStores/default/contexts", {"nmae": "x"}, 400, 'unknown key "nmae"'),
        ("POST", "metadataStores/default/contexts/own:addContextChildren", {"childContexts": ["x"]}, 404, "x does not"),
        ("GET", "tensorboardsx", None, 404, "the local Vertex has no tensorboardsx"),
    ],
)
def test_a_refusal_says_why(vertex: Service, method: str, address: str, body: Any, status: int, message: str) -> None:
    aiplatform.Experiment.get_or_create("own")
    actual, refused = vertex.call(method, f"/v1/{PARENT}/{address}", body)
    assert (actual, message in refused["error"]["message"]) == (status, True), refused


def test_only_what_is_in_the_store_joins_a_context(vertex: Service) -> None:
    aiplatform.Experiment.get_or_create("own")
    ours = {"childContexts": [tensorboard()]}
    status, refused = vertex.call("POST", f"/v1/{CONTEXTS}/own:addContextChildren", ours)
    assert status == 400
    assert "isn't in projects/p/locations/us-central1/metadataStores/default" in refused["error"]["message"]
