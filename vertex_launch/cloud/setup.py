"""What a project needs once, before its first job: each step as the gcloud lines that look for it and that take it.

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
from vertex_launch.job_resource import Resource
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
PAUSES = (0.0, 10.0, 20.0, 40.0)  # s; what was just made is not known everywhere at once
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
    """One thing that must be there."""

    title: str
    looks: Line  # what is asked, of gcloud; its answer is JSON
    acts: tuple[Line, ...]  # what makes it
    done: Callable[[Any], bool] = bool  # whether the answer says that it is there
    differs: Callable[[Any], Iterator[str]] = lambda _: iter(())  # what of it is not as the lines would make it


def steps(settings: Settings, you: str, policy: Path, budget: float = 0, billing: str = "") -> Iterator[Step]:
    """All of them, in order.

    Args:
        you: who submits jobs, such as user:ada@example.com.
        policy: the file that will hold the clean-up policy.
        budget: USD a month, of which half and all are told by mail; 0 for none.
        billing: the account that pays, for a budget; "" where it cannot be seen.

    Raises:
        FaultError: the image is not in Artifact Registry.
    """
    project, bucket = f"--project={settings.project}", f"gs://{settings.bucket}"
    apis = (*APIS, *(BUDGET_APIS if budget else ()))
    names = [f"{api}.googleapis.com" for api in apis]
    yield Step(
        f"services {', '.join(apis)}",
        ("services", "list", "--enabled", project),
        (("services", "enable", *names, project),),
        lambda found: {*names} <= {one["config"]["name"] for one in found},
    )
    place = (f"--location={settings.region}", project)
    private = ("--uniform-bucket-level-access", "--public-access-prevention")
    yield Step(
        f"bucket {bucket}",
        ("storage", "buckets", "describe", bucket),
        (("storage", "buckets", "create", bucket, *place, *private),),
        differs=lambda found: _bucket_differs(found, settings),
    )
    yield from _repository(settings.image, policy)
    yield from _account(settings, you)
    if budget:
        yield _budget(settings, budget, billing)


def _bucket_differs(found: Any, settings: Settings) -> Iterator[str]:
    """A bucket that is there stays as it is: somebody may want it so."""
    location, bucket = str(found.get("location", "")).lower(), f"gs://{settings.bucket}"
    if found.get("location_type") == "region" and location != settings.region:
        place = f"it is in {location}, and the machines are in {settings.region}: slower, and billed as egress"
        yield f"{place}; name a bucket in {settings.region} with --bucket"
    if found.get("public_access_prevention", "enforced") != "enforced":
        cure = shown(("storage", "buckets", "update", bucket, "--public-access-prevention"))
        yield f"it can be made public; prevent that: {cure}"


def _repository(image: str, policy: Path) -> Iterator[Step]:
    parts = IMAGE.fullmatch(image)
    if not parts:
        cure = "write REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"
        raise FaultError(f"image: {image} is not in Artifact Registry; {cure}")
    repository, project = parts["repository"], parts["project"].replace("/", ":")
    place = (f"--location={parts['location']}", f"--project={project}")
    here = ("artifacts", "repositories")
    looks = (*here, "describe", repository, *place)
    yield Step(
        f"repository {repository} for images",
        looks,
        ((*here, "create", repository, "--repository-format=docker", *place),),
    )
    yield Step(
        f"repository {repository} deletes old images",
        looks,
        ((*here, "set-cleanup-policies", repository, f"--policy={policy}", "--no-dry-run", *place),),
        lambda found: bool(found.get("cleanupPolicies")),
    )


def account(settings: Settings) -> str:
    """The account that jobs run as."""
    return settings.service_account or f"{ACCOUNT}@{account_domain(settings.project)}"


def _account(settings: Settings, you: str) -> Iterator[Step]:
    """The account and its rights: to write to the bucket and to the log, and yours to let jobs run as it."""
    who, project, bucket = account(settings), f"--project={settings.project}", f"gs://{settings.bucket}"
    name, _, domain = who.partition("@")
    if domain == account_domain(settings.project):
        title = ("--display-name=Runs training jobs",)
        yield Step(
            f"account {who}",
            ("iam", "service-accounts", "describe", who, project),
            (("iam", "service-accounts", "create", name, *title, project),),
        )
    member = f"serviceAccount:{who}"
    buckets, accounts, whole = ("storage", "buckets"), ("iam", "service-accounts"), ("projects",)
    yield _binding("it writes to the bucket", buckets, bucket, member, "roles/storage.objectAdmin")
    yield _binding("it writes to the log", whole, settings.project, member, "roles/logging.logWriter")
    yield _binding("you let jobs run as it", accounts, who, you, "roles/iam.serviceAccountUser", project)
    yield _binding("you send jobs", whole, settings.project, you, "roles/aiplatform.user")
    yield _binding("you read their log", whole, settings.project, you, "roles/logging.viewer")
    yield _binding("you read what they write", buckets, bucket, you, "roles/storage.objectViewer")


def _binding(title: str, kind: Line, what: str, member: str, role: str, *rest: str) -> Step:
    condition = "--condition=None"  # gcloud wants the word where others have a condition
    return Step(
        f"{title}: {role}",
        (*kind, "get-iam-policy", what, *rest),
        ((*kind, "add-iam-policy-binding", what, f"--member={member}", f"--role={role}", condition, *rest),),
        lambda found: any(
            one["role"] == role and member in one["members"] and "condition" not in one
            for one in found.get("bindings", ())
        ),
    )


def _budget(settings: Settings, usd: float, billing: str) -> Step:
    name = f"training in {settings.project}, {usd:.2f}"
    where = f"--billing-account={billing}"
    rules = ("--threshold-rule=percent=0.5", "--threshold-rule=percent=1.0")
    create = ("billing", "budgets", "create", where, f"--display-name={name}", f"--budget-amount={usd:.2f}USD")
    return Step(
        f"a mail at half and at all of {usd:.2f} USD a month",
        ("billing", "budgets", "list", where),
        ((*create, f"--filter-projects=projects/{settings.project}", *rules),),
        lambda found: any(one.get("displayName") == name for one in found),
    )


def look(step: Step) -> tuple[bool, tuple[str, ...]]:
    """Whether it is there, and what of it is not as the step would make it.

    Raises:
        FaultError: gcloud cannot look.
    """
    code, answer, said = _gcloud(*step.looks, JSON)
    if code == 0:
        found = json.loads(answer or "null")
        return bool(step.done(found)), tuple(step.differs(found))
    if _is_absent(said):
        return False, ()
    raise FaultError(f"{step.title}: cannot be looked at: {said}; the line was: {shown(step.looks)}")


def quota_infos(project: str) -> list[Resource]:
    """What the project may use of Vertex AI, each quota with its regions; nothing where that may not be seen."""
    said = ask("beta", "quotas", "info", "list", "--service=aiplatform.googleapis.com", f"--project={project}", JSON)
    return list(json.loads(said or "[]"))


def take(line: Line) -> None:
    """Raises FaultError where gcloud refuses."""
    code, said = 1, ""
    for seconds in PAUSES:
        time.sleep(seconds)
        code, _, said = _gcloud(*line, "--quiet")
        if not (code and _is_absent(said)):
            break
    if code:
        raise FaultError(f"{said}; the line was: {shown(line)}")


def _is_absent(said: str) -> bool:
    """Whether gcloud knows nothing of what it was asked for, or its service is not switched on yet."""
    return bool(ABSENT.search(said) or DISABLED.search(said))


def ask(*line: str) -> str:
    """What gcloud says to a line, "" where it fails."""
    code, answer, _ = _gcloud(*line)
    return answer.strip() if code == 0 else ""


def gcloud(otherwise: str = "") -> str:
    """The program; raises a FaultError where it is not, whose cure ends with what one can do without it."""
    if program := shutil.which("gcloud"):
        return program
    raise FaultError(f"gcloud is not here; install it: https://cloud.google.com/sdk/docs/install{otherwise}")


def shown(line: Sequence[str]) -> str:
    return shlex.join(("gcloud", *line))


def _gcloud(*line: str) -> tuple[int, str, str]:
    """Exit code, answer, and the last thing that was said of a fault."""
    program = gcloud("; --dry-run prints what it would be asked")
    try:
        done = subprocess.run(
            (program, *line), capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise FaultError(f"no answer within {SECONDS:g} s; the line was: {shown(line)}") from None
    said = " ".join(done.stderr.split()).rpartition("ERROR: ")[2]
    return done.returncode, done.stdout, said or f"gcloud ended with exit code {done.returncode}"
