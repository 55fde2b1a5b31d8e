"""Summarizes a job for the user, and submits it to Vertex AI or prints code that submits it with another client."""

import json
import pprint
import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.api_core.exceptions import GoogleAPICallError, ServerError
from google.auth.exceptions import GoogleAuthError
from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch import program
from vertex_launch.cloud.preflight import Image, Preflight
from vertex_launch.cloud.refusals import message_of
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.errors import FaultError
from vertex_launch.facts import labels as of_jobs
from vertex_launch.job import study_validation
from vertex_launch.job.job_resource import Resource, run_spec
from vertex_launch.job.spec import Job, Pool, TuningJob, as_json, trial
from vertex_launch.plan import pools
from vertex_launch.plan.formatting import duration, usd
from vertex_launch.settings import Settings

# Collection -> gcloud's command group, the type in Google's client library, and the field name in its methods.
NAMES = {
    "customJobs": ("custom-jobs", "CustomJob", "custom_job"),
    "hyperparameterTuningJobs": ("hp-tuning-jobs", "HyperparameterTuningJob", "hyperparameter_tuning_job"),
}
NOTHING = Preflight()
SUBMISSION = "submission"  # the label that identifies the request's job if the response is lost
LOOKUPS, LOOKUP_SECONDS = 4, 10.0
RETRY_SECONDS = (4.0, 16.0)  # between two attempts if the service failed
WIDTH = 116
PYTHON = """\
import json

from google.cloud import aiplatform_v1{credentials_import}

JOB = {job}

client = aiplatform_v1.JobServiceClient({arguments})
job = aiplatform_v1.{kind}.from_json(json.dumps(JOB))
print(client.create_{field}(parent={parent!r}, {field}=job).name)"""


@dataclass(frozen=True)
class Request:
    """A request to create a job: the resource as JSON, and the collection in which it's created."""

    collection: str
    resource: Resource

    @property
    def label(self) -> str:
        """The label that identifies this request's job, in the form submission=ID."""
        return f"{SUBMISSION}={self.resource['labels'][SUBMISSION]}"


def summary(job: Job | TuningJob, settings: Settings, checks: Preflight = NOTHING) -> str:
    """Return the summary that the user confirms: machines, region, output, and price."""
    run, search = trial(job), _search_lines(job.spec) if isinstance(job, TuningJob) else ()
    spec = _spec(job, settings, checks.images)
    address = spec.base_output_directory.output_uri_prefix or "none: no files are kept"
    strategy = run.strategy if spec.scheduling.strategy else "STANDARD"
    return "\n".join(
        [
            f"{job.name} -> {settings.parent}",
            *search,
            *map(_pool_line, run.pools),
            *map(_image_line, checks.images),
            f"  output   {address}{f' ({checks.folder})' if checks.folder else ''}",
            f"  account  {spec.service_account or 'Vertex AI service agent'}",
            f"  limits   {strategy}, at most {duration(run.timeout_seconds)}{' per trial' if search else ''}",
            f"  price    {price(job, settings)}",
        ]
    )


def request(
    job: Job | TuningJob, settings: Settings, labels: Mapping[str, str] | None = None, images: Sequence[Image] = ()
) -> Request:
    """Return the API request that creates a job. The request pins `images` by digest.

    In addition to an image label, the job gets a unique label, which identifies it if the response is lost. `labels`
    are additional labels, such as the revision, that override labels in the job file. Labels in the job file override
    labels in vertex.toml. Raises FaultError if there are too many labels.
    """
    spec = _spec(job, settings, images)
    digest = {"image-digest": images[0].digest.removeprefix("sha256:")[:12]} if images else {}
    in_file = job.spec.labels if isinstance(job, TuningJob) else {}
    labels = {**settings.labels, **in_file, **(labels or {}), **digest, SUBMISSION: uuid.uuid4().hex[:12]}
    if findings := [*of_jobs.too_many(labels)]:
        raise FaultError(*findings)
    if not isinstance(job, TuningJob):
        return Request("customJobs", as_json(CustomJob(display_name=job.name, job_spec=spec, labels=labels)))
    tuning_job = HyperparameterTuningJob(job.spec)
    tuning_job.display_name, tuning_job.trial_job_spec = job.name, spec
    tuning_job.labels.update(labels)
    return Request("hyperparameterTuningJobs", as_json(tuning_job))


def submit(request: Request, service: Service, say: Callable[[str], None] = lambda message: None) -> str:
    """Create a job, and return its resource name, such as projects/NUMBER/locations/REGION/customJobs/ID.

    If the service fails, check whether the job was created anyway, and retry only if it wasn't.

    Raises GoogleAPICallError if the service rejects the request. If this function raises ServerError or NoAnswerError,
    the job might still exist.
    """
    made = ""
    for seconds in RETRY_SECONDS:
        try:
            return made or str(service.create(request.collection, request.resource)["name"])
        except ServerError as error:
            say(f"{message_of(error)}; retrying in {seconds:g} s")
        time.sleep(seconds)
        made = _name(request, service)  # the service may have created the job anyway
    return made or str(service.create(request.collection, request.resource)["name"])


def whereabouts(request: Request, service: Service, more: Callable[[str], str]) -> str:
    """Return a message about the outcome of a request whose response was lost.

    If the request created a job, append the text that `more` returns for the job's name.
    """
    where = f"--project={service.settings.project} --region={service.settings.region}"
    listing = f"gcloud ai {NAMES[request.collection][0]} list {where} --filter=labels.{request.label}"
    look = f"look for the job with: {f'{program.NAME} jobs' if service.endpoint else listing}"
    brief = replace(service, seconds=LOOKUP_SECONDS)
    try:
        for waited in range(LOOKUPS):
            time.sleep(float(waited > 0))  # the request may still be on its way
            if name := _name(request, brief):
                return f"the job was created: {name}{more(name)}"
    except GoogleAPICallError as error:
        return f"it's unknown whether the job was created ({message_of(error)}); {look}"
    except (GoogleAuthError, NoAnswerError, KeyboardInterrupt):
        return f"it's unknown whether the job was created; {look}"
    return f"the job doesn't exist; if Vertex AI receives the request later, {look}"


def _name(request: Request, service: Service) -> str:
    return next((str(job["name"]) for job in service.list(request.collection, f"labels.{request.label}")), "")


def _spec(job: Job | TuningJob, settings: Settings, images: Sequence[Image]) -> CustomJobSpec:
    """Return a copy of the spec with images pinned by digest.

    The service account in the job file overrides the service account in vertex.toml.
    """
    spec, pinned = CustomJobSpec(trial(job).spec), {image.name: image.pinned for image in images}
    spec.service_account = spec.service_account or settings.service_account
    for pool in spec.worker_pool_specs:
        if (name := pool.container_spec.image_uri) in pinned:
            pool.container_spec.image_uri = pinned[name]
    return spec


def _image_line(image: Image) -> str:
    built = f", built from revision {image.revision}" if image.revision else ""
    return f"  image    {image.name} is now {image.digest[:19]}{built}"


def price(job: Job | TuningJob, settings: Settings) -> str:
    """Return the hourly price of all trials that run simultaneously, and the maximum cost of the job."""
    each, trials = pools.price(pools.rows(trial(job), settings.catalog)), pools.trials(job) or pools.Trials(1, 1)
    if each is None:
        return "unknown; add it under [prices] in vertex.toml"
    most = usd(trials.count * trial(job).timeout_seconds / 3600 * each.usd)
    return f"{usd(trials.at_once * each.usd)} per hour, {most} at most ({each.certainty}: {each.source})"


def _search_lines(job: HyperparameterTuningJob) -> tuple[str, ...]:
    study, minimize = job.study_spec, StudySpec.MetricSpec.GoalType.MINIMIZE
    wanted = [f"{'lowest' if metric.goal == minimize else 'highest'} {metric.metric_id}" for metric in study.metrics]
    counts = f"{job.max_trial_count} trials, {job.parallel_trial_count} in parallel"
    return (
        f"  tuning   {counts}, for the {' and the '.join(wanted)}",
        *(f"{'':11}{spec.parameter_id}: {study_validation.described(spec)}" for spec in study.parameters),
    )


def _pool_line(pool: Pool) -> str:
    accelerators = f" + {pool.accelerator_count} {pool.accelerator}" if pool.accelerator else ""
    machines = f"{pool.replica_count:>3} x {pool.machine_type}{accelerators}"
    package, container = pool.spec.python_package_spec, pool.spec.container_spec
    image = container.image_uri or package.executor_image_uri
    installed = [f"pip install {shlex.join(package.package_uris)}"] if package.package_uris else []
    module = ["python", "-m", package.python_module] if package.python_module else []
    command = shlex.join([*container.command, *module, *pool.args])
    first = f"  pool {pool.index}   {pools.role(pool):<10} {machines}, {image}"
    lines = [first, *installed, *([command] if command else [])]
    return f"\n{'':14}".join(lines)


def _gcloud(request: Request, file: Path, settings: Settings, endpoint: str) -> str:
    """Return the gcloud command that submits the request. Raises FaultError if gcloud can't submit the request."""
    job = request.resource
    if {} in run_spec(job)["workerPoolSpecs"]:
        raise FaultError(f"{file}: gcloud rejects the empty pool, although the service accepts it; use --print curl")
    labels = ",".join(f"{key}={value}" for key, value in job["labels"].items())
    words = ["gcloud", "ai", NAMES[request.collection][0], "create"]
    words += [f"--project={settings.project}", f"--region={settings.region}", f"--display-name={job['displayName']}"]
    words += [f"--config={file}", f"--labels={labels}"]
    if account := run_spec(job).get("serviceAccount"):
        words.append(f"--service-account={account}")
    local = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM={endpoint}/ CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true "
    return f"{local if endpoint else ''}{shlex.join(words)}"


def _curl(request: Request, file: Path, settings: Settings, endpoint: str) -> str:
    address = f"{endpoint or f'https://{settings.host}'}/v1/{settings.parent}/{request.collection}"
    login = "" if endpoint else ' -H "Authorization: Bearer $(gcloud auth print-access-token)"'
    body = json.dumps(request.resource, indent=2)
    return f"curl -X POST{login} -H 'Content-Type: application/json' {address} -d {shlex.quote(body)}"


def _python(request: Request, file: Path, settings: Settings, endpoint: str) -> str:
    _, kind, field = NAMES[request.collection]
    options = {"api_endpoint": endpoint or settings.host}
    local = 'transport="rest", credentials=AnonymousCredentials(), ' if endpoint else ""
    return PYTHON.format(
        credentials_import="\nfrom google.auth.credentials import AnonymousCredentials" if endpoint else "",
        job=pprint.pformat(dict(request.resource), width=WIDTH, sort_dicts=False),
        arguments=f"{local}client_options={options!r}",
        kind=kind,
        field=field,
        parent=settings.parent,
    )


Spell = Callable[[Request, Path, Settings, str], str]
CLIENTS: Mapping[str, Spell] = {"gcloud": _gcloud, "curl": _curl, "python": _python}
