"""Runs hyperparameter tuning jobs. Each trial is a custom job whose chief reports the trial's metrics."""

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJob
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob

from vertex_launch.errors import Finding
from vertex_launch.facts.labels import LONGEST_NAME, name_findings
from vertex_launch.job import study_validation
from vertex_launch.job.contract import with_arguments
from vertex_launch.job.job_resource import Resource, fault, final_metrics, id_of, moment, stopped_early
from vertex_launch.job.spec import Job, as_json
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import search
from vertex_launch.local.jobs.background import STOPPED, BackgroundTask, BackgroundTasks
from vertex_launch.local.jobs.custom_jobs import ENDED, FAILED, PENDING, PREFIX, SHELLS, SUCCEEDED, Jobs
from vertex_launch.local.jobs.metric_file import MetricFile
from vertex_launch.local.jobs.search import Measurement, Search, Suggestion
from vertex_launch.local.resource_file import now
from vertex_launch.local.running.prepare import Extras

COLLECTION = "hyperparameterTuningJobs"
POLL_SECONDS = 0.2


@dataclass
class _Trial:
    """A trial and its representation in the API."""

    suggestion: Suggestion
    shown: Resource
    before: list[Measurement] = field(default_factory=list)  # from an earlier run that this run continues
    reports: MetricFile = field(default_factory=lambda: MetricFile(Path(), ()))  # from the last run

    @property
    def job(self) -> str:
        """The name of the trial's custom job, or "" if the trial doesn't have one yet.

        If the trial is waiting to run again, this is the name of its earlier custom job.
        """
        return str(self.shown.get("customJob", ""))


@dataclass
class _Study(BackgroundTask):
    """A tuning job that hasn't ended."""

    message: HyperparameterTuningJob
    search: Search
    trials: list[_Trial] = field(default_factory=list)

    @property
    def active(self) -> list[_Trial]:
        return [trial for trial in self.trials if trial.shown["state"] in ("ACTIVE", "STOPPING")]

    @property
    def failed(self) -> list[_Trial]:
        return [trial for trial in self.trials if trial.shown["state"] == "INFEASIBLE"]

    @property
    def too_many_failed(self) -> bool:
        """True if the number of failed trials has reached maxFailedTrialCount.

        If maxFailedTrialCount is 0, Vertex AI chooses the limit, but the local Vertex doesn't limit the number of
        failed trials.
        """
        return 0 < self.message.max_failed_trial_count <= len(self.failed)

    def next_trial(self) -> _Trial | None:
        """Return a waiting trial or a new one, or None if no trial can start now."""
        if self.stopping.is_set() or self.too_many_failed or len(self.active) >= self.message.parallel_trial_count:
            return None
        waiting = next((trial for trial in self.trials if trial.shown["state"] == "REQUESTED"), None)
        if waiting or len(self.trials) >= self.message.max_trial_count or not (suggestion := self.search.ask()):
            return waiting
        parameters = [{"parameterId": id, "value": value} for id, value in suggestion.parameters.items()]
        self.trials.append(_Trial(suggestion, {"id": suggestion.id, "parameters": parameters, "state": "REQUESTED"}))
        return self.trials[-1]


class Tunings(BackgroundTasks[_Study]):
    """The service's hyperparameter tuning jobs. The class is thread-safe."""

    collection, message, noun, prefix, ended = COLLECTION, HyperparameterTuningJob, "tuning job", PREFIX, ENDED

    def __init__(self, store: Store, jobs: Jobs) -> None:
        super().__init__(store)
        self._jobs = jobs

    def create(self, parent: str, message: HyperparameterTuningJob, earlier: Resource | None = None) -> Resource:
        """Check and start a tuning job. Raises ApiError if the tuning job isn't valid.

        If `earlier` is set, continue that tuning job, which has the same study. The earlier tuning job's successful
        trials keep their results, and all others run again.
        """
        refuse([*name_findings(message.display_name), *self.findings(parent, message)])
        name = earlier["name"] if earlier else f"{parent}/{COLLECTION}/{self._store.new_id()}"
        begun = (earlier or {}).get("trials", ())
        # optuna doesn't keep state, so with the same seed it would repeat the trials that have already run.
        study = _Study(name, message, Search(message.study_spec, seed=len(begun)))
        study.trials = [self._again(study, trial) for trial in begun]
        trials = {"trials": [trial.shown for trial in study.trials]} if begun else {}
        if earlier:  # the new tuning job replaces the earlier one
            self._store.delete(name)
        return self._begin(study, as_json(message) | trials | {"state": PENDING})

    def findings(self, parent: str, message: HyperparameterTuningJob) -> list[Finding]:
        """Return a tuning job's errors.

        Raises ApiError if the tuning job's trials can never run on this machine.
        """
        of_trials = self._jobs.findings(parent, _trial_job(message, {}), "trialJobSpec")
        return [*study_validation.findings(message), *search.findings(message.study_spec), *of_trials]

    def _lose(self, resource: Resource) -> None:
        lost = {"state": "INFEASIBLE", "infeasibleReason": STOPPED, "endTime": now()}
        trials = [trial if "endTime" in trial else trial | lost for trial in resource.get("trials", ())]
        self._store.update(resource["name"], trials=trials or None)
        super()._lose(resource)

    def _stopped(self, name: str, why: str = "") -> tuple[str, dict[str, Any]]:
        """Change the final state to CANCELLED if the service stops, because the tuning job can continue later."""
        state, error = super()._stopped(name, why)
        return "CANCELLED" if self._closed else state, error

    def _again(self, study: _Study, shown: Resource) -> _Trial:
        """Return a trial from an earlier run.

        If the trial should run again, its state is REQUESTED.
        """
        parameters = {pair["parameterId"]: pair["value"] for pair in shown["parameters"]}
        began = moment(shown, "startTime")
        trial = _Trial(study.search.repeat(shown["id"], parameters, began.timestamp() if began else 0), shown)
        measurements = self._measurements(study, trial)
        if shown["state"] == "SUCCEEDED" or self._has_no_result(study, trial, measurements):
            study.search.tell(trial.suggestion, final_metrics(shown) or None, measurements)
            return trial
        kept = ("id", "parameters", "customJob")
        return _Trial(trial.suggestion, {"state": "REQUESTED", **{key: shown[key] for key in kept if key in shown}})

    def _has_no_result(self, study: _Study, trial: _Trial, measurements: list[Measurement]) -> bool:
        """Return whether a trial's job succeeded without a final measurement.

        Such a trial doesn't run again.
        """
        with contextlib.suppress(ApiError):  # its job was deleted
            return self._store.get(trial.job)["state"] == SUCCEEDED and not study.search.final(measurements)
        return False

    def _work(self, study: _Study) -> None:
        """Start and monitor trials until the tuning job ends. Raises ApiError if the tuning job fails."""
        self._enter(study, "RUNNING")
        try:
            self._start_trials(study)
            while study.active:
                time.sleep(POLL_SECONDS)
                for trial in study.active:
                    self._follow(study, trial)
                if study.stopping.is_set() or study.too_many_failed:
                    self._cancel(study.active)
                self._start_trials(study)
        finally:
            self._cancel(study.active)
        study.raise_if_stopping()
        if study.too_many_failed or len(study.failed) == len(study.trials):
            first = min(study.failed, key=lambda trial: str(trial.shown["endTime"]))  # later trials may be canceled
            counts = f"{len(study.failed)} of {len(study.trials)} trials failed"
            raise ApiError("INVALID_ARGUMENT", f"{counts}. First error: {first.shown['infeasibleReason']}")

    def _start_trials(self, study: _Study) -> None:
        while trial := study.next_trial():
            self._start_trial(study, trial)

    def _start_trial(self, study: _Study, trial: _Trial) -> None:
        suggestion = trial.suggestion = replace(trial.suggestion, began=time.time())
        trial.before = self._measurements(study, trial)
        with contextlib.suppress(ApiError):  # the trial has no earlier job, or this job was deleted
            self._jobs.delete(trial.job)
        job = _trial_job(study.message, suggestion.parameters)
        suffix = f"-trial-{suggestion.id}"
        display_name = f"{study.message.display_name[: LONGEST_NAME - len(suffix)]}{suffix}"
        custom_job = CustomJob(display_name=display_name, job_spec=job.spec)
        name = self._jobs.create(study.parent, custom_job, Extras(trial=suggestion.id))["name"]
        self._show(study, trial, state="ACTIVE", startTime=now(), customJob=name)

    def _follow(self, study: _Study, trial: _Trial) -> None:
        """Read a trial's measurements.

        End the trial if its job has ended. Stop the trial early if it isn't promising.
        """
        try:
            job = self._store.get(trial.job)
        except ApiError as error:  # its job was deleted
            job = {"state": FAILED, "error": error.rpc}
        measurements = self._measurements(study, trial, job["state"] in ENDED)
        if job.get(SHELLS) != trial.shown.get(SHELLS):
            self._show(study, trial, **{SHELLS: job.get(SHELLS)})
        if job["state"] in ENDED:
            self._end_trial(study, trial, job, measurements)
        elif trial.shown["state"] == "ACTIVE" and study.search.should_stop(trial.suggestion, measurements):
            self._show(study, trial, state="STOPPING")
            self._cancel([trial], stopped_early(as_json(study.message.study_spec)))

    def _cancel(self, trials: Iterable[_Trial], why: str = "") -> None:
        for trial in trials:
            with contextlib.suppress(ApiError):  # its job may have ended or been deleted in the meantime
                self._jobs.cancel(trial.job, why)

    def _end_trial(self, study: _Study, trial: _Trial, job: Resource, measurements: list[Measurement]) -> None:
        whole = job["state"] == SUCCEEDED or trial.shown["state"] == "STOPPING"
        final = study.search.final(measurements) if whole else None
        study.search.tell(trial.suggestion, final.metrics if final else None, measurements)
        shown = [_shown(one, trial.suggestion) for one in measurements if all(map(math.isfinite, one.metrics.values()))]
        self._show(study, trial, measurements=shown or None)
        if final:
            last = _shown(final, trial.suggestion)
            self._show(study, trial, state="SUCCEEDED", finalMeasurement=last, endTime=now())
        else:
            reason = (study.search.why_none(measurements) or trial.reports.why_none()) if whole else fault(job)
            self._show(study, trial, state="INFEASIBLE", infeasibleReason=reason, endTime=now())
        # If the job failed, its own end is shown with the cause.
        if told := "" if not whole else trial.reports.fault if final else f"has no result: {reason}":
            self._jobs.events.append((id_of(trial.job), job.get("displayName", ""), told))

    def _measurements(self, study: _Study, trial: _Trial, ended: bool = True) -> list[Measurement]:
        """Return a trial's measurements, including those before the checkpoint from which it resumed."""
        path = self._store.state_dir.metrics(id_of(trial.job))
        if trial.reports.path != path:
            trial.reports = MetricFile(path, [metric.metric_id for metric in study.message.study_spec.metrics])
        reported = trial.reports.read(ended)
        first = reported[0].step if reported else math.inf
        return [one for one in trial.before if one.step < first] + reported

    def _show(self, study: _Study, trial: _Trial, **fields: Any) -> None:
        """Set fields of a trial in the tuning job's resource. If a field's value is None, remove the field."""
        changed = {**trial.shown, **fields}  # resources are never changed in place
        trial.shown = {key: value for key, value in changed.items() if value is not None}
        self._store.update(study.name, trials=[trial.shown for trial in study.trials])


def _shown(measurement: Measurement, suggestion: Suggestion) -> Resource:
    """Return a measurement in the API's format."""
    metrics = [{"metricId": id, "value": value} for id, value in measurement.metrics.items()]
    seconds = max(measurement.time - suggestion.began, 0)
    return {"elapsedDuration": f"{seconds:.6f}s", "stepCount": str(measurement.step), "metrics": metrics}


def _trial_job(message: HyperparameterTuningJob, parameters: Mapping[str, Any]) -> Job:
    """Return the custom job of one trial.

    The job passes the trial's parameters as flags to the chief and the workers.
    """
    job = Job(f"request {message.display_name}", message.display_name, message.trial_job_spec)
    return with_arguments(job, search.arguments(parameters))
