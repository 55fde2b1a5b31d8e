"""Converts errors from Google Cloud into messages that contain the service's message and a fix."""

import contextlib
import os
import re
from collections.abc import Iterator

from google.api_core import exceptions
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
from google.auth.environment_vars import CREDENTIALS
from google.auth.exceptions import GoogleAuthError

from vertex_launch import program
from vertex_launch.cloud.service import NoAnswerError
from vertex_launch.errors import FaultError
from vertex_launch.plan import pools
from vertex_launch.settings import Settings

LOGIN = "log in with: gcloud auth login --update-adc"  # for gcloud, and for programs that use its credentials
# The prefix of a permission -> the narrowest role that contains it. Source: IAM, "Roles and permissions".
ROLES = {
    "aiplatform.": "roles/aiplatform.user",
    "artifactregistry.": "roles/artifactregistry.reader",
    "iam.serviceAccounts.": "roles/iam.serviceAccountUser",
    "logging.": "roles/logging.viewer",
    "storage.objects.get": "roles/storage.objectViewer",
    "storage.objects.list": "roles/storage.objectViewer",
    "storage.": "roles/storage.objectAdmin",
}
PERMISSION = re.compile(r"""(?:[Pp]ermission|does not have) ['"]?([a-zA-Z.]+\.[a-zA-Z.]+)""")
NO_PROJECT = re.compile(r"[Pp]ermission denied on resource project")
BILLING = re.compile(r"requires billing|[Bb]illing (account|must)")
BUCKET = re.compile(r"/b/([^/?]+)")  # in the requested URL
ACT_AS = re.compile(r"act as service[ _]account:? '?([^\s']+@[^\s']+?)[.']?(?:\s|$)")
API = re.compile(r"\b(\w+)\.googleapis\.com")
DISABLED = re.compile(r"has not been used in project|SERVICE_DISABLED|^(?!.*[Bb]illing).*is disabled", re.DOTALL)
STATUS = "https://status.cloud.google.com"
METRIC = re.compile(r"(?:aiplatform|compute)\.googleapis\.com/\w+")


class CloudError(FaultError):
    """An error from Google Cloud, or a problem with the credentials or the connection."""


@contextlib.contextmanager
def google_errors(settings: Settings) -> Iterator[None]:
    """Convert errors from Google's client libraries in the `with` block into a CloudError with a message for users."""
    try:
        yield
    except (GoogleAPIError, GoogleAuthError) as error:
        raise CloudError(f"Google Cloud: {message_of(error)}; {cure(error, settings)}") from None
    except NoAnswerError as error:
        raise CloudError(f"{error}; {_reach(str(error), settings)}") from None


def message_of(error: Exception) -> str:
    """Return the error code and the service's message, excluding the URL.

    Example: `403 Permission ... denied on resource ...`.
    """
    if not isinstance(error, GoogleAPICallError):
        return str(error).partition("\n")[0].rstrip(".")
    words = re.sub(r"^(GET|POST|PATCH|DELETE) \S+: ", "", str(error.message)).strip().rstrip(".")
    return f"{error.code} {words.partition(chr(10))[0]}"


def cure(error: Exception, settings: Settings) -> str:
    text = str(getattr(error, "message", error))
    if isinstance(error, exceptions.Forbidden):
        return _right(text, settings)
    if isinstance(error, exceptions.TooManyRequests):
        return _quota(text, settings)
    if isinstance(error, GoogleAuthError | exceptions.Unauthorized):
        key = (
            f"fix the key file that {CREDENTIALS} specifies, or unset this variable and "
            if os.environ.get(CREDENTIALS)
            else ""
        )
        return f"{key}{LOGIN}"  # a key file in this variable takes precedence over gcloud's credentials
    if isinstance(error, exceptions.NotFound):
        where = (f"the {key} in {settings.origin(key)}" for key in ("project", "region"))
        return f"check {', '.join(where)}, and the names in the job file"
    if isinstance(error, exceptions.BadRequest):
        return "fix the field that this message mentions; the `check` command doesn't cover this rule"
    failed = isinstance(error, exceptions.ServerError | exceptions.RetryError)
    return f"{'the service failed, not the job; try again in a few minutes, or ' if failed else ''}check {STATUS}"


def _reach(text: str, settings: Settings) -> str:
    if "://127." in text:
        return f"start the local Vertex with {program.NAME} emulate, or unset VERTEX_ENDPOINT to use Google Cloud"
    region = settings.region
    unknown = region and f"://{region}-" in text and region not in settings.catalog.regions
    return f"check the network{f', and whether {region} is a region' if unknown else ''}"


def _right(text: str, settings: Settings) -> str:
    """Return a message about the missing role or setting, with the gcloud command that adds it."""
    project = settings.project or "PROJECT"
    if BILLING.search(text):
        return f"link a billing account: gcloud billing projects link {project} --billing-account=ACCOUNT"
    if DISABLED.search(text):
        logs = "logging" if "Logging API" in text else "aiplatform"
        api = named[1] if (named := API.search(text)) else logs
        return f"enable the API: gcloud services enable {api}.googleapis.com --project={project}"
    if account := ACT_AS.search(text):
        who = f"gcloud iam service-accounts add-iam-policy-binding {account[1]}"
        return f"to use this service account, run: {who} --member=user:YOU --role={ROLES['iam.serviceAccounts.']}"
    if NO_PROJECT.search(text):
        return f"check the project in {settings.origin('project')}; list your projects with: gcloud projects list"
    match = PERMISSION.search(text)
    permission = match[1] if match else "logging." if "log view" in text else "aiplatform."
    role = next((role for begin, role in ROLES.items() if permission.startswith(begin)), ROLES["aiplatform."])
    return f"ask a project owner for the role {role}: {_grant(role, text, settings)}"


def _grant(role: str, text: str, settings: Settings) -> str:
    """Return the gcloud command that grants a role.

    The command grants Cloud Storage roles on the bucket, and all other roles on the project.
    """
    on = f"projects add-iam-policy-binding {settings.project or 'PROJECT'}"
    if role.startswith("roles/storage."):
        named = BUCKET.search(text)
        on = f"storage buckets add-iam-policy-binding gs://{named[1] if named else settings.bucket or 'BUCKET'}"
    return f"gcloud {on} --member=user:YOU --role={role}"


def _quota(text: str, settings: Settings) -> str:
    """Return a message with the commands that show the exhausted quota and request an increase."""
    metric = METRIC.search(text)
    if not metric:
        return "too many requests were sent; try again in a minute"
    see = f"view the quota {metric[0]} with: {pools.quota_command(settings)}"
    return (
        f"{see}; use a different region or a smaller job, or request more quota:"
        f" {pools.more_command(metric[0], settings)}"
    )
