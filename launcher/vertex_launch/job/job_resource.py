"""Functions that read a job resource, which is the JSON that Vertex AI returns and the local Vertex stores."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

Resource = Mapping[str, Any]  # JSON of the REST API

KINDS = {"customJobs": "custom job", "hyperparameterTuningJobs": "tuning job", "trainingPipelines": "training pipeline"}
ENDED = frozenset(("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))
# The label that contains the trial ID of a log entry. Source: googlecloudsdk/command_lib/ml_engine/log_utils.py.
TRIAL_LABEL = "ml.googleapis.com/trial_id"
STYLES = {"RUNNING": "bold blue", "SUCCEEDED": "green", "FAILED": "bold red", "EXPIRED": "bold red"}


def id_of(name: str) -> str:
    """Return the ID in a resource name, such as 17 in projects/P/locations/R/customJobs/17."""
    return name.rpartition("/")[2]


def collection_of(name: str) -> str:
    """Return the collection in a resource name, such as customJobs in projects/P/locations/R/customJobs/17."""
    return name.split("/")[-2]


def kind(resource: Resource) -> str:
    """Return the type of a job as a noun, such as `custom job`."""
    return KINDS[collection_of(resource["name"])]


def state(resource: Resource) -> str:
    """Return a job's state without its prefix, such as RUNNING for JOB_STATE_RUNNING or PIPELINE_STATE_RUNNING."""
    return str(resource.get("state", "")).partition("_STATE_")[2]


def style(resource: Resource) -> str:
    """Return the Rich style for a job's state."""
    return STYLES.get(state(resource), "yellow")


def moment(resource: Resource, key: str) -> datetime | None:
    """Return the value of a time field such as startTime.

    Return None if the resource doesn't contain this field yet.
    """
    text = resource.get(key)
    return datetime.fromisoformat(text) if text else None


def fault(resource: Resource) -> str:
    """Return the reason for a job's failure. Return "" if the job didn't fail."""
    return str(resource.get("error", {}).get("message", ""))


def custom_jobs(resource: Resource) -> list[str]:
    """Return the names of the jobs that a job starts.

    A training pipeline starts a custom or tuning job, and a tuning job starts a custom job for each trial. For a custom
    job, return only its own name.
    """
    own = resource["name"] if collection_of(resource["name"]) == "customJobs" else ""
    made = [trial.get("customJob", "") for trial in resource.get("trials", ())]
    return [name for name in (own, backing(resource), *made) if name]


def backing(pipeline: Resource) -> str:
    """Return the name of the custom or tuning job that a training pipeline runs.

    Return "" if the training pipeline hasn't started a job yet.
    """
    metadata = pipeline.get("trainingTaskMetadata") or {}
    return str(metadata.get("backingCustomJob") or metadata.get("backingHyperparameterTuningJob", ""))


def run_spec(resource: Resource) -> Resource:
    """Return the CustomJobSpec that a job runs. For a training pipeline, read the spec from the pipeline's inputs."""
    own: Resource = resource.get("jobSpec") or resource.get("trialJobSpec") or {}
    inputs: Resource = tidy(resource.get("trainingTaskInputs") or {})
    return own or inputs.get("trialJobSpec") or inputs


def camel(field: str) -> str:
    """Convert a field name to camelCase. For example, convert create_time to createTime."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), field)


def tidy(inputs: Any) -> Any:
    """Convert a pipeline's inputs to a common format, because clients send them in different formats.

    Convert keys to camelCase, remove nulls, and convert integer-valued floats to integers.
    """
    if isinstance(inputs, dict):
        return {camel(key): tidy(inner) for key, inner in inputs.items() if inner is not None}
    if isinstance(inputs, list):
        return [tidy(inner) for inner in inputs]
    return int(inputs) if isinstance(inputs, float) and inputs.is_integer() else inputs


def output_folder(resource: Resource) -> str:
    """Return the URI of a job's output folder without a trailing slash. Return "" if the job doesn't set one."""
    return str(run_spec(resource).get("baseOutputDirectory", {}).get("outputUriPrefix", "")).rstrip("/")


def machines(pool: Resource) -> str:
    """Describe a pool's machines, such as `3 x n1-standard-8 with 1 x NVIDIA_TESLA_T4`.

    Return "none" if the pool is empty.
    """
    return f"{pool.get('replicaCount', 1)} x {machine(pool)}" if pool.get("machineSpec") else "none"


def machine(pool: Resource) -> str:
    """Describe one machine of a pool, such as `n1-standard-8 with 1 x NVIDIA_TESLA_T4`."""
    spec = pool.get("machineSpec", {})
    kind, count = spec.get("machineType", "machine"), spec.get("acceleratorCount", 0)
    return f"{kind} with {count} x {spec.get('acceleratorType')}" if count else str(kind)


def stopped_early(study: Resource) -> str:
    """Return the reason why the study stopped a trial early.

    In the API, the state of a trial stopped early is SUCCEEDED, because the study still uses its metrics.
    """
    median = "worse than the median of the other trials" if "medianAutomatedStoppingSpec" in study else ""
    return f"stopped early: {median or 'unlikely to beat the best trial'}"


def trials(search: Resource, runs: Iterable[Resource] = ()) -> list[dict[str, Any]]:
    """Return the trials of a tuning job.

    Return an empty list for other types of jobs. `runs` contains custom jobs, including the trials' custom jobs.
    """
    measured = {trial["id"]: final_metrics(trial) for trial in search.get("trials", ())}
    best = _best(measured, search.get("studySpec", {}).get("metrics", ()))
    cancelled = {run["name"] for run in runs if state(run) == "CANCELLED"} if measured else set()
    early = stopped_early(search.get("studySpec", {}))
    return [
        {
            "id": trial["id"],
            "state": trial.get("state", ""),
            "parameters": {pair["parameterId"]: pair.get("value") for pair in trial.get("parameters", ())},
            "metrics": measured[trial["id"]],  # values of the final measurement
            "job": id_of(trial.get("customJob", "")),
            "reason": trial.get("infeasibleReason", "").partition("\n")[0],  # the job's log contains the traceback
            "best": trial["id"] == best,  # the ended trial with the best value for the study's first metric
            "stopped": early if measured[trial["id"]] and trial.get("customJob") in cancelled else "",
        }
        for trial in search.get("trials", ())
    ]


def final_metrics(trial: Resource) -> dict[str, float]:
    """Return the metrics in a trial's final measurement. Return an empty dict if the trial hasn't succeeded."""
    metrics = trial.get("finalMeasurement", {}).get("metrics", ())
    return {metric["metricId"]: metric.get("value", 0.0) for metric in metrics}


def same_result(search: Resource) -> str:
    """Return a warning if all trials reported the same metrics with different parameters. Otherwise, return ""."""
    ended = [trial for trial in trials(search) if trial["metrics"]]
    alike = [key for key in ("parameters", "metrics") if all(trial[key] == ended[0][key] for trial in ended)]
    if alike != ["metrics"]:
        return ""
    metric, value = next(iter(ended[0]["metrics"].items()))
    return (
        f"all {len(ended)} trials reported exactly the same {metric}, {value}. "
        'The trial flags might not reach the program. If bash -c runs a script, write "$@" in the script, and '
        "after the script, add a placeholder such as _ for $0. Otherwise, check sys.argv"
    )


def trial_ids(search: Resource) -> dict[str, str]:
    """Return the IDs of a tuning job's trials, keyed by custom job ID."""
    return {id_of(trial.get("customJob", "")): trial["id"] for trial in search.get("trials", ())}


def _best(measured: Mapping[str, Mapping[str, float]], wanted: Sequence[Mapping[str, Any]]) -> str:
    if not wanted:
        return ""
    metric, sign = wanted[0].get("metricId", ""), -1 if wanted[0].get("goal") == "MINIMIZE" else 1
    ended = [id for id, metrics in measured.items() if metric in metrics]
    return max(ended, key=lambda id: sign * measured[id][metric], default="")
