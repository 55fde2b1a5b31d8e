"""Training pipelines."""

import json
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform_v1 import PipelineServiceClient
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Json, Service, script
from tests.fidelity.usages import ACCOUNT, DOCS, NOTEBOOKS, SAMPLES, SERVING, SNIPPETS, TRAINER, pool, put, usage

CUSTOM = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
SAVE = """
import os, pathlib
folder = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", os.environ["GCS_MOUNT"] + "/"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.txt").write_text("weights")
print("rows", *(os.environ.get(f"AIP_{name}_DATA_URI", "-") for name in ("TRAINING", "VALIDATION", "TEST")))
"""
ROWS = "x,split,time,y\n" + "".join(
    f"{i},{('training', 'validation', 'test')[i % 3]},2026-01-{i + 1:02}T00:00:00Z,{i % 2}\n" for i in range(20)
)


def training(code: str = SAVE, **more: Any) -> aiplatform.CustomContainerTrainingJob:
    """Make a pipeline whose container saves a model."""
    parts = {"display_name": "pipeline", "container_uri": "gcr.io/p/trainer:1", "command": list(script(code))}
    return aiplatform.CustomContainerTrainingJob(**(parts | {"model_serving_container_image_uri": SERVING} | more))


def table(name: str) -> aiplatform.TabularDataset:
    return aiplatform.TabularDataset.create(display_name=name, gcs_source=put(f"{name}.csv", ROWS))


def sizes(vertex: Service, job: aiplatform.CustomContainerTrainingJob) -> list[int]:
    """Return how many rows were exported for training, validation and test."""
    (line,) = vertex.log(backing(job))
    files = [next((vertex.state_dir / "gcs").glob(uri.removeprefix("gs://"))) for uri in line.split()[2:]]
    return [len(file.read_text().splitlines()) - 1 for file in files]


def backing(job: Any) -> str:
    return str(job._gca_resource.training_task_metadata["backingCustomJob"])


def request(**more: Any) -> Json:
    """Return a pipeline as the generated client takes it."""
    specs = {"workerPoolSpecs": [pool(*script(SAVE))], "baseOutputDirectory": {"output_uri_prefix": "gs://b/gapic"}}
    inputs = json_format.ParseDict(specs, Value())
    return {"display_name": "gapic", "training_task_definition": CUSTOM, "training_task_inputs": inputs} | more


@usage(f"{SAMPLES}/create_training_pipeline_custom_job_sample.py")
def script_with_a_dataset(vertex: Service) -> None:
    """Train a local script on a table, and upload its model with labels."""
    path = vertex.folder / "train.py"
    path.write_text(SAVE)
    job = aiplatform.CustomTrainingJob(
        display_name="script", script_path=str(path), container_uri=TRAINER, model_serving_container_image_uri=SERVING
    )
    model = job.run(
        dataset=table("script"),
        model_display_name="from a script",
        args=["--epochs=1"],
        replica_count=1,
        machine_type="n1-standard-4",
        training_fraction_split=0.8,
        validation_fraction_split=0.1,
        test_fraction_split=0.1,
        model_labels={"kind": "demo"},
    )
    assert (model.display_name, model.labels) == ("from a script", {"kind": "demo"})
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"


@usage(f"{SAMPLES}/create_training_pipeline_custom_container_job_sample.py")
def container_with_a_dataset(vertex: Service) -> None:
    """Train a container on a table that is split into fractions."""
    job = training()
    fractions = {"training_fraction_split": 0.5, "validation_fraction_split": 0.25, "test_fraction_split": 0.25}
    model = job.run(dataset=table("fractions"), replica_count=1, machine_type="n1-standard-4", **fractions)
    assert sizes(vertex, job) == [10, 5, 5]
    assert model.container_spec.image_uri == SERVING


@usage(f"{SAMPLES}/create_training_pipeline_custom_package_job_sample.py")
def package(vertex: Service) -> None:
    """Use a Python package, and get an error with the URI of a missing package."""
    job = aiplatform.CustomPythonPackageTrainingJob(
        display_name="package",
        python_package_gcs_uri="gs://b/none.tar.gz",
        python_module_name="trainer.task",
        container_uri=TRAINER,
    )
    with pytest.raises(RuntimeError, match=r"gs://b/none\.tar\.gz"):
        job.run(replica_count=1, machine_type="n1-standard-4")


@usage(f"{NOTEBOOKS}/custom/custom_training_container_and_model_registry.ipynb")
def model_in_the_registry(vertex: Service) -> None:
    """Find the model of a pipeline in the registry and its artifact in the bucket."""
    model = training().run(model_display_name="registered", base_output_dir="gs://b/registered")
    assert model.uri == "gs://b/registered/model"
    assert (vertex.state_dir / "gcs/b/registered/model/model.txt").read_text() == "weights"
    assert [one.resource_name for one in aiplatform.Model.list(filter='display_name="registered"')] == [
        model.resource_name
    ]


@usage(f"{SAMPLES}/model_registry/upload_new_model_version_using_custom_training_pipeline_sample.py")
def next_version(vertex: Service) -> None:
    """Upload the model of a pipeline as a new version of a model."""
    first = training().run(model_id="grows", model_version_aliases=["first"])
    second = training().run(
        parent_model=first.resource_name,
        model_version_aliases=["second"],
        model_version_description="better",
        is_default_version=False,
    )
    assert (first.version_id, second.version_id) == ("1", "2")
    assert aiplatform.Model("grows").version_id == "1"
    assert aiplatform.Model("grows", version="second").version_description == "better"


@usage(f"{NOTEBOOKS}/custom/get_started_vertex_training_xgboost.ipynb")
def without_a_model(vertex: Service) -> None:
    """Run a pipeline that uploads no model."""
    job = aiplatform.CustomContainerTrainingJob("no model", "gcr.io/p/trainer:1", command=["echo", "trained"])
    assert job.run(replica_count=1, machine_type="n1-standard-4") is None
    assert vertex.log(backing(job)) == ["workerpool0-0: trained"]


@usage(f"{NOTEBOOKS}/training/get_started_with_vertex_distributed_training.ipynb")
def replicas(vertex: Service) -> None:
    """Train on four replicas, including the chief."""
    job = aiplatform.CustomContainerTrainingJob(
        "four", "gcr.io/p/trainer:1", command=["sh", "-c", "echo $RANK; sleep 1"]
    )
    job.run(replica_count=4, machine_type="n1-standard-4", accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1)
    assert sorted(line.partition(": ")[2] for line in vertex.log(backing(job))) == ["0", "1", "2", "3"]


@usage(f"{NOTEBOOKS}/reduction_server/pytorch_distributed_training_reduction_server.ipynb")
def reduction_server(vertex: Service) -> None:
    """Add reducers to a pipeline of GPU replicas."""
    job = aiplatform.CustomContainerTrainingJob("reducers", "gcr.io/p/trainer:1", command=["true"])
    job.run(
        replica_count=2,
        machine_type="n1-standard-8",
        accelerator_type="NVIDIA_TESLA_V100",
        accelerator_count=1,
        reduction_server_replica_count=1,
        reduction_server_machine_type="n1-highcpu-16",
        reduction_server_container_uri="us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest",
    )
    assert len(vertex.get(backing(job))["jobSpec"]["workerPoolSpecs"]) == 3


@usage(f"{DOCS}: google.cloud.aiplatform.CustomTrainingJob.run, environment_variables")
def variables(vertex: Service) -> None:
    """Pass arguments and variables to the container."""
    show = "import os, sys; print(os.environ['MODE'], *sys.argv[1:])"
    job = training(show, model_serving_container_image_uri=None)
    job.run(args=["--lr", "0.1", "--deep"], environment_variables={"MODE": "fast"})
    assert vertex.log(backing(job)) == ["workerpool0-0: fast --lr 0.1 --deep"]


@usage(f"{DOCS}: Use managed datasets, predefined split")
def predefined_split(vertex: Service) -> None:
    """Split a table by a column that contains the set names."""
    job = training()
    job.run(dataset=table("predefined"), predefined_split_column_name="split")
    assert sizes(vertex, job) == [7, 7, 6]


@usage(f"{DOCS}: Use managed datasets, timestamp split")
def timestamp_split(vertex: Service) -> None:
    """Split a table by time, with the oldest rows for training."""
    fractions = {"training_fraction_split": 0.6, "validation_fraction_split": 0.2, "test_fraction_split": 0.2}
    job = training()
    job.run(dataset=table("by-time"), timestamp_split_column_name="time", **fractions)
    assert sizes(vertex, job) == [12, 4, 4]


@usage(f"{DOCS}: Use managed datasets, images")
def images(vertex: Service) -> None:
    """Train on a dataset of images, exported as JSON lines."""
    listing = "".join(f"gs://b/{i}.jpg,{'cat' if i % 2 else 'dog'}\n" for i in range(10))
    dataset = aiplatform.ImageDataset.create(
        display_name="images",
        gcs_source=put("images.csv", listing),
        import_schema_uri=aiplatform.schema.dataset.ioformat.image.single_label_classification,
    )
    job = training("import os; print(os.environ['AIP_DATA_FORMAT'])", model_serving_container_image_uri=None)
    job.run(dataset=dataset, annotation_schema_uri=aiplatform.schema.dataset.annotation.image.classification)
    assert vertex.log(backing(job)) == ["workerpool0-0: jsonl"]


@usage(f"{DOCS}: Use managed datasets, filter split")
def filter_split(vertex: Service) -> None:
    """Split images by filters over their labels."""
    rows = [
        {"imageGcsUri": f"gs://b/{i}.jpg", "classificationAnnotation": {"displayName": "cat"}}
        | {"dataItemResourceLabels": {"aiplatform.googleapis.com/ml_use": use}}
        for i, use in enumerate(("training", "validation", "test", "test"))
    ]
    dataset = aiplatform.ImageDataset.create(
        display_name="filtered",
        gcs_source=put("filtered.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows)),
        import_schema_uri=aiplatform.schema.dataset.ioformat.image.single_label_classification,
    )
    filters = {name: f"labels.aiplatform.googleapis.com/ml_use={name}" for name in ("training", "validation", "test")}
    job = training()
    job.run(
        dataset=dataset,
        annotation_schema_uri=aiplatform.schema.dataset.annotation.image.classification,
        **{f"{name}_filter_split": text for name, text in filters.items()},
    )
    assert sizes(vertex, job) == [0, 0, 1]  # of JSON lines, which have no header


@usage(f"{NOTEBOOKS}/custom/custom_training_tensorboard_profiler.ipynb")
def with_a_tensorboard(vertex: Service) -> None:
    """Use a TensorBoard in a pipeline."""
    board = aiplatform.Tensorboard.create(display_name="pipeline")
    job = training("import os; print(os.environ['AIP_TENSORBOARD_LOG_DIR'])", model_serving_container_image_uri=None)
    job.run(tensorboard=board.resource_name, service_account=ACCOUNT, base_output_dir="gs://b/board")
    assert vertex.log(backing(job)) == ["workerpool0-0: gs://b/board/logs/"]


@usage(f"{DOCS}: google.cloud.aiplatform.CustomContainerTrainingJob.run, sync=False")
def in_the_background(vertex: Service) -> None:
    """Start a pipeline without waiting, then wait for its model."""
    model = training().run(model_display_name="later", sync=False)
    model.wait()
    assert model.resource_name.startswith(f"{PARENT}/models/")


@usage(f"{DOCS}: google.cloud.aiplatform.CustomContainerTrainingJob.submit")
def submitted(vertex: Service) -> None:
    """Submit a pipeline, follow its state, and get the model when the pipeline ends."""
    job = training()
    job.submit(model_display_name="submitted", replica_count=1, machine_type="n1-standard-4")
    vertex.wait(job.resource_name)
    assert aiplatform.CustomContainerTrainingJob.get(job.resource_name).get_model().display_name == "submitted"


@usage(f"{NOTEBOOKS}/custom/get_started_vertex_training_xgboost.ipynb")
def listed_and_deleted(vertex: Service) -> None:
    """List pipelines by name and delete one."""
    job = training("pass", display_name="to delete", model_serving_container_image_uri=None)
    job.run()
    (found,) = aiplatform.CustomContainerTrainingJob.list(filter='display_name="to delete"')
    found.delete()
    assert aiplatform.CustomContainerTrainingJob.list(filter='display_name="to delete"') == []


@usage(f"{DOCS}: google.cloud.aiplatform.CustomContainerTrainingJob.cancel")
def cancelled(vertex: Service) -> None:
    """Cancel a pipeline and its job."""
    job = training("import time; time.sleep(600)", model_serving_container_image_uri=None)
    job.submit()
    vertex.wait(job.resource_name, "RUNNING")
    job.cancel()
    vertex.wait(job.resource_name, "CANCELLED")


@usage(f"{DOCS}: google.cloud.aiplatform.CustomContainerTrainingJob.run, a failure")
def failure(vertex: Service) -> None:
    """See a pipeline fail with the error of its job."""
    job = training("raise SystemExit('no data')")
    with pytest.raises(RuntimeError, match="non-zero status of 1"):
        job.run()
    assert job.has_failed


@usage(f"{DOCS}: google.cloud.aiplatform.CustomContainerTrainingJob.run, no model")
def nothing_saved(vertex: Service) -> None:
    """See a pipeline fail whose trainer has saved no model."""
    with pytest.raises(RuntimeError, match="AIP_MODEL_DIR"):
        training("pass").run()


@usage(f"{DOCS}: Use Spot VMs with training")
def spot(vertex: Service) -> None:
    """Run a pipeline on Spot VMs with a time limit."""
    job = training("pass", model_serving_container_image_uri=None)
    job.run(timeout=600, scheduling_strategy=aiplatform.compat.types.custom_job.Scheduling.Strategy.SPOT)
    assert vertex.get(backing(job))["jobSpec"]["scheduling"]["strategy"] == "SPOT"


@usage(f"{DOCS}: google.cloud.aiplatform.CustomTrainingJob, serving container")
def serving_container(vertex: Service) -> None:
    """Describe the container that would serve the model."""
    routes = {"predict_route": "/predict", "health_route": "/health", "ports": [8080], "args": ["--fast"]}
    more = {f"model_serving_container_{name}": value for name, value in routes.items()}
    model = training(**more, model_serving_container_environment_variables={"MODE": "fast"}).run()
    spec = model.container_spec
    assert (spec.predict_route, spec.health_route, spec.ports[0].container_port) == ("/predict", "/health", 8080)
    assert (list(spec.args), spec.env[0].value) == (["--fast"], "fast")


@usage(f"{SNIPPETS}/pipeline_service/create_training_pipeline_custom_job_sample.py")
def created_by_gapic(vertex: Service) -> None:
    """Create a pipeline with the generated client, with a model to upload."""
    client = gapic(PipelineServiceClient, vertex)
    model = {"display_name": "gapic", "container_spec": {"image_uri": SERVING, "command": [], "args": []}}
    created = client.create_training_pipeline(parent=PARENT, training_pipeline=request(model_to_upload=model))
    vertex.wait(created.name, "SUCCEEDED")
    assert client.get_training_pipeline(name=created.name).model_to_upload.name.startswith(f"{PARENT}/models/")


@usage(f"{SNIPPETS}/pipeline_service/create_training_pipeline_custom_training_managed_dataset_sample.py")
def dataset_by_gapic(vertex: Service) -> None:
    """Create a pipeline with the generated client, with a dataset and an export folder."""
    client = gapic(PipelineServiceClient, vertex)
    data = {"dataset_id": table("gapic").name, "gcs_destination": {"output_uri_prefix": "gs://b/exported"}}
    created = client.create_training_pipeline(parent=PARENT, training_pipeline=request(input_data_config=data))
    vertex.wait(created.name, "SUCCEEDED")
    assert len([*(vertex.state_dir / "gcs/b/exported").rglob("*.csv")]) == 3


@usage(f"{SNIPPETS}/pipeline_service/get_training_pipeline_sample.py")
def read_by_gapic(vertex: Service) -> None:
    """Get and list pipelines with the generated client."""
    client = gapic(PipelineServiceClient, vertex)
    name = client.create_training_pipeline(parent=PARENT, training_pipeline=request(display_name="to get")).name
    assert client.get_training_pipeline(name=name).training_task_definition == CUSTOM
    listed = client.list_training_pipelines(request={"parent": PARENT, "filter": 'display_name="to get"'})
    assert [pipeline.name for pipeline in listed] == [name]


@usage(f"{SNIPPETS}/pipeline_service/cancel_training_pipeline_sample.py")
def cancelled_by_gapic(vertex: Service) -> None:
    """Cancel a pipeline with the generated client and its path helper."""
    client = gapic(PipelineServiceClient, vertex)
    inputs = json_format.ParseDict({"workerPoolSpecs": [pool("sleep", "600")]}, Value())
    job = client.create_training_pipeline(parent=PARENT, training_pipeline=request(training_task_inputs=inputs))
    name = client.training_pipeline_path("p", "us-central1", job.name.rpartition("/")[2])
    client.cancel_training_pipeline(name=name)
    vertex.wait(name, "CANCELLED")


@usage(f"{SNIPPETS}/pipeline_service/delete_training_pipeline_sample.py")
def deleted_by_gapic(vertex: Service) -> None:
    """Delete a pipeline with the generated client."""
    client = gapic(PipelineServiceClient, vertex)
    name = client.create_training_pipeline(parent=PARENT, training_pipeline=request()).name
    vertex.wait(name)
    client.delete_training_pipeline(name=name).result(timeout=60)
    with pytest.raises(NotFound):
        client.get_training_pipeline(name=name)


TRIAL = (
    SAVE
    + """
import json, sys
score = {"timestamp": 1, "trial": "1", "global_step": "1", "score": sys.argv[1].split("=")[1]}
pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"]).write_text(json.dumps(score))
"""
)


@usage(f"{DOCS}: Create training pipelines, hyperparameter tuning task")
def tuning_task(vertex: Service) -> None:
    """Tune hyperparameters inside a pipeline, and upload the model of the best trial."""
    parameter = {"parameterId": "x", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}
    inputs = {
        "studySpec": {"metrics": [{"metricId": "score", "goal": "MAXIMIZE"}], "parameters": [parameter]},
        "trialJobSpec": {
            "workerPoolSpecs": [pool(*script(TRIAL))],
            "baseOutputDirectory": {"outputUriPrefix": "gs://b/tuned"},
        },
        "maxTrialCount": 2,
        "parallelTrialCount": 2,
    }
    body = request(
        training_task_definition=CUSTOM.replace("custom_task", "hyperparameter_tuning_task"),
        training_task_inputs=json_format.ParseDict(inputs, Value()),
        model_to_upload={"display_name": "tuned", "container_spec": {"image_uri": SERVING}},
    )
    client = gapic(PipelineServiceClient, vertex)
    name = client.create_training_pipeline(parent=PARENT, training_pipeline=body).name
    pipeline = vertex.wait(name, "SUCCEEDED")
    search = vertex.get(pipeline["trainingTaskMetadata"]["backingHyperparameterTuningJob"])
    best = max(search["trials"], key=lambda trial: trial["finalMeasurement"]["metrics"][0]["value"])
    assert pipeline["trainingTaskMetadata"]["bestTrialBackingCustomJob"] == best["customJob"]
    model = vertex.get(pipeline["modelToUpload"]["name"])
    assert model["artifactUri"] == f"gs://b/tuned/{best['id']}/model"


@usage(f"{SAMPLES}/create_training_pipeline_tabular_classification_sample.py", absent="automl_tabular")
def automl_table(vertex: Service) -> None:
    """Train on a table with AutoML."""
    job = aiplatform.AutoMLTabularTrainingJob("tables", optimization_prediction_type="classification")
    job.run(dataset=table("automl"), target_column="y")


@usage(f"{SAMPLES}/create_training_pipeline_image_classification_sample.py", absent="automl_image_classification")
def automl_images(vertex: Service) -> None:
    """Train on images with AutoML."""
    job = aiplatform.AutoMLImageTrainingJob("images", prediction_type="classification")
    job.run(dataset=aiplatform.ImageDataset.create(display_name="automl images"))


@usage(f"{SAMPLES}/create_training_pipeline_text_classification_sample.py", absent="automl_text_classification")
def automl_text(vertex: Service) -> None:
    """Train on texts with AutoML."""
    job = aiplatform.AutoMLTextTrainingJob("texts", prediction_type="classification")
    job.run(dataset=aiplatform.TextDataset.create(display_name="automl texts"))
