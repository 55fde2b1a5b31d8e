"""Steps that a project needs once, before its first job: the gcloud lines that look for each and that take it.

The rights are the least that do. Sources: Vertex AI, "Use a custom service account"; Artifact Registry, "Configure
cleanup policies".
"""

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vertex_launch.cloud.project_files import account_domain
from vertex_launch.cloud.refusals import DISABLED
from vertex_launch.errors import FaultError
from vertex_launch.settings import Settings

APIS = (
    *("aiplatform", "artifactregistry", "cloudbuild", "cloudquotas"),
    *("cloudresourcemanager", "iam", "logging", "storage"),
)
BUDGET_APIS = ("billingbudgets", "cloudbilling")
ACCOUNT = "vertex-trainer"  # the account that jobs run as, unless vertex.toml names another
SECONDS = 300.0  # that a line may take; to switch services on takes a minute
JSON = "--format=json"
ABSENT = re.compile(r"not.?found|\b404\b|does not exist", re.IGNORECASE)
PAUSES = (0.0, 10.0, 20.0, 40.0)  # seconds; a new resource is not visible everywhere at once
IMAGE = re.compile(
    r"(?P<host>(?P<location>[a-z0-9-]+)-docker\.pkg\.dev)"
    r"/(?P<project>([^/.]+(\.[^/.]+)+/)?[^/]+)/(?P<repository>[^/]+)/.+"  # a project may belong to a domain
)
CLEAN_UP = [
    {"name": "keep-some", "action": {"type": "Keep"}, "mostRecentVersions": {"keepCount": 30}},
    {"name": "delete-old", "action": {"type": "Delete"}, "condition": {"olderThan": "30d"}},
]

Line = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """Step of the setup: a thing that must exist, and the lines that look for it and make it."""

    title: str
    looks: Line  # the gcloud line that looks for it; its answer is JSON
    act: Line  # the gcloud line that makes it
    done: Callable[[Any], object] = bool  # whether the answer says that it is there
    differs: Callable[[Any], Iterator[str]] = lambda _: iter(())  # sentences on what differs from what `act` would make


def steps(settings: Settings, you: str, policy: Path, budget: float = 0, billing: str = "") -> Iterator[Step]:
    """Yield all steps, in order; raises FaultError where the image is not in Artifact Registry.

    `you`, such as user:ada@example.com, submit jobs; the file `policy` will hold the clean-up policy; of the `budget`,
    USD a month or 0 for none, half and all are told by mail; `billing` is the account that pays, "" where it is unseen.
    """
    project, bucket = f"--project={settings.project}", f"gs://{settings.bucket}"
    apis = (*APIS, *(BUDGET_APIS if budget else ()))
    names = [f"{api}.googleapis.com" for api in apis]
    yield Step(
        f"services {', '.join(apis)}",
        ("services", "list", "--enabled", project),
        ("services", "enable", *names, project),
        lambda services: {*names} <= {service["config"]["name"] for service in services},
    )
    place = (f"--location={settings.region}", project)
    private = ("--uniform-bucket-level-access", "--public-access-prevention")
    yield Step(
        f"bucket {bucket}",
        ("storage", "buckets", "describe", bucket),
        ("storage", "buckets", "create", bucket, *place, *private),
        differs=lambda answer: _bucket_differs(answer, settings),
    )
    yield from _repository(settings.image, policy)
    yield from _account(settings, you)
    if budget:
        yield _budget(settings, budget, billing)


def _bucket_differs(answer: Any, settings: Settings) -> Iterator[str]:
    """Yield how an existing bucket differs from what the lines would make; it stays as it is."""
    location, bucket = str(answer.get("location", "")).lower(), f"gs://{settings.bucket}"
    if answer.get("location_type") == "region" and location != settings.region:
        place = f"it is in {location}, and the machines are in {settings.region}: slower, and billed as egress"
        yield f"{place}; name a bucket in {settings.region} with --bucket"
    if answer.get("public_access_prevention", "enforced") != "enforced":
        cure = shown(("storage", "buckets", "update", bucket, "--public-access-prevention"))
        yield f"it can be made public; prevent that: {cure}"


def _repository(image: str, policy: Path) -> Iterator[Step]:
    parts = IMAGE.fullmatch(image)
    if not parts:
        cure = "write REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"
        raise FaultError(f"image: {image} is not in Artifact Registry; {cure}")
    repository, project = parts["repository"], parts["project"].replace("/", ":")
    place = (f"--location={parts['location']}", f"--project={project}")
    group = ("artifacts", "repositories")
    looks = (*group, "describe", repository, *place)
    make = (*group, "create", repository, "--repository-format=docker", *place)
    clean_up = (*group, "set-cleanup-policies", repository, f"--policy={policy}", "--no-dry-run", *place)
    yield Step(f"repository {repository} for images", looks, make)
    yield Step(
        f"repository {repository} deletes old images", looks, clean_up, lambda answer: answer.get("cleanupPolicies")
    )


def account(settings: Settings) -> str:
    """The account that jobs run as."""
    return settings.service_account or f"{ACCOUNT}@{account_domain(settings.project)}"


def _account(settings: Settings, you: str) -> Iterator[Step]:
    """The account and its rights: to write to the bucket and to the log, and yours to let jobs run as it."""
    who, project, bucket = account(settings), f"--project={settings.project}", f"gs://{settings.bucket}"
    name, _, domain = who.partition("@")
    member = f"serviceAccount:{who}"
    buckets, accounts, whole = ("storage", "buckets"), ("iam", "service-accounts"), ("projects",)
    if domain == account_domain(settings.project):
        make = (*accounts, "create", name, "--display-name=Runs training jobs", project)
        yield Step(f"account {who}", (*accounts, "describe", who, project), make)
    yield _binding("it writes to the bucket", buckets, bucket, member, "roles/storage.objectAdmin")
    yield _binding("it writes to the log", whole, settings.project, member, "roles/logging.logWriter")
    yield _binding("you let jobs run as it", accounts, who, you, "roles/iam.serviceAccountUser", project)
    yield _binding("you send jobs", whole, settings.project, you, "roles/aiplatform.user")
    yield _binding("you read their log", whole, settings.project, you, "roles/logging.viewer")
    yield _binding("you read what they write", buckets, bucket, you, "roles/storage.objectViewer")


def _binding(title: str, kind: Line, resource: str, member: str, role: str, *flags: str) -> Step:
    def is_bound(policy: Any) -> bool:
        bindings = (entry for entry in policy.get("bindings", ()) if entry["role"] == role and "condition" not in entry)
        return any(member in entry["members"] for entry in bindings)

    who = (f"--member={member}", f"--role={role}", "--condition=None")  # gcloud requires it if others have one
    give = (*kind, "add-iam-policy-binding", resource, *who, *flags)
    return Step(f"{title}: {role}", (*kind, "get-iam-policy", resource, *flags), give, is_bound)


def _budget(settings: Settings, usd: float, billing: str) -> Step:
    name = f"training in {settings.project}, {usd:.2f}"
    where = f"--billing-account={billing}"
    rules = ("--threshold-rule=percent=0.5", "--threshold-rule=percent=1.0")
    create = ("billing", "budgets", "create", where, f"--display-name={name}", f"--budget-amount={usd:.2f}USD")
    return Step(
        f"a mail at half and at all of {usd:.2f} USD a month",
        ("billing", "budgets", "list", where),
        (*create, f"--filter-projects=projects/{settings.project}", *rules),
        lambda budgets: any(budget.get("displayName") == name for budget in budgets),
    )


def look(step: Step) -> tuple[bool, tuple[str, ...]]:
    """Return whether the step is done, and what differs from what it would make; raises FaultError."""
    code, output, error = _gcloud(*step.looks, JSON)
    if code == 0:
        answer = json.loads(output or "null")
        return bool(step.done(answer)), tuple(step.differs(answer))
    if _is_absent(error):
        return False, ()
    raise FaultError(f"{step.title}: cannot be looked at: {error}; the line was: {shown(step.looks)}")


def take(line: Line) -> None:
    """Run a line, again where it needs what was just made; raises FaultError where gcloud refuses."""
    for seconds in PAUSES:
        time.sleep(seconds)
        code, _, error = _gcloud(*line, "--quiet")
        if not (code and _is_absent(error)):
            break
    if code:
        raise FaultError(f"{error}; the line was: {shown(line)}")


def _is_absent(error: str) -> bool:
    """Whether gcloud does not know the resource, or the resource's service is not switched on yet."""
    return bool(ABSENT.search(error) or DISABLED.search(error))


def ask(*line: str) -> str:
    """Return the answer of gcloud to a line, "" where it fails."""
    code, answer, _ = _gcloud(*line)
    return answer.strip() if code == 0 else ""


def gcloud(otherwise: str = "") -> str:
    """Return the program's path; raises FaultError where it is missing, with `otherwise` at the end of the cure."""
    if program := shutil.which("gcloud"):
        return program
    raise FaultError(f"gcloud is not here; install it: https://cloud.google.com/sdk/docs/install{otherwise}")


def shown(line: Sequence[str]) -> str:
    return shlex.join(("gcloud", *line))


def _gcloud(*line: str) -> tuple[int, str, str]:
    program = gcloud("; --dry-run prints what it would be asked")
    try:
        done = subprocess.run(
            (program, *line), capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise FaultError(f"no answer within {SECONDS:g} s; the line was: {shown(line)}") from None
    error = " ".join(done.stderr.split()).rpartition("ERROR: ")[2]
    return done.returncode, done.stdout, error or f"gcloud ended with exit code {done.returncode}"
