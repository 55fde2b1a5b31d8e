"""What Google Cloud refuses, in one sentence each: what it said, and what cures it."""

import contextlib
import re
from collections.abc import Iterator

from google.api_core.exceptions import (
    BadRequest,
    Forbidden,
    GoogleAPICallError,
    GoogleAPIError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError

from vertex_launch import program
from vertex_launch.cloud.service import NoAnswerError
from vertex_launch.errors import FaultError
from vertex_launch.plan import pools
from vertex_launch.settings import Settings

LOGIN = "log in with: gcloud auth login --update-adc"  # gcloud, and the programs that use its login
# The beginning of a permission -> the role that has it and no more than its kind. Source: IAM, "Roles and permissions".
ROLES = {
    "aiplatform.": "roles/aiplatform.user",
    "artifactregistry.": "roles/artifactregistry.reader",
    "iam.serviceAccounts.": "roles/iam.serviceAccountUser",
    "logging.": "roles/logging.viewer",
    "storage.": "roles/storage.objectAdmin",
}
PERMISSION = re.compile(r"[Pp]ermission '?([a-zA-Z.]+\.[a-zA-Z.]+)'?")
ACT_AS = re.compile(r"act as service[ _]account:? '?([^\s']+@[^\s']+?)[.']?(?:\s|$)")
API = re.compile(r"\b(\w+)\.googleapis\.com")
DISABLED = re.compile(r"has not been used in project|SERVICE_DISABLED|is disabled")
STATUS = "https://status.cloud.google.com"
CURES: dict[type[GoogleAPICallError], str] = {
    Unauthorized: LOGIN,
    NotFound: "look at project and region in vertex.toml, and at the names in the job file",
    BadRequest: "mend what it names; `check` does not know this rule",
    ServerError: f"the service failed, not the job: try again in some minutes, or look at {STATUS}",
}
METRIC = re.compile(r"(?:aiplatform|compute)\.googleapis\.com/\w+")


class CloudError(FaultError):
    """Google Cloud refused the job, or does not know who sends it."""


@contextlib.contextmanager
def google_errors(settings: Settings) -> Iterator[None]:
    """What Google's client raises, as a CloudError for the person at the keyboard."""
    try:
        yield
    except (DefaultCredentialsError, RefreshError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise CloudError(f"Google Cloud: {said}; {LOGIN}") from None
    except GoogleAPICallError as error:
        raise CloudError(f"Google Cloud: {said_by(error)}; {cure(error, settings)}") from None
    except GoogleAuthError as error:
        raise CloudError(f"Google Cloud: {error}; {LOGIN}") from None
    except GoogleAPIError as error:  # such as a RetryError, which has no status
        raise CloudError(f"Google Cloud: {error}; {CURES[ServerError]}") from None
    except NoAnswerError as error:
        here = f"start the local Vertex, {program.NAME} emulate, or unset VERTEX_ENDPOINT for Google Cloud"
        raise CloudError(f"{error}; {here if '://127.' in str(error) else 'check the network'}") from None


def said_by(error: Exception) -> str:
    """`403 Permission ... denied on resource ...`: the code and the service's words, without the request's address."""
    if not isinstance(error, GoogleAPICallError):
        return str(error)
    words = re.sub(r"^(GET|POST|PATCH|DELETE) \S+: ", "", str(error.message)).strip().rstrip(".")
    return f"{error.code} {words.partition(chr(10))[0]}"


def cure(error: GoogleAPICallError, settings: Settings) -> str:
    """What to do about it."""
    text = str(error.message)
    if isinstance(error, Forbidden):
        return _right(text, settings.project or "PROJECT")
    if isinstance(error, TooManyRequests):
        return _quota(text, settings)
    return next((cure for kind, cure in CURES.items() if isinstance(error, kind)), f"look at {STATUS}")


def _right(text: str, project: str) -> str:
    """Who must be given which right, as the line that gives it."""
    if DISABLED.search(text):
        logs = "logging" if "Logging API" in text else "aiplatform"
        api = named[1] if (named := API.search(text)) else logs
        return f"switch it on: gcloud services enable {api}.googleapis.com --project={project}"
    if account := ACT_AS.search(text):
        who = f"gcloud iam service-accounts add-iam-policy-binding {account[1]}"
        return f"let yourself use that account: {who} --member=user:YOU --role={ROLES['iam.serviceAccounts.']}"
    permission = PERMISSION.search(text)
    asked = permission[1] if permission else "logging." if "log view" in text else "aiplatform."
    role = next((role for begin, role in ROLES.items() if asked.startswith(begin)), ROLES["aiplatform."])
    give = f"gcloud projects add-iam-policy-binding {project} --member=user:YOU --role={role}"
    return f"ask an owner of the project for the role {role}: {give}"


def _quota(text: str, settings: Settings) -> str:
    """How to see the quota that the text names, and how to ask for more."""
    metric = METRIC.search(text)
    if not metric:
        return "it is asked too often: try again in a minute"
    see = f"see what there is of {metric[0]} with: {pools.quota_command(settings)}"
    return f"{see}; ask for more at {pools.quota_page(settings)}, or take another region or a smaller job"
