"""Experiments and ML metadata."""

from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.cloud.aiplatform.metadata.schema.system import artifact_schema, context_schema, execution_schema
from google.cloud.aiplatform_v1 import MetadataServiceClient

from launcher.tests.sdk import gapic, init
from launcher.tests.vertex import PARENT, Service, script
from tests.fidelity.usages import ACCOUNT, DOCS, NOTEBOOKS, SAMPLES, SYSTEM, pool, usage

TRACKING = f"{SAMPLES}/experiment_tracking"
STORE = f"{PARENT}/metadataStores/default"


def artifact(name: str, **more: Any) -> aiplatform.Artifact:
    """Create a dataset as an artifact."""
    uri = f"gs://b/artifacts/{name}"
    return aiplatform.Artifact.create(schema_title="system.Dataset", display_name=name, uri=uri, **more)


def execution(name: str) -> aiplatform.Execution:
    # The SDK 2.7.0 takes a type for the credentials, unless they are given here.
    about = {"schema_title": "system.ContainerExecution", "display_name": name}
    return aiplatform.Execution.create(**about, credentials=AnonymousCredentials())


def run(vertex: Service, experiment: str, name: str = "run") -> aiplatform.ExperimentRun:
    """Start a run of an experiment of its own."""
    init(vertex, experiment=experiment)
    return aiplatform.start_run(name)


@usage(f"{TRACKING}/create_experiment_sample.py")
def created(vertex: Service) -> None:
    """Create an experiment with a description and a custom TensorBoard."""
    board = aiplatform.Tensorboard.create(display_name="of an experiment")
    init(vertex, experiment="created", experiment_description="a test", experiment_tensorboard=board)
    experiment = aiplatform.Experiment("created")
    assert experiment.get_backing_tensorboard_resource().resource_name == board.resource_name


@usage(f"{TRACKING}/create_experiment_default_tensorboard_sample.py")
def with_the_default_tensorboard(vertex: Service) -> None:
    """Create an experiment with the default TensorBoard."""
    init(vertex, experiment="default-board")
    board = aiplatform.Experiment("default-board").get_backing_tensorboard_resource()
    assert board.gca_resource.is_default


@usage(f"{TRACKING}/create_experiment_without_default_tensorboard_sample.py")
def without_a_tensorboard(vertex: Service) -> None:
    """Create an experiment without a TensorBoard."""
    init(vertex, experiment="no-board", experiment_tensorboard=False)
    assert aiplatform.Experiment("no-board").get_backing_tensorboard_resource() is None


@usage(f"{TRACKING}/get_experiment_backing_tensorboard_sample.py")
def backing_tensorboard(vertex: Service) -> None:
    """Assign a TensorBoard to an experiment, and read its name."""
    board = aiplatform.Tensorboard.create(display_name="backing")
    experiment = aiplatform.Experiment.create("backed")
    experiment.assign_backing_tensorboard(board)
    assert aiplatform.Experiment("backed").get_backing_tensorboard_resource().name == board.name


@usage(f"{TRACKING}/create_experiment_run_sample.py")
def run_created(vertex: Service) -> None:
    """Start a run of an experiment."""
    run(vertex, "run-created", "first")
    assert [one.name for one in aiplatform.ExperimentRun.list(experiment="run-created")] == ["first"]


@usage(f"{TRACKING}/log_params_sample.py")
def parameters_logged(vertex: Service) -> None:
    """Log parameters to a resumed run."""
    run(vertex, "parameters")
    aiplatform.end_run()
    aiplatform.start_run("run", resume=True)
    aiplatform.log_params({"learning_rate": 0.01, "dropout": 0.2, "optimizer": "adam"})
    assert aiplatform.ExperimentRun("run", "parameters").get_params()["optimizer"] == "adam"


@usage(f"{TRACKING}/log_metrics_sample.py")
def metrics_logged(vertex: Service) -> None:
    """Log summary metrics, and read them."""
    run(vertex, "metrics")
    aiplatform.log_metrics({"accuracy": 0.9, "loss": 0.1})
    assert aiplatform.ExperimentRun("run", "metrics").get_metrics() == {"accuracy": 0.9, "loss": 0.1}


@usage(f"{TRACKING}/log_classification_metrics_sample.py")
def classification_logged(vertex: Service) -> None:
    """Log a confusion matrix and a ROC curve."""
    run(vertex, "classification")
    curve = {"fpr": [0.1, 0.5, 1.0], "tpr": [0.1, 0.7, 1.0], "threshold": [0.9, 0.5, 0.1]}
    aiplatform.log_classification_metrics(labels=["a", "b"], matrix=[[38, 1], [2, 36]], display_name="cm", **curve)
    (metrics,) = aiplatform.ExperimentRun("run", "classification").get_classification_metrics()
    assert (metrics["matrix"], metrics["labels"]) == ([[38, 1], [2, 36]], ["a", "b"])
    assert metrics["fpr"] == curve["fpr"]


@usage(f"{TRACKING}/log_time_series_metrics_sample.py")
def time_series_logged(vertex: Service) -> None:
    """Log metrics at every step of a run."""
    run(vertex, "steps")
    for step in range(1, 4):
        aiplatform.log_time_series_metrics({"loss": 1 / step}, step=step)
    assert aiplatform.ExperimentRun("run", "steps").get_state() == "RUNNING"


@usage(f"{TRACKING}/end_experiment_run_sample.py")
def run_ended(vertex: Service) -> None:
    """End a run, so that its state is complete."""
    run(vertex, "ended")
    aiplatform.end_run()
    assert aiplatform.ExperimentRun("run", "ended").get_state() == "COMPLETE"


@usage(f"{TRACKING}/update_experiment_run_state_sample.py")
def run_failed(vertex: Service) -> None:
    """Set the state of a run."""
    run(vertex, "failed").update_state(aiplatform.gapic.Execution.State.FAILED)
    assert aiplatform.ExperimentRun("run", "failed").get_state() == "FAILED"


@usage(f"{TRACKING}/resume_experiment_run_sample.py")
def run_resumed(vertex: Service) -> None:
    """Resume a run in another session and add to its metrics."""
    run(vertex, "resumed")
    aiplatform.log_metrics({"first": 1})
    aiplatform.end_run()
    with aiplatform.start_run("run", resume=True) as again:
        again.log_metrics({"second": 2})
    assert aiplatform.ExperimentRun("run", "resumed").get_metrics() == {"first": 1, "second": 2}


@usage(f"{TRACKING}/delete_experiment_run_sample.py")
def run_deleted(vertex: Service) -> None:
    """Delete a run with its TensorBoard run."""
    run(vertex, "run-deleted").end_run()
    aiplatform.ExperimentRun("run", "run-deleted").delete(delete_backing_tensorboard_run=True)
    assert aiplatform.ExperimentRun.list(experiment="run-deleted") == []


@usage(f"{TRACKING}/delete_experiment_sample.py")
def experiment_deleted(vertex: Service) -> None:
    """Delete an experiment with its runs."""
    run(vertex, "deleted").end_run()
    aiplatform.Experiment("deleted").delete(delete_backing_tensorboard_runs=True)
    assert aiplatform.Experiment.get("deleted") is None


@usage(f"{NOTEBOOKS}/experiments/get_started_with_vertex_experiments.ipynb")
def listed(vertex: Service) -> None:
    """List all experiments."""
    aiplatform.Experiment.create("one-of-all")
    assert "one-of-all" in [experiment.name for experiment in aiplatform.Experiment.list()]


@usage(f"{NOTEBOOKS}/experiments/comparing_local_trained_models.ipynb")
def compared(vertex: Service) -> None:
    """Get the runs of an experiment as rows with get_experiment_df."""
    for name, rate in (("slow", 0.1), ("fast", 0.9)):
        run(vertex, "compared", name)
        aiplatform.log_params({"rate": rate})
        aiplatform.log_metrics({"loss": 1 - rate})
        aiplatform.end_run()
    contexts = f'parent_contexts:"{STORE}/contexts/compared" AND schema_title="system.ExperimentRun"'
    rows = aiplatform.Context.list(filter=contexts)
    assert sorted(row.metadata["_params"]["rate"] for row in rows) == [0.1, 0.9]


@usage(f"{NOTEBOOKS}/experiments/build_model_experimentation_lineage_with_prebuild_code.ipynb")
def lineage(vertex: Service) -> None:
    """Track the inputs and outputs of an execution in a run."""
    run(vertex, "lineage")
    with aiplatform.start_execution(schema_title="system.ContainerExecution", display_name="prepare") as step:
        step.assign_input_artifacts([artifact("raw")])
        step.assign_output_artifacts([artifact("prepared")])
    assert [one.display_name for one in step.get_output_artifacts()] == ["prepared"]
    assert [one.display_name for one in aiplatform.ExperimentRun("run", "lineage").get_executions()] == ["prepare"]


@usage(f"{TRACKING}/assign_artifact_as_execution_input_sample.py")
def input_assigned(vertex: Service) -> None:
    """Assign an artifact as the input of an execution."""
    execution("reads").assign_input_artifacts([artifact("to-read")])


@usage(f"{TRACKING}/assign_artifact_as_execution_output_sample.py")
def output_assigned(vertex: Service) -> None:
    """Assign an artifact as the output of an execution."""
    execution("writes").assign_output_artifacts([artifact("to-write")])


@usage(f"{TRACKING}/get_execution_input_artifacts_sample.py")
def inputs_read(vertex: Service) -> None:
    """Read the inputs of an execution."""
    step, data = execution("has inputs"), artifact("input")
    step.assign_input_artifacts([data])
    assert [one.resource_name for one in step.get_input_artifacts()] == [data.resource_name]


@usage(f"{TRACKING}/get_execution_output_artifacts_sample.py")
def outputs_read(vertex: Service) -> None:
    """Read the outputs of an execution."""
    step, data = execution("has outputs"), artifact("output")
    step.assign_output_artifacts([data])
    assert [one.resource_name for one in step.get_output_artifacts()] == [data.resource_name]


@usage(f"{TRACKING}/get_experiment_run_artifacts_sample.py")
def artifacts_of_a_run(vertex: Service) -> None:
    """Read the artifacts of a run's executions."""
    run(vertex, "of-a-run")
    with aiplatform.start_execution(schema_title="system.Run", display_name="step") as step:
        step.assign_output_artifacts([artifact("of-a-run")])
    found = aiplatform.ExperimentRun("run", "of-a-run").get_artifacts()
    assert "of-a-run" in [one.display_name for one in found]


@usage(f"{SYSTEM}/test_experiments.py")
def lineage_graph(vertex: Service) -> None:
    """Query the graph around an artifact."""
    step, data = execution("graph"), artifact("graph")
    step.assign_output_artifacts([data])
    graph = gapic(MetadataServiceClient, vertex).query_artifact_lineage_subgraph(artifact=data.resource_name)
    assert [one.name for one in graph.executions] == [step.resource_name]
    assert len(graph.events) == 1


@usage(f"{TRACKING}/create_artifact_sample.py")
def artifact_created(vertex: Service) -> None:
    """Create an artifact with an ID, a schema and metadata."""
    made = artifact("created", resource_id="created", schema_version="0.0.1", metadata={"rows": 10})
    assert made.name == "created"
    assert (made.schema_title, made.metadata) == ("system.Dataset", {"rows": 10})


@usage(f"{TRACKING}/create_artifact_with_sdk_sample.py")
def artifact_by_schema(vertex: Service) -> None:
    """Create an artifact with the class of its schema."""
    made = artifact_schema.Dataset(uri="gs://b/by-schema", display_name="by schema", metadata={"rows": 1}).create()
    assert made.schema_title == "system.Dataset"


@usage(f"{TRACKING}/get_artifact_sample.py")
def artifact_found(vertex: Service) -> None:
    """Get an artifact by its ID."""
    made = artifact("found")
    assert aiplatform.Artifact.get(resource_id=made.name).uri == "gs://b/artifacts/found"


@usage(f"{TRACKING}/get_artifact_with_uri_sample.py")
def artifact_by_uri(vertex: Service) -> None:
    """Get an artifact by its URI."""
    made = artifact("by-uri")
    assert aiplatform.Artifact.get_with_uri(uri="gs://b/artifacts/by-uri").name == made.name


@usage(f"{TRACKING}/list_artifact_sample.py")
def artifacts_listed(vertex: Service) -> None:
    """List artifacts by name and creation time, newest first."""
    artifact("to-list")
    filters = 'display_name="to-list" AND create_time>"2020-01-01T00:00:00-08:00"'
    assert len(aiplatform.Artifact.list(filter=filters, order_by="create_time desc")) == 1


@usage(f"{DOCS}: Track Vertex ML Metadata, filter by metadata")
def artifacts_by_metadata(vertex: Service) -> None:
    """Find artifacts by a number and a text in their metadata."""
    artifact("measured", metadata={"accuracy": 0.75, "kind": "test"})
    wanted = 'metadata.accuracy.number_value=0.75 AND metadata.kind.string_value="test"'
    assert [one.display_name for one in aiplatform.Artifact.list(filter=wanted)] == ["measured"]


@usage(f"{DOCS}: google.cloud.aiplatform.Artifact.update")
def artifact_updated(vertex: Service) -> None:
    """Change the metadata of an artifact."""
    made = artifact("updated", metadata={"rows": 1})
    made.update(metadata={"rows": 2}, description="changed")
    assert aiplatform.Artifact.get(resource_id=made.name).metadata["rows"] == 2


@usage(f"{TRACKING}/delete_artifact_sample.py")
def artifact_deleted(vertex: Service) -> None:
    """Delete an artifact."""
    made = artifact("deleted")
    aiplatform.Artifact.get(resource_id=made.name).delete()
    assert aiplatform.Artifact.get(resource_id=made.name) is None


@usage(f"{TRACKING}/create_execution_with_sdk_sample.py")
def execution_by_schema(vertex: Service) -> None:
    """Create an execution with the class of its schema, with inputs and outputs."""
    with execution_schema.ContainerExecution(display_name="by schema", metadata={"image": "a"}).create() as step:
        step.assign_input_artifacts([artifact("in")])
        step.assign_output_artifacts([artifact("out")])
    assert step.state.name == "COMPLETE"


@usage(f"{TRACKING}/get_execution_sample.py")
def execution_found(vertex: Service) -> None:
    """Get an execution by its ID."""
    made = execution("to find")
    assert aiplatform.Execution.get(resource_id=made.name).display_name == "to find"


@usage(f"{TRACKING}/list_execution_sample.py")
def executions_listed(vertex: Service) -> None:
    """List executions by name and creation time."""
    execution("to-list")
    filters = 'display_name="to-list" AND create_time>"2022-06-11T12:30:00-08:00"'
    assert len(aiplatform.Execution.list(filter=filters)) == 1


@usage(f"{TRACKING}/delete_execution_sample.py")
def execution_deleted(vertex: Service) -> None:
    """Delete an execution."""
    made = execution("deleted")
    aiplatform.Execution.get(resource_id=made.name).delete()
    assert aiplatform.Execution.get(resource_id=made.name) is None


@usage(f"{TRACKING}/create_context_with_sdk_sample.py")
def context_by_schema(vertex: Service) -> None:
    """Create a context with the class of its schema."""
    made = context_schema.Experiment(display_name="by schema", context_id="by-schema", metadata={"a": 1}).create()
    assert (made.name, made.schema_title) == ("by-schema", "system.Experiment")


@usage(f"{TRACKING}/get_context_sample.py")
def context_found(vertex: Service) -> None:
    """Get a context by its ID."""
    aiplatform.Context.create(schema_title="system.Experiment", resource_id="to-find", display_name="to find")
    assert aiplatform.Context.get(resource_id="to-find").display_name == "to find"


@usage(f"{TRACKING}/list_context_sample.py")
def contexts_listed(vertex: Service) -> None:
    """List contexts by their schema."""
    aiplatform.Context.create(schema_title="system.Pipeline", resource_id="to-list")
    assert [one.name for one in aiplatform.Context.list(filter='schema_title="system.Pipeline"')] == ["to-list"]


@usage(f"{TRACKING}/delete_context_sample.py")
def context_deleted(vertex: Service) -> None:
    """Delete a context."""
    aiplatform.Context.create(schema_title="system.Experiment", resource_id="to-delete")
    aiplatform.Context.get(resource_id="to-delete").delete()
    assert aiplatform.Context.get(resource_id="to-delete") is None


@usage(f"{SYSTEM}/test_e2e_metadata_schema.py")
def context_with_children(vertex: Service) -> None:
    """Add artifacts and executions to a context."""
    context = aiplatform.Context.create(schema_title="system.Experiment", resource_id="members")
    data, step = artifact("member"), execution("member")
    context.add_artifacts_and_executions([data.resource_name], [step.resource_name])
    found = aiplatform.Artifact.list(filter=f'in_context("{context.resource_name}")')
    assert [one.name for one in found] == [data.name]


@usage(f"{DOCS}: GetMetadataStore")
def default_store(vertex: Service) -> None:
    """Get the default metadata store, which the first experiment creates."""
    aiplatform.Experiment.get_or_create("makes-a-store")
    client = gapic(MetadataServiceClient, vertex)
    assert client.get_metadata_store(name=STORE).name == STORE
    with pytest.raises(NotFound):
        client.get_metadata_store(name=f"{PARENT}/metadataStores/none")


@usage(f"{SAMPLES}/create_custom_job_with_experiment_sample.py")
def job_of_a_run(vertex: Service) -> None:
    """Pass an experiment to a job, for which the SDK creates a run."""
    init(vertex, experiment="of-a-job")
    show = "import os; print(os.environ['AIP_EXPERIMENT_NAME'], os.environ['AIP_EXPERIMENT_RUN_NAME'])"
    job = aiplatform.CustomJob("experiment", worker_pool_specs=[pool(*script(show))])
    job.run(service_account=ACCOUNT, experiment="of-a-job", experiment_run=None)
    (made,) = aiplatform.ExperimentRun.list(experiment="of-a-job")
    assert vertex.log(job.resource_name) == [f"workerpool0-0: of-a-job {made.name}"]


@usage(f"{NOTEBOOKS}/ml_metadata/sdk-metric-parameter-tracking-for-custom-jobs.ipynb")
def job_of_a_given_run(vertex: Service) -> None:
    """Pass an existing run to a job, which logs to the run with the SDK."""
    run(vertex, "given", "run")
    show = "import os; print(os.environ['AIP_EXPERIMENT_RUN_NAME'])"
    job = aiplatform.CustomJob("experiment", worker_pool_specs=[pool(*script(show))])
    job.run(service_account=ACCOUNT, experiment="given", experiment_run="run")
    assert vertex.log(job.resource_name)[0].endswith("run")
    assert aiplatform.ExperimentRun("run", "given").get_state() == "COMPLETE"
