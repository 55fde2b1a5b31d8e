"""Hyperparameter tuning."""

from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning as hpt
from google.cloud.aiplatform_v1 import JobServiceClient

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Json, Service, script
from tests.fidelity.usages import ACCOUNT, DOCS, NOTEBOOKS, SAMPLES, SNIPPETS, pool, usage

# A trial reports as cloudml-hypertune does; its score is best at --lr=0.5.
TRIAL = """
import json, os, sys
flags = dict(flag.removeprefix("--").split("=") for flag in sys.argv[1:])
score = -abs(float(flags.get("lr", 0)) - 0.5)
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
    for step in (1, 2, 3):
        record = {"timestamp": step, "trial": os.environ["CLOUD_ML_TRIAL_ID"], "global_step": str(step)}
        file.write(json.dumps(record | {"accuracy": str(score * 3 / step), "loss": str(-score)}) + "\\n")
print(sorted(flags))
"""
LEARNING_RATE = {"lr": hpt.DoubleParameterSpec(min=0.001, max=1, scale="log")}
RATE = {"parameter_id": "lr", "double_value_spec": {"min_value": 0.001, "max_value": 1}}


def tuning(**more: Any) -> aiplatform.HyperparameterTuningJob:
    """Make a tuning job of two trials."""
    job = aiplatform.CustomJob("trial", worker_pool_specs=[pool(*script(TRIAL))])
    defaults = {"display_name": "tuning", "custom_job": job, "metric_spec": {"accuracy": "maximize"}}
    counts = {"parameter_spec": LEARNING_RATE, "max_trial_count": 2, "parallel_trial_count": 2}
    return aiplatform.HyperparameterTuningJob(**(defaults | counts | more))


def study(*command: str, **more: Any) -> Json:
    """Return a tuning job of two trials as the generated client takes it."""
    spec = {"metrics": [{"metric_id": "accuracy", "goal": "MAXIMIZE"}], "parameters": [RATE]}
    counts = {"max_trial_count": 2, "parallel_trial_count": 1, "max_failed_trial_count": 1}
    trial = {"worker_pool_specs": [pool(*(command or script(TRIAL)))]}
    return {"display_name": "study", "study_spec": spec | more, "trial_job_spec": trial} | counts


def succeeded(job: aiplatform.HyperparameterTuningJob) -> bool:
    return [trial.state.name for trial in job.trials] == ["SUCCEEDED"] * job._gca_resource.max_trial_count


@usage(f"{SAMPLES}/create_hyperparameter_tuning_job_sample.py")
def all_kinds_of_parameters(vertex: Service) -> None:
    """Tune double, integer, categorical and discrete parameters."""
    parameters = LEARNING_RATE | {
        "units": hpt.IntegerParameterSpec(min=4, max=128, scale="linear"),
        "activation": hpt.CategoricalParameterSpec(values=["relu", "selu"]),
        "batch_size": hpt.DiscreteParameterSpec(values=[128, 256], scale="linear"),
    }
    job = tuning(parameter_spec=parameters, labels={"my_key": "my_value"})
    job.run()
    assert succeeded(job)
    values = {one.parameter_id: one.value for one in job.trials[0].parameters}
    assert values["activation"] in ("relu", "selu")
    assert values["batch_size"] in (128, 256)
    assert 4 <= values["units"] <= 128


@usage(f"{SAMPLES}/get_hyperparameter_tuning_job_sample.py")
def found(vertex: Service) -> None:
    """Get a tuning job by its name, and read its trials."""
    job = tuning()
    job.run()
    again = aiplatform.HyperparameterTuningJob.get(resource_name=job.resource_name)
    assert [trial.id for trial in again.trials] == ["1", "2"]


@usage(f"{SAMPLES}/cancel_hyperparameter_tuning_job_sample.py")
def cancelled(vertex: Service) -> None:
    """Cancel a tuning job and its trials."""
    trial = aiplatform.CustomJob("trial", worker_pool_specs=[pool("sh", "-c", "sleep 600")])
    job = tuning(custom_job=trial)
    job.run(sync=False)
    job.wait_for_resource_creation()
    aiplatform.HyperparameterTuningJob.get(resource_name=job.resource_name).cancel()
    vertex.wait(job.resource_name, "CANCELLED")


@usage(f"{SAMPLES}/delete_hyperparameter_tuning_job_sample.py")
def deleted(vertex: Service) -> None:
    """Delete a tuning job."""
    job = tuning()
    job.run()
    aiplatform.HyperparameterTuningJob.get(resource_name=job.resource_name).delete()
    with pytest.raises(NotFound):
        aiplatform.HyperparameterTuningJob.get(resource_name=job.resource_name)


@usage(f"{SNIPPETS}/job_service/create_hyperparameter_tuning_job_sample.py")
def created_by_gapic(vertex: Service) -> None:
    """Create a tuning job with the generated client."""
    client = gapic(JobServiceClient, vertex)
    created = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=study())
    vertex.wait(created.name, "SUCCEEDED")
    assert len(client.get_hyperparameter_tuning_job(name=created.name).trials) == 2


@usage(f"{SNIPPETS}/job_service/cancel_hyperparameter_tuning_job_sample.py")
def cancelled_by_gapic(vertex: Service) -> None:
    """Cancel a tuning job with the generated client and its path helper."""
    client = gapic(JobServiceClient, vertex)
    job = client.create_hyperparameter_tuning_job(
        parent=PARENT, hyperparameter_tuning_job=study("sh", "-c", "sleep 600")
    )
    name = client.hyperparameter_tuning_job_path("p", "us-central1", job.name.rpartition("/")[2])
    client.cancel_hyperparameter_tuning_job(name=name)
    vertex.wait(name, "CANCELLED")


@usage(f"{SNIPPETS}/job_service/delete_hyperparameter_tuning_job_sample.py")
def deleted_by_gapic(vertex: Service) -> None:
    """Delete a tuning job with the generated client."""
    client = gapic(JobServiceClient, vertex)
    name = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=study()).name
    vertex.wait(name)
    client.delete_hyperparameter_tuning_job(name=name).result(timeout=60)


@usage(f"{NOTEBOOKS}/training/hyperparameter_tuning_tensorflow.ipynb")
def best_trial(vertex: Service) -> None:
    """Choose the best trial by its final measurement."""
    job = tuning(max_trial_count=3)
    job.run()
    best = max(job.trials, key=lambda trial: trial.final_measurement.metrics[0].value)
    rates = {trial.id: trial.parameters[0].value for trial in job.trials}
    assert best.id == min(rates, key=lambda id: abs(rates[id] - 0.5))


@usage(f"{NOTEBOOKS}/training/distributed_hyperparameter_tuning.ipynb")
def distributed_trials(vertex: Service) -> None:
    """Run each trial on two pools, in which the chief reports the metric."""
    job = aiplatform.CustomJob("trial", worker_pool_specs=[pool(*script(TRIAL)), pool("true")])
    search = tuning(custom_job=job, search_algorithm="random")
    search.run()
    assert succeeded(search)


@usage(f"{NOTEBOOKS}/migration/sdk-hyperparameter-tuning.ipynb")
def grid(vertex: Service) -> None:
    """Try every point of a grid."""
    parameters = {"lr": hpt.DiscreteParameterSpec(values=[0.1, 0.5, 0.9], scale=None)}
    job = tuning(parameter_spec=parameters, search_algorithm="grid", max_trial_count=3)
    job.run()
    assert sorted(trial.parameters[0].value for trial in job.trials) == [0.1, 0.5, 0.9]


@usage(f"{NOTEBOOKS}/training/hyperparameter_tuning_xgboost.ipynb")
def random_search(vertex: Service) -> None:
    """Use random search, and select each metric's best measurement."""
    job = tuning(search_algorithm="random", measurement_selection="best", max_failed_trial_count=1)
    job.run()
    assert succeeded(job)


@usage(f"{NOTEBOOKS}/tensorboard/tensorboard_hyperparameter_tuning_with_hparams.ipynb")
def with_a_tensorboard(vertex: Service) -> None:
    """Use a TensorBoard for the trials."""
    board = aiplatform.Tensorboard.create(display_name="hparams")
    job = tuning(max_trial_count=1, parallel_trial_count=1)
    job.run(tensorboard=board.resource_name, service_account=ACCOUNT)
    assert succeeded(job)


@usage(f"{DOCS}: Hyperparameter tuning, conditional parameters")
def conditional_parameters(vertex: Service) -> None:
    """Tune a parameter only if its parent parameter has certain values."""
    rate = hpt.DoubleParameterSpec(min=0.01, max=0.1, scale="log", conditional_parameter_spec=None)
    momentum = hpt.DoubleParameterSpec(min=0.1, max=0.9, scale="linear", parent_values=["sgd"])
    optimizer = hpt.CategoricalParameterSpec(values=["sgd", "adam"], conditional_parameter_spec={"momentum": momentum})
    job = tuning(parameter_spec={"lr": rate, "optimizer": optimizer}, max_trial_count=4, search_algorithm="random")
    job.run()
    for trial in job.trials:
        values = {one.parameter_id: one.value for one in trial.parameters}
        assert ("momentum" in values) == (values["optimizer"] == "sgd")


@usage(f"{DOCS}: StudySpec, median automated stopping")
def median_stopping(vertex: Service) -> None:
    """Stop trials with curves below the median."""
    body = study(median_automated_stopping_spec={"use_elapsed_duration": False})
    client = gapic(JobServiceClient, vertex)
    name = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=body).name
    vertex.wait(name, "SUCCEEDED")


@usage(f"{DOCS}: StudySpec, decay curve automated stopping")
def decay_curve_stopping(vertex: Service) -> None:
    """Stop trials with curves that predict no improvement."""
    body = study(decay_curve_stopping_spec={"use_elapsed_duration": False})
    client = gapic(JobServiceClient, vertex)
    name = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=body).name
    vertex.wait(name, "SUCCEEDED")


# The third trial would report for a minute, and never reach the score of the first.
SLOW = """
import json, os, time
trial = int(os.environ["CLOUD_ML_TRIAL_ID"])
for step in range(1, 4 if trial < 3 else 120):
    record = {"timestamp": step, "trial": trial, "global_step": str(step), "accuracy": str(step / 10**trial)}
    with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "a") as file:
        file.write(json.dumps(record) + "\\n")
    time.sleep(0.5 if trial > 2 else 0)
"""


@usage(f"{DOCS}: StudySpec, convex automated stopping")
def convex_stopping(vertex: Service) -> None:
    """Stop a trial if its slope leads to a worse result than the best trial."""
    rule = {"max_step_count": 119, "min_step_count": 1, "min_measurement_count": 1}
    body = study(*script(SLOW), convex_automated_stopping_spec=rule) | {"max_trial_count": 3}
    client = gapic(JobServiceClient, vertex)
    name = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=body).name
    trials = vertex.wait(name, "SUCCEEDED")["trials"]
    assert int(trials[2]["finalMeasurement"]["stepCount"]) < 119


@usage(f"{DOCS}: StudySpec, studyStoppingConfig", absent="studyStoppingConfig")
def study_stopping(vertex: Service) -> None:
    """Stop a tuning job after a number of trials without improvement."""
    body = study(study_stopping_config={"max_num_trials_no_progress": 3})
    gapic(JobServiceClient, vertex).create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=body)


@usage(f"{DOCS}: Hyperparameter tuning, several metrics")
def two_metrics(vertex: Service) -> None:
    """Optimize two metrics at once."""
    job = tuning(metric_spec={"accuracy": "maximize", "loss": "minimize"})
    job.run()
    assert {metric.metric_id for metric in job.trials[0].final_measurement.metrics} == {"accuracy", "loss"}


@usage(f"{DOCS}: Hyperparameter tuning, maxFailedTrialCount")
def failing_trials(vertex: Service) -> None:
    """Fail after a number of failed trials."""
    job = tuning(
        custom_job=aiplatform.CustomJob("fails", worker_pool_specs=[pool("sh", "-c", "exit 1")]),
        max_failed_trial_count=1,
        parallel_trial_count=1,
    )
    with pytest.raises(RuntimeError, match="code: "):
        job.run()
    assert job.trials[0].state.name == "INFEASIBLE"


@usage(f"{DOCS}: google.cloud.aiplatform.HyperparameterTuningJob.list")
def listed(vertex: Service) -> None:
    """List tuning jobs by name and state."""
    tuning(display_name="to list", max_trial_count=1, parallel_trial_count=1).run()
    found = aiplatform.HyperparameterTuningJob.list(filter='display_name="to list" AND state="JOB_STATE_SUCCEEDED"')
    assert [job.display_name for job in found] == ["to list"]


@usage(f"{DOCS}: Trial, customJob")
def jobs_of_trials(vertex: Service) -> None:
    """Find the custom job of each trial."""
    client = gapic(JobServiceClient, vertex)
    name = client.create_hyperparameter_tuning_job(parent=PARENT, hyperparameter_tuning_job=study()).name
    vertex.wait(name, "SUCCEEDED")
    for trial in client.get_hyperparameter_tuning_job(name=name).trials:
        assert client.get_custom_job(name=trial.custom_job).state.name == "JOB_STATE_SUCCEEDED"


@usage(f"{DOCS}: Report metrics with cloudml-hypertune")
def hypertune(vertex: Service) -> None:
    """Report a metric with Google's cloudml-hypertune."""
    report = "import hypertune; hypertune.HyperTune().report_hyperparameter_tuning_metric('accuracy', 0.75, 10)"
    job = tuning(custom_job=aiplatform.CustomJob("trial", worker_pool_specs=[pool(*script(report))]), max_trial_count=1)
    job.run()
    measurement = job.trials[0].final_measurement
    assert (measurement.metrics[0].value, measurement.step_count) == (0.75, 10)


@usage(f"{DOCS}: Hyperparameter tuning, a wrong study")
def wrong_study(vertex: Service) -> None:
    """Get an error for a study with a scale that isn't valid for its range."""
    parameters = {"lr": hpt.DoubleParameterSpec(min=-1, max=1, scale="log")}
    with pytest.raises(BadRequest, match="has no logarithm"):
        tuning(parameter_spec=parameters).run()


@usage(f"{NOTEBOOKS}/vizier/get_started_vertex_vizier.ipynb", absent="studies")
def vizier_study(vertex: Service) -> None:
    """Create a study of Vertex AI Vizier."""
    vizier = gapic(aiplatform.gapic.VizierServiceClient, vertex)
    spec = {"metrics": [{"metric_id": "y", "goal": "MAXIMIZE"}], "parameters": [RATE]}
    vizier.create_study(parent=PARENT, study={"display_name": "vizier", "study_spec": spec})


@usage(f"{DOCS}: Neural Architecture Search", absent="nasJobs")
def architecture_search(vertex: Service) -> None:
    """Create a job of Neural Architecture Search."""
    gapic(JobServiceClient, vertex).create_nas_job(parent=PARENT, nas_job={"display_name": "nas"})
