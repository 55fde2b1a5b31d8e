"""Creates a project's resources in Google Cloud before its first job, and updates the settings in the project's files.

Each setup step has two gcloud commands: the first looks for a resource, and the second creates it. The roles grant
least-privilege permissions.
Sources: Vertex AI, "Use a custom service account"; Artifact Registry, "Configure cleanup policies".
"""

import json
import re
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vertex_launch.cloud.refusals import DISABLED
from vertex_launch.errors import FaultError, read_text
from vertex_launch.settings import REQUIRED, Settings

APIS = (
    *("aiplatform", "artifactregistry", "cloudbuild", "cloudquotas"),
    *("cloudresourcemanager", "iam", "logging", "storage"),
)
BUDGET_APIS = ("billingbudgets", "cloudbilling")
ACCOUNT = "vertex-trainer"  # the account that jobs run as, unless vertex.toml specifies another one
SECONDS = 300.0  # timeout of a command; enabling services takes a minute
JSON = "--format=json"
ABSENT = re.compile(r"not.?found|\b404\b|does not exist", re.IGNORECASE)
PAUSES = (0.0, 10.0, 20.0, 40.0)  # seconds; a new resource isn't visible everywhere immediately
IMAGE = re.compile(
    r"(?P<host>(?P<location>[a-z0-9-]+)-docker\.pkg\.dev)"
    r"/(?P<project>([^/.]+(\.[^/.]+)+/)?[^/]+)/(?P<repository>[^/]+)/.+"  # a project may belong to a domain
)
CLEAN_UP = [
    {"name": "keep-some", "action": {"type": "Keep"}, "mostRecentVersions": {"keepCount": 30}},
    {"name": "delete-old", "action": {"type": "Delete"}, "condition": {"olderThan": "30d"}},
]
KEYS = (*REQUIRED, "service_account")  # of vertex.toml

Line = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A setup step: a resource that must exist, and the gcloud commands that look for it and create it."""

    title: str
    looks: Line  # the gcloud command that looks for it, with JSON output
    act: Line  # the gcloud command that creates it
    done: Callable[[Any], object] = bool  # whether the output shows that it exists
    differs: Callable[[Any], Iterator[str]] = lambda _: iter(())  # how it differs from what `act` would create


def steps(settings: Settings, you: str, policy: Path, budget: float = 0, billing: str = "") -> Iterator[Step]:
    """Yield all setup steps in order. Raises FaultError if the image isn't in Artifact Registry.

    `you` is the user who submits jobs, such as user:ada@example.com. `policy` is the path of the cleanup policy.
    `budget` is the monthly budget in USD, or 0 for no budget. `billing` is the ID of the billing account, or "" if it's
    unknown.
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
    """Yield the differences between an existing bucket and the one that `setup` would create.

    The existing bucket isn't changed.
    """
    location, bucket = str(answer.get("location", "")).lower(), f"gs://{settings.bucket}"
    if answer.get("location_type") == "region" and location != settings.region:
        place = f"the bucket is in {location}, but the machines are in {settings.region}; transfers are slow and billed"
        yield f"{place}; use a bucket in {settings.region} with --bucket"
    if answer.get("public_access_prevention", "enforced") != "enforced":
        cure = shown(("storage", "buckets", "update", bucket, "--public-access-prevention"))
        yield f"the bucket can be made public; to prevent public access, run: {cure}"


def _repository(image: str, policy: Path) -> Iterator[Step]:
    parts = IMAGE.fullmatch(image)
    if not parts:
        cure = "write REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG"
        raise FaultError(f"image: {image} isn't in Artifact Registry; {cure}")
    repository, project = parts["repository"], parts["project"].replace("/", ":")
    place = (f"--location={parts['location']}", f"--project={project}")
    group = ("artifacts", "repositories")
    title, looks = f"repository {repository}", (*group, "describe", repository, *place)
    make = (*group, "create", repository, "--repository-format=docker", *place)
    clean_up = (*group, "set-cleanup-policies", repository, f"--policy={policy}", "--no-dry-run", *place)
    yield Step(f"{title} for images", looks, make)
    yield Step(f"{title} deletes old images", looks, clean_up, lambda answer: answer.get("cleanupPolicies"))


def account(settings: Settings) -> str:
    """Return the service account that jobs run as."""
    return settings.service_account or f"{ACCOUNT}@{account_domain(settings.project)}"


def account_domain(project: str) -> str:
    """Return the domain of a project's service accounts.

    Example: the domain of project example.com:p is p.example.com.iam.gserviceaccount.com.
    """
    organization, _, id = project.rpartition(":")
    return f"{id}{organization and f'.{organization}'}.iam.gserviceaccount.com"


def _account(settings: Settings, you: str) -> Iterator[Step]:
    """Yield the steps that create the service account and grant roles to it and to the user."""
    who, project, bucket = account(settings), f"--project={settings.project}", f"gs://{settings.bucket}"
    name, _, domain = who.partition("@")
    member = f"serviceAccount:{who}"
    buckets, accounts, whole = ("storage", "buckets"), ("iam", "service-accounts"), ("projects",)
    if domain == account_domain(settings.project):
        make = (*accounts, "create", name, "--display-name=Runs training jobs", project)
        yield Step(f"account {who}", (*accounts, "describe", who, project), make)
    yield _binding("jobs can write to the bucket", buckets, bucket, member, "roles/storage.objectAdmin")
    yield _binding("jobs can write to the log", whole, settings.project, member, "roles/logging.logWriter")
    yield _binding("you can act as the service account", accounts, who, you, "roles/iam.serviceAccountUser", project)
    yield _binding("you can submit jobs", whole, settings.project, you, "roles/aiplatform.user")
    yield _binding("you can read job logs", whole, settings.project, you, "roles/logging.viewer")
    yield _binding("you can read job output", buckets, bucket, you, "roles/storage.objectViewer")


def _binding(title: str, kind: Line, resource: str, member: str, role: str, *flags: str) -> Step:
    def is_bound(policy: Any) -> bool:
        bindings = (entry for entry in policy.get("bindings", ()) if entry["role"] == role and "condition" not in entry)
        return any(member in entry["members"] for entry in bindings)

    who = (f"--member={member}", f"--role={role}", "--condition=None")  # required if other bindings have one
    give = (*kind, "add-iam-policy-binding", resource, *who, *flags)
    return Step(f"{title}: {role}", (*kind, "get-iam-policy", resource, *flags), give, is_bound)


def _budget(settings: Settings, usd: float, billing: str) -> Step:
    name = f"training in {settings.project}, {usd:.2f}"
    where = f"--billing-account={billing}"
    rules = ("--threshold-rule=percent=0.5", "--threshold-rule=percent=1.0")
    create = ("billing", "budgets", "create", where, f"--display-name={name}", f"--budget-amount={usd:.2f}USD")
    return Step(
        f"email alerts at 50% and 100% of {usd:.2f} USD per month",
        ("billing", "budgets", "list", where),
        (*create, f"--filter-projects=projects/{settings.project}", *rules),
        lambda budgets: any(budget.get("displayName") == name for budget in budgets),
    )


def look(step: Step) -> tuple[bool, tuple[str, ...]]:
    """Return whether a step is done, and how an existing resource differs from the one that `setup` would create.

    Raises FaultError if gcloud fails.
    """
    code, output, error = _gcloud(*step.looks, JSON)
    if code == 0:
        answer = json.loads(output or "null")
        return bool(step.done(answer)), tuple(step.differs(answer))
    if _is_absent(error):
        return False, ()
    raise FaultError(f"{step.title}: this step can't be checked: {error}; the command was: {shown(step.looks)}")


def take(line: Line) -> None:
    """Run a gcloud command. If a new resource isn't visible yet, retry. Raises FaultError if gcloud fails."""
    for seconds in PAUSES:
        time.sleep(seconds)
        code, _, error = _gcloud(*line, "--quiet")
        if not (code and _is_absent(error)):
            break
    if code:
        raise FaultError(f"{error}; the command was: {shown(line)}")


def _is_absent(error: str) -> bool:
    """Return whether an error means that the resource doesn't exist or that its service isn't enabled yet."""
    return bool(ABSENT.search(error) or DISABLED.search(error))


def ask(*line: str) -> str:
    """Return the output of a gcloud command. If the command fails, return ""."""
    code, answer, _ = _gcloud(*line)
    return answer.strip() if code == 0 else ""


def gcloud(otherwise: str = "") -> str:
    """Return the path of the gcloud executable.

    Raises FaultError if gcloud isn't installed. The error message ends with `otherwise`.
    """
    if program := shutil.which("gcloud"):
        return program
    raise FaultError(f"gcloud isn't installed; install it: https://cloud.google.com/sdk/docs/install{otherwise}")


def shown(line: Sequence[str]) -> str:
    return shlex.join(("gcloud", *line))


def _gcloud(*line: str) -> tuple[int, str, str]:
    program = gcloud("; to print the commands without running gcloud, add --dry-run")
    try:
        done = subprocess.run(
            (program, *line), capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise FaultError(f"gcloud didn't respond within {SECONDS:g} s; the command was: {shown(line)}") from None
    error = " ".join(done.stderr.split()).rpartition("ERROR: ")[2]
    return done.returncode, done.stdout, error or f"gcloud exited with code {done.returncode}"


def renamed(old: Settings, new: Settings) -> Settings:
    """Return the new settings, with the new project in the image name and in the service account."""
    before, after = (f"{version.region}-docker.pkg.dev/{version.project.replace(':', '/')}/" for version in (old, new))
    image, account = new.image, new.service_account
    if old.project and image.startswith(before):
        image = f"{after}{image.removeprefix(before)}"
    if old.project and account.endswith(home := f"@{account_domain(old.project)}"):
        account = f"{account.removesuffix(home)}@{account_domain(new.project)}"
    return replace(new, image=image, service_account=account)


def changed(path: Path, jobs: Path, old: Settings, new: Settings) -> Iterator[tuple[Path, str]]:
    """Yield the path and the new text of each file that must change. Comments and the order of lines are preserved.

    Raises FaultError before yielding any file if vertex.toml can't be changed.
    """
    before = {file: read_text(file) if file.exists() else "" for file in (path, *sorted(jobs.glob("*.yaml")))}
    after = {file: _job(text, old, new) for file, text in before.items()} | {path: _toml(path, before[path], old, new)}
    return ((file, after[file]) for file in before if after[file] != before[file])


def _toml(path: Path, text: str, old: Settings, new: Settings) -> str:
    wanted = {key: getattr(new, key) for key in KEYS}
    head, *tables = re.split(r"^(?=\s*\[)", text, maxsplit=1, flags=re.MULTILINE)
    for key, value in wanted.items():
        line, old_line = f"{key} = {json.dumps(value)}", rf"^{key}\s*=\s*(\"[^\"]*\"|'[^']*')"
        head, count = re.subn(old_line, line.replace("\\", r"\\"), head, count=1, flags=re.MULTILINE)
        head = head if count else f"{line}\n{head}"
    text = "".join((head, *tables))
    of_commands = re.compile(rf'^"{re.escape(old.image)}"(?=\s*=)', re.MULTILINE)
    text = of_commands.sub(lambda _: json.dumps(new.image), text)
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        read = {}
    if {key: read.get(key) for key in KEYS} != wanted:
        lines = ", ".join(f"{key} = {json.dumps(value)}" for key, value in wanted.items())
        raise FaultError(f"{path}: this file can't be changed automatically; set {lines}")
    return text


def _job(text: str, old: Settings, new: Settings) -> str:
    """Replace the image and the bucket in a job file. Longer names that start with the old name aren't changed."""
    if old.image:
        text = re.sub(rf"{re.escape(old.image)}(?![\w.])", lambda _: new.image, text)
    if old.bucket:
        text = re.sub(rf"(?<=gs://){re.escape(old.bucket)}(?![\w.-])", lambda _: new.bucket, text)
    return text
