"""The life of hyperparameter tuning jobs: each trial is a custom job, and only its chief's metric counts."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types import CustomJob, HyperparameterTuningJob

from vertex_launch import study_validation
from vertex_launch.local.api.create_validation import LONGEST_NAME, name_findings
from vertex_launch.local.api.errors import ApiError, invalid, rpc_status
from vertex_launch.local.api.store import Resource, Store, now
from vertex_launch.local.jobs import search
from vertex_launch.local.jobs.background import STOPPED, BackgroundTask, BackgroundTasks
from vertex_launch.local.jobs.custom_jobs import (
    ENDED,
    FAILED,
    PENDING,
    PREFIX,
    RUNNING,
    SUCCEEDED,
    Extras,
    Jobs,
)
from vertex_launch.local.jobs.search import Measurement, Search, Suggestion
from vertex_launch.replicas import with_arguments
from vertex_launch.spec import Job, as_json
from vertex_launch.state_dir import StateDir

COLLECTION = "hyperparameterTuningJobs"
POLL_SECONDS = 0.2


@dataclass
class _Trial:
    """A trial that runs."""

    suggestion: Suggestion
    job: str  # the custom job's name
    stopping: bool = False


@dataclass
class _Study(BackgroundTask):
    """A tuning job that has not ended."""

    message: HyperparameterTuningJob
    search: Search
    trials: dict[str, Resource] = field(default_factory=dict)  # as the API shows them, by id
    active: dict[str, _Trial] = field(default_factory=dict)

    @property
    def failed_count(self) -> int:
        return sum(trial["state"] == "INFEASIBLE" for trial in self.trials.values())

    @property
    def metrics(self) -> list[str]:
        return [metric.metric_id for metric in self.message.study_spec.metrics]


class Tunings(BackgroundTasks[_Study]):
    """All hyperparameter tuning jobs of the service; thread-safe."""

    collection, noun, prefix, ended = COLLECTION, "tuning job", PREFIX, ENDED

    def __init__(self, store: Store, state_dir: StateDir, jobs: Jobs) -> None:
        super().__init__(store)
        self._state_dir = state_dir
        self._jobs = jobs

    def create(self, parent: str, message: HyperparameterTuningJob) -> Resource:
        """Check a tuning job and begin with its trials; raises ApiError."""
        findings = [
            *name_findings(message.display_name),
            *study_validation.findings(message),
            *self._jobs.findings(parent, _trial_job(message, {}), "trialJobSpec"),
        ]
        if findings:
            raise invalid(findings)
        name = f"{parent}/{COLLECTION}/{self._store.new_id()}"
        return self._begin(_Study(name, message, Search(message.study_spec)), as_json(message) | {"state": PENDING})

    def _lose(self, resource: Resource) -> None:
        trials = [_lost(trial) for trial in resource.get("trials", ())]
        self._store.update(resource["name"], trials=trials or None)
        super()._lose(resource)

    def _live(self, study: _Study) -> None:
        self._enter(study, RUNNING)
        try:
            self._search(study)
        finally:
            self._cancel_trials(study)
        self._judge(study)

    def _search(self, study: _Study) -> None:
        """Start trials and follow them until none is left or the job is to end."""
        while not study.stopping.is_set() and not self._too_many_failed(study):
            while self._has_room(study) and self._start_trial(study):
                pass
            if not study.active:
                return
            study.stopping.wait(POLL_SECONDS)
            for trial in [*study.active.values()]:
                self._follow(study, trial)
        self._cancel_trials(study)
        while study.active:
            time.sleep(POLL_SECONDS)
            for trial in [*study.active.values()]:
                self._follow(study, trial)

    def _has_room(self, study: _Study) -> bool:
        return len(study.active) < study.message.parallel_trial_count and not study.stopping.is_set()

    def _start_trial(self, study: _Study) -> bool:
        """Whether there was one more to start."""
        if len(study.trials) >= study.message.max_trial_count:
            return False
        suggestion = study.search.ask()
        if suggestion is None:  # a grid is finite
            return False
        job = _trial_job(study.message, suggestion.parameters)
        suffix = f"-trial-{suggestion.id}"
        display_name = f"{study.message.display_name[: LONGEST_NAME - len(suffix)]}{suffix}"
        custom_job = CustomJob(display_name=display_name, job_spec=job.spec)
        created = self._jobs.create(study.parent, custom_job, Extras(trial=suggestion.id))
        study.active[suggestion.id] = _Trial(suggestion, created["name"])
        parameters = [{"parameterId": id, "value": value} for id, value in suggestion.parameters.items()]
        trial = {"id": suggestion.id, "state": "ACTIVE", "parameters": parameters, "startTime": now()}
        self._show(study, suggestion.id, trial | {"customJob": created["name"]})
        return True

    def _follow(self, study: _Study, trial: _Trial) -> None:
        """Take in what a trial has reported; end it where its job has ended or where it is not promising."""
        job = self._job(trial)
        measurements = self._measurements(study, trial)
        if job["state"] in ENDED:
            self._end_trial(study, trial, job, measurements)
        elif not trial.stopping and study.search.should_stop(trial.suggestion, measurements):
            trial.stopping = True
            self._show(study, trial.suggestion.id, {**study.trials[trial.suggestion.id], "state": "STOPPING"})
            self._cancel(trial)

    def _cancel_trials(self, study: _Study) -> None:
        for trial in study.active.values():
            self._cancel(trial)

    def _cancel(self, trial: _Trial) -> None:
        with contextlib.suppress(ApiError):  # its job may have ended, or been deleted, since it was last looked at
            self._jobs.cancel(trial.job)

    def _job(self, trial: _Trial) -> Resource:
        """The trial's job; one that somebody has deleted meanwhile counts as failed."""
        try:
            return self._store.get(trial.job)
        except ApiError as error:
            return {"state": FAILED, "error": rpc_status(error.status, error.message)}

    def _end_trial(self, study: _Study, trial: _Trial, job: Resource, measurements: list[Measurement]) -> None:
        final = study.search.final(measurements)
        whole = job["state"] == SUCCEEDED or trial.stopping
        study.search.tell(trial.suggestion, final.metrics if final and whole else None, measurements)
        ended: dict[str, Any] = {**study.trials[trial.suggestion.id], "endTime": now()}
        if final and whole:
            ended |= {"state": "SUCCEEDED", "finalMeasurement": _measurement(final)}
        else:
            reason = job.get("error", {}).get("message") or f"no metric {' or '.join(study.metrics)} was reported"
            ended |= {"state": "INFEASIBLE", "infeasibleReason": reason}
        del study.active[trial.suggestion.id]
        self._show(study, trial.suggestion.id, ended)

    def _measurements(self, study: _Study, trial: _Trial) -> list[Measurement]:
        try:
            text = self._state_dir.metrics(trial.job.rpartition("/")[2]).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return search.measurements(text, study.metrics)

    def _too_many_failed(self, study: _Study) -> bool:
        """0 leaves it to the service: here, to go on until the end."""
        return 0 < study.message.max_failed_trial_count <= study.failed_count

    def _judge(self, study: _Study) -> None:
        """Raises ApiError unless the study succeeds."""
        study.raise_if_stopping()
        count = study.failed_count
        if self._too_many_failed(study) or count == len(study.trials):
            last = [trial["infeasibleReason"] for trial in study.trials.values() if trial["state"] == "INFEASIBLE"][-1]
            raise ApiError("INVALID_ARGUMENT", f"{count} of {len(study.trials)} trials failed; the last one: {last}")

    def _show(self, study: _Study, id: str, trial: Resource) -> None:
        study.trials[id] = trial
        self._store.update(study.name, trials=[*study.trials.values()])


def _trial_job(message: HyperparameterTuningJob, parameters: Mapping[str, Any]) -> Job:
    """The custom job of one trial: the parameters as flags behind those of the chief and the workers."""
    job = Job(Path(message.display_name), message.display_name, message.trial_job_spec)
    return with_arguments(job, search.arguments(parameters))


def _lost(trial: Resource) -> Resource:
    """A trial as it is after the end of the service in which it ran."""
    if "endTime" in trial:
        return trial
    return trial | {"state": "INFEASIBLE", "infeasibleReason": STOPPED["message"], "endTime": now()}


def _measurement(final: Measurement) -> dict[str, Any]:
    metrics = [{"metricId": id, "value": value} for id, value in final.metrics.items()]
    return {"stepCount": str(final.step), "metrics": metrics}
