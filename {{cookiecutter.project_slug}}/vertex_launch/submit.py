"""Send a job to Vertex AI. The request is a value: what `summary` shows is what `submit` sends."""

import ipaddress
import shlex
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from google.api_core.exceptions import GoogleAPICallError, ServerError
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud.aiplatform_v1 import JobServiceClient
from google.cloud.aiplatform_v1.types.custom_job import CustomJob, CustomJobSpec
from google.cloud.aiplatform_v1.types.hyperparameter_tuning_job import HyperparameterTuningJob
from google.cloud.aiplatform_v1.types.job_service import CreateCustomJobRequest, CreateHyperparameterTuningJobRequest
from google.cloud.aiplatform_v1.types.study import StudySpec

from vertex_launch import study_validation
from vertex_launch.errors import FaultError
from vertex_launch.plan import pools
from vertex_launch.plan.formatting import usd
from vertex_launch.refusals import said_by
from vertex_launch.settings import Settings
from vertex_launch.spec import CHIEF, EVALUATORS, REDUCERS, WORKERS, Job, Pool, TuningJob, trial

ROLES = {CHIEF: "chief", WORKERS: "workers", REDUCERS: "servers", EVALUATORS: "evaluators"}
REQUEST_SECONDS = 60.0
SUBMISSION = "submission"  # the label by which the job of a request is found when its answer was lost
LOOKUPS, LOOKUP_SECONDS = 4, 10.0
RETRY_SECONDS = (1.0, 4.0, 16.0)  # between two requests where the service failed


class EndpointError(FaultError):
    """VERTEX_ENDPOINT is not the address of a local Vertex."""


Request = CreateCustomJobRequest | CreateHyperparameterTuningJobRequest


def summary(job: Job | TuningJob, settings: Settings) -> str:
    """What will be sent, where, and for how much, for a person to agree to."""
    one, search = trial(job), _search_lines(job.spec) if isinstance(job, TuningJob) else ()
    spec = _with_account(one.spec, settings)
    strategy = one.strategy if spec.scheduling.strategy else "STANDARD"
    hours = spec.scheduling.timeout.total_seconds() / 3600 if "timeout" in spec.scheduling else 7 * 24
    return "\n".join(
        [
            f"{job.name} -> {_parent(settings)}",
            *search,
            *map(_pool_line, one.pools),
            f"  output   {spec.base_output_directory.output_uri_prefix or 'nowhere: nothing is kept'}",
            f"  account  {spec.service_account or 'Vertex AI service agent'}",
            f"  limits   {strategy}, at most {hours:g} h{' a trial' if search else ''}",
            f"  price    {_price(job, hours, settings)}",
        ]
    )


def request(job: Job | TuningJob, settings: Settings) -> Request:
    """The request as the API takes it; the account in the file goes before the one in vertex.toml.

    Its job has a label of its own, by which it is found when the answer is lost.
    """
    parent, spec = _parent(settings), _with_account(trial(job).spec, settings)
    labels = {SUBMISSION: uuid.uuid4().hex[:12]}
    if not isinstance(job, TuningJob):
        custom_job = CustomJob(display_name=job.name, job_spec=spec, labels=labels)
        return CreateCustomJobRequest(parent=parent, custom_job=custom_job)
    tuning_job = HyperparameterTuningJob(job.spec)
    tuning_job.display_name, tuning_job.trial_job_spec = job.name, spec
    tuning_job.labels.update(labels)
    return CreateHyperparameterTuningJobRequest(parent=parent, hyperparameter_tuning_job=tuning_job)


def submit(request: Request, client: JobServiceClient, say: Callable[[str], None] = lambda said: None) -> str:
    """Create the job; returns its resource name, such as projects/NUMBER/locations/REGION/customJobs/ID.

    A service that fails is asked again, but only once it is known that it has not made the job all the same.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service refused it, or did not answer in a minute.
        OSError: over REST, there is no service at the endpoint.
    """
    create = getattr(client, f"create_{_noun(request)}")
    made = ""
    for seconds in RETRY_SECONDS:
        try:
            return made or str(create(request=request, timeout=REQUEST_SECONDS).name)
        except ServerError as error:
            say(f"{said_by(error)}; trying again in {seconds:g} s")
        time.sleep(seconds)
        made = _name(request, client)  # the request may have arrived all the same
    return made or str(create(request=request, timeout=REQUEST_SECONDS).name)


def whereabouts(request: Request, client: JobServiceClient, endpoint: str = "") -> str:
    """What became of a request for whose answer nobody waited, as a sentence: the service may have its job.

    Args:
        endpoint: the one of `client`.
    """
    look = f"look for it with: {_list_command(request)}" if not endpoint else f"look for it at {endpoint}"
    try:
        for waited in range(LOOKUPS):
            time.sleep(float(waited > 0))  # the request may still be on its way
            if name := _name(request, client):
                return f"the job was created: {name}\n{page(name, endpoint)}"
    except (GoogleAPICallError, GoogleAuthError, OSError) as error:
        return f"whether the job was created is not known ({error}); {look}"
    except KeyboardInterrupt:
        return f"whether the job was created is not known; {look}"
    return f"the service has no such job; should the request still arrive, {look}"


def _noun(request: Request) -> str:
    """What the client calls the resource that a request makes."""
    return "custom_job" if isinstance(request, CreateCustomJobRequest) else "hyperparameter_tuning_job"


def _name(request: Request, client: JobServiceClient) -> str:
    """The name of the job that a request has made, "" if there is none."""
    wanted = {"parent": request.parent, "filter": f"labels.{label(request)}"}
    jobs = getattr(client, f"list_{_noun(request)}s")(request=wanted, timeout=LOOKUP_SECONDS)
    return next((str(job.name) for job in jobs), "")


def label(request: Request) -> str:
    """The one by which its job is found: submission=ID."""
    return f"{SUBMISSION}={getattr(request, _noun(request)).labels[SUBMISSION]}"


def _list_command(request: Request) -> str:
    _, project, _, region = request.parent.split("/")
    kind = "custom-jobs" if isinstance(request, CreateCustomJobRequest) else "hp-tuning-jobs"
    return f"gcloud ai {kind} list --project={project} --region={region} --filter=labels.{label(request)}"


def client(settings: Settings, endpoint: str = "") -> JobServiceClient:
    """A client of the region's endpoint or, without credentials, of another such as http://127.0.0.1:8911.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: nobody is logged in to Google Cloud here.
    """
    if endpoint:
        return JobServiceClient(
            transport="rest",
            client_options={"api_endpoint": endpoint},
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call, unused-ignore]
        )
    return JobServiceClient(client_options={"api_endpoint": f"{settings.region}-aiplatform.googleapis.com"})


def require_local(endpoint: str) -> None:
    """Raises EndpointError unless VERTEX_ENDPOINT is an http or https address of this machine."""
    try:
        url = urlsplit(endpoint)
        at_home = url.hostname == "localhost" or ipaddress.ip_address(url.hostname or "").is_loopback
        local = at_home and url.scheme in ("http", "https") and url.port != 0 and not url.path.strip("/")
    except ValueError:
        local = False
    if not local:
        cure = "write such as http://127.0.0.1:8911, as emulate prints it, or unset it for Google Cloud"
        raise EndpointError(f'VERTEX_ENDPOINT: "{endpoint}" is not an http(s) address of this machine; {cure}')


def page(name: str, endpoint: str) -> str:
    """Where a person looks at the job: the local Vertex's page, or the Cloud console."""
    return f"{endpoint.rstrip('/')}/#{name.rpartition('/')[2]}" if endpoint else console_url(name)


def console_url(name: str) -> str:
    """The job's page in the Cloud console. Source: google-cloud-aiplatform 2.7.0, `_dashboard_uri`."""
    _, project, _, location, _, id = name.split("/")
    return f"https://console.cloud.google.com/agent-platform/locations/{location}/training/{id}?project={project}"


def _parent(settings: Settings) -> str:
    return f"projects/{settings.project}/locations/{settings.region}"


def _with_account(spec: CustomJobSpec, settings: Settings) -> CustomJobSpec:
    copy = CustomJobSpec(spec)
    copy.service_account = copy.service_account or settings.service_account
    return copy


def _price(job: Job | TuningJob, hours: float, settings: Settings) -> str:
    """Per hour with all that run at once, and in all if each runs as long as it may."""
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
    role = "reducers" if pool.reduces else ROLES.get(pool.index, "")
    accelerators = f" + {pool.accelerator_count} {pool.accelerator}" if pool.accelerator else ""
    machines = f"{pool.replica_count:>3} x {pool.machine_type}{accelerators}"
    package, container = pool.spec.python_package_spec, pool.spec.container_spec
    image = container.image_uri or package.executor_image_uri
    installed = [f"pip install {shlex.join(package.package_uris)}"] if package.package_uris else []
    module = ["python", "-m", package.python_module] if package.python_module else []
    command = shlex.join([*container.command, *module, *pool.args])
    lines = [f"  pool {pool.index}   {role:<10} {machines}, {image}", *installed, *([command] if command else [])]
    return f"\n{'':14}".join(lines)
