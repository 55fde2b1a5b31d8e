"""Train, tune, and manage datasets and models with Airflow's hooks for Vertex AI."""

import os

os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = "google-cloud-platform://?project=p"

from airflow.providers.google.cloud.hooks.vertex_ai.custom_job import CustomJobHook
from airflow.providers.google.cloud.hooks.vertex_ai.dataset import DatasetHook
from airflow.providers.google.cloud.hooks.vertex_ai.hyperparameter_tuning_job import (
    HyperparameterTuningJobHook,
)
from airflow.providers.google.cloud.hooks.vertex_ai.model_service import ModelServiceHook
from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning, jobs, training_jobs

jobs._JOB_WAIT_TIME = training_jobs._JOB_WAIT_TIME = 0.5  # quicker looks than every five seconds
PLACE = {"project_id": "p", "region": "us-central1"}
IMAGE = "us-docker.pkg.dev/p/r/train:1"
SERVING = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"
TEXTS = "gs://google-cloud-aiplatform/schema/dataset/metadata/text_1.0.0.yaml"
SAVE = "mkdir -p /gcs/b/airflow/model && echo weights > /gcs/b/airflow/model/model.bin"
REPORT = """echo '{"loss": "0.5", "global_step": "1", "timestamp": 0.5}' > "$CLOUD_ML_HP_METRIC_FILE" """

trainer = CustomJobHook()
model, pipeline_id, job_id = trainer.create_custom_container_training_job(
    **PLACE,
    display_name="airflow",
    container_uri=IMAGE,
    command=["bash", "-c", SAVE],
    model_serving_container_image_uri=SERVING,
    model_display_name="airflow-model",
    staging_bucket="gs://b",
    base_output_dir="gs://b/airflow",
)
assert model.display_name == "airflow-model"
assert trainer.get_training_pipeline(**PLACE, training_pipeline=pipeline_id).display_name == "airflow"
assert trainer.get_custom_job(**PLACE, custom_job=job_id).state.name == "JOB_STATE_SUCCEEDED"
models = ModelServiceHook()
assert [found.display_name for found in models.list_models(**PLACE)] == ["airflow-model"]
models.wait_for_operation(operation=models.delete_model(**PLACE, model=model.name))

datasets = DatasetHook()
made = datasets.create_dataset(**PLACE, dataset={"display_name": "texts", "metadata_schema_uri": TEXTS})
dataset = datasets.wait_for_operation(operation=made)
dataset_id = dataset.name.rpartition("/")[2]
mask = {"paths": ["displayName"]}  # as the provider's own system test has it
changed = datasets.update_dataset(**PLACE, dataset_id=dataset_id, dataset={"display_name": "changed"}, update_mask=mask)
assert changed.display_name == "changed"
datasets.wait_for_operation(operation=datasets.delete_dataset(**PLACE, dataset=dataset_id))

container = {"image_uri": IMAGE, "command": ["bash", "-c", REPORT, "_"]}
pools = [{"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}]
search = HyperparameterTuningJobHook().create_hyperparameter_tuning_job(
    **PLACE,
    display_name="airflow",
    metric_spec={"loss": "minimize"},
    parameter_spec={"x": hyperparameter_tuning.DoubleParameterSpec(min=0.001, max=1, scale="log")},
    max_trial_count=2,
    parallel_trial_count=2,
    worker_pool_specs=pools,
    staging_bucket="gs://b",
)
assert {trial.state for trial in search.trials} == {aiplatform.gapic.Trial.State.SUCCEEDED}
