"""Send a job to Vertex AI. The request is a value: what `summary` shows is what `submit` sends, images by digest."""

import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from google.api_core.exceptions import GoogleAPICallError, ServerError
from google.auth.exceptions import GoogleAuthError
from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch import labels as of_jobs
from vertex_launch import program, study_validation
from vertex_launch.cloud.preflight import Preflight
from vertex_launch.cloud.refusals import said_by
from vertex_launch.cloud.registry import Image
from vertex_launch.cloud.service import NoAnswerError, Service, parent_of
from vertex_launch.job_resource import Resource
from vertex_launch.plan import pools
from vertex_launch.plan.formatting import duration, usd
from vertex_launch.settings import Settings
from vertex_launch.spec import Job, Pool, TuningJob, as_json, trial

GCLOUD = {"customJobs": "custom-jobs", "hyperparameterTuningJobs": "hp-tuning-jobs"}  # its groups of commands
NOTHING = Preflight()
SUBMISSION = "submission"  # the label by which the job of a request is found when its answer was lost
LOOKUPS, LOOKUP_SECONDS = 4, 10.0
RETRY_SECONDS = (4.0, 16.0)  # between two requests where the service failed


@dataclass(frozen=True)
class Request:
    """What is sent: a resource as JSON, and the collection that it becomes a part of."""

    collection: str
    resource: Resource

    @property
    def label(self) -> str:
        """The one by which its job is found: submission=ID."""
        return f"{SUBMISSION}={self.resource['labels'][SUBMISSION]}"


def summary(job: Job | TuningJob, settings: Settings, found: Preflight = NOTHING) -> str:
    """What will be sent, where, and for how much, for a person to agree to."""
    one, search = trial(job), _search_lines(job.spec) if isinstance(job, TuningJob) else ()
    spec = _with_account(one.spec, settings)
    strategy = one.strategy if spec.scheduling.strategy else "STANDARD"
    hours = spec.scheduling.timeout.total_seconds() / 3600 if "timeout" in spec.scheduling else 7 * 24
    return "\n".join(
        [
            f"{job.name} -> {parent_of(settings)}",
            *search,
            *map(_pool_line, one.pools),
            *map(_image_line, found.images),
            f"  output   {_output(spec, found.folder)}",
            f"  account  {spec.service_account or 'Vertex AI service agent'}",
            f"  limits   {strategy}, at most {duration(3600 * hours)}{' a trial' if search else ''}",
            f"  price    {_price(job, hours, settings)}",
        ]
    )


def request(
    job: Job | TuningJob, settings: Settings, labels: Mapping[str, str] | None = None, images: Sequence[Image] = ()
) -> Request:
    """Return the request as the API takes it; account and labels in the file go before those in vertex.toml.

    The job has a label of its own, by which it is found when the answer is lost, and one of its image.

    Args:
        labels: more of them, such as the revision; they go before those of the file.
        images: what names of images mean now; the job gets these, whatever is pushed under the same names.

    Raises:
        FaultError: these are too many labels.
    """
    spec = _with_images(_with_account(trial(job).spec, settings), images)
    digest = {"image-digest": images[0].short} if images else {}
    in_file = job.spec.labels if isinstance(job, TuningJob) else {}
    own = {**(labels or {}), **digest, SUBMISSION: uuid.uuid4().hex[:12]}
    labels = of_jobs.counted({**settings.labels, **in_file, **own})
    if not isinstance(job, TuningJob):
        return Request("customJobs", as_json(CustomJob(display_name=job.name, job_spec=spec, labels=labels)))
    tuning_job = HyperparameterTuningJob(job.spec)
    tuning_job.display_name, tuning_job.trial_job_spec = job.name, spec
    tuning_job.labels.update(labels)
    return Request("hyperparameterTuningJobs", as_json(tuning_job))


def submit(request: Request, service: Service, say: Callable[[str], None] = lambda said: None) -> str:
    """Create the job; returns its resource name, such as projects/NUMBER/locations/REGION/customJobs/ID.

    A service that fails is asked again, unless it shows the job, which it may have made all the same.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service refused it; a ServerError may have made it.
        NoAnswerError: so that the service may have made it.
    """
    made = ""
    for seconds in RETRY_SECONDS:
        try:
            return made or str(service.create(request.collection, request.resource)["name"])
        except ServerError as error:
            say(f"{said_by(error)}; trying again in {seconds:g} s")
        time.sleep(seconds)
        made = _name(request, service)  # the request may have arrived all the same
    return made or str(service.create(request.collection, request.resource)["name"])


def whereabouts(request: Request, service: Service, more: Callable[[str], str]) -> str:
    """What became of a request whose answer nobody saw, as a sentence: the service may have its job.

    Args:
        more: what is said behind the name of the job that it has.
    """
    look = f"look for it with: {f'{program.NAME} jobs' if service.endpoint else _list_command(request, service)}"
    brief = replace(service, seconds=LOOKUP_SECONDS)
    try:
        for waited in range(LOOKUPS):
            time.sleep(float(waited > 0))  # the request may still be on its way
            if name := _name(request, brief):
                return f"the job was created: {name}{more(name)}"
    except GoogleAPICallError as error:
        return f"whether the job was created is not known ({said_by(error)}); {look}"
    except (GoogleAuthError, NoAnswerError, KeyboardInterrupt):
        return f"whether the job was created is not known; {look}"
    return f"the service has no such job; should the request still arrive, {look}"


def _name(request: Request, service: Service) -> str:
    """The name of the job that a request has made, "" if there is none."""
    return next((str(job["name"]) for job in service.list(request.collection, f"labels.{request.label}")), "")


def _list_command(request: Request, service: Service) -> str:
    _, project, _, region = service.parent.split("/")
    group = GCLOUD[request.collection]
    return f"gcloud ai {group} list --project={project} --region={region} --filter=labels.{request.label}"


def _output(spec: CustomJobSpec, folder: str) -> str:
    address = spec.base_output_directory.output_uri_prefix
    return f"{address} ({folder})" if folder else address or "nowhere: nothing is kept"


def _with_account(spec: CustomJobSpec, settings: Settings) -> CustomJobSpec:
    copy = CustomJobSpec(spec)
    copy.service_account = copy.service_account or settings.service_account
    return copy


def _with_images(spec: CustomJobSpec, images: Sequence[Image]) -> CustomJobSpec:
    pinned = {image.name: image.pinned for image in images}
    for pool in spec.worker_pool_specs:
        if (name := pool.container_spec.image_uri) in pinned:
            pool.container_spec.image_uri = pinned[name]
    return spec


def _image_line(image: Image) -> str:
    built = f", built from revision {image.revision}" if image.revision else ""
    return f"  image    {image.name} is {image.digest[:19]} now{built}"


def _price(job: Job | TuningJob, hours: float, settings: Settings) -> str:
    """The price per hour of all trials that run at once, and the most that the job can cost."""
    price, trials = pools.price(pools.rows(trial(job), settings.catalog)), pools.trials(job) or pools.Trials(1, 1)
    if price is None:
        return "not known here; add yours under [prices] in vertex.toml"
    most = usd(trials.count * hours * price.usd)
    return f"{usd(trials.at_once * price.usd)} per hour, {most} at most ({price.certainty}: {price.source})"


def _search_lines(job: HyperparameterTuningJob) -> tuple[str, ...]:
    goals = StudySpec.MetricSpec.GoalType
    wanted = [
        f"{'lowest' if one.goal == goals.MINIMIZE else 'highest'} {one.metric_id}" for one in job.study_spec.metrics
    ]
    counts = f"{job.max_trial_count} trials, {job.parallel_trial_count} at once"
    return (
        f"  search   {counts}, for the {' and the '.join(wanted)}",
        *(f"{'':11}{one.parameter_id}: {study_validation.described(one)}" for one in job.study_spec.parameters),
    )


def _pool_line(pool: Pool) -> str:
    accelerators = f" + {pool.accelerator_count} {pool.accelerator}" if pool.accelerator else ""
    machines = f"{pool.replica_count:>3} x {pool.machine_type}{accelerators}"
    package, container = pool.spec.python_package_spec, pool.spec.container_spec
    image = container.image_uri or package.executor_image_uri
    installed = [f"pip install {shlex.join(package.package_uris)}"] if package.package_uris else []
    module = ["python", "-m", package.python_module] if package.python_module else []
    command = shlex.join([*container.command, *module, *pool.args])
    what = f"  pool {pool.index}   {pools.role(pool):<10} {machines}, {image}"
    lines = [what, *installed, *([command] if command else [])]
    return f"\n{'':14}".join(lines)
