"""Send a job to Vertex AI. The request is a value: what `summary` shows is what `submit` sends."""

import shlex

from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import JobServiceClient
from google.cloud.aiplatform_v1.types import CreateCustomJobRequest, CustomJob, CustomJobSpec, Scheduling

from launch.settings import Settings
from launch.spec import CHIEF, EVALUATORS, REDUCERS, WORKERS, Job, Pool

ROLES = {CHIEF: "chief", WORKERS: "workers", REDUCERS: "servers", EVALUATORS: "evaluators"}
REQUEST_SECONDS = 60.0


def summary(job: Job, settings: Settings) -> str:
    """What will be sent and where, for a person to agree to: each pool with its machines, image and command."""
    spec = request(job, settings).custom_job.job_spec
    strategy = Scheduling.Strategy(spec.scheduling.strategy or Scheduling.Strategy.STANDARD).name
    hours = spec.scheduling.timeout.total_seconds() / 3600 if "timeout" in spec.scheduling else 7 * 24
    return "\n".join(
        [
            f"{job.name} -> {_parent(settings)}",
            *map(_pool_line, job.pools),
            f"  output   {spec.base_output_directory.output_uri_prefix or 'nowhere: nothing is kept'}",
            f"  account  {spec.service_account or 'Vertex AI service agent'}",
            f"  limits   {strategy}, at most {hours:g} h",
        ]
    )


def request(job: Job, settings: Settings) -> CreateCustomJobRequest:
    """The request as the API takes it; the account in the file goes before the one in vertex.toml."""
    spec = CustomJobSpec(job.spec)
    spec.service_account = spec.service_account or settings.service_account
    custom_job = CustomJob(display_name=job.name, job_spec=spec)
    return CreateCustomJobRequest(parent=_parent(settings), custom_job=custom_job)


def submit(request: CreateCustomJobRequest, client: JobServiceClient) -> str:
    """Create the job; returns its resource name, projects/NUMBER/locations/REGION/customJobs/ID.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service refused it, or did not answer in a minute.
        OSError: over REST, there is no service at the endpoint.
    """
    return client.create_custom_job(request=request, timeout=REQUEST_SECONDS).name


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


def console_url(name: str) -> str:
    """The job's page in the Cloud console. Source: google-cloud-aiplatform 2.7.0, `_dashboard_uri`."""
    part = JobServiceClient.parse_custom_job_path(name)
    path = f"locations/{part['location']}/training/{part['custom_job']}?project={part['project']}"
    return f"https://console.cloud.google.com/agent-platform/{path}"


def _parent(settings: Settings) -> str:
    return f"projects/{settings.project}/locations/{settings.region}"


def _pool_line(pool: Pool) -> str:
    role = "reducers" if pool.reduces else ROLES.get(pool.index, "")
    accelerators = f" + {pool.accelerator_count} {pool.accelerator}" if pool.accelerator else ""
    machines = f"{pool.replica_count:>3} x {pool.machine_type}{accelerators}"
    image = pool.spec.container_spec.image_uri or pool.spec.python_package_spec.executor_image_uri
    command = shlex.join([*pool.spec.container_spec.command, *pool.spec.container_spec.args])
    return f"  pool {pool.index}   {role:<10} {machines}, {image}" + (f"\n{'':14}{command}" if command else "")
