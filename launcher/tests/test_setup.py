"""`setup`: what a project needs once. A program in gcloud's place remembers what it is told; the proof has gcloud."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from launcher.tests.running import DEADLINE, SOURCE, write_program
from launcher.tests.servers import Replying, serving
from vertex_launch.cloud.setup import changed, renamed, steps
from vertex_launch.errors import FaultError
from vertex_launch.settings import Settings

SECONDS = 1200  # gcloud takes one or two for each of some thirty lines; others may need the machine, too
OLD = """# Where the jobs run.
project = "my-project" # its ID
region = "us-central1"
bucket = "my-project-training"
image = "us-central1-docker.pkg.dev/my-project/training/trainer:1"
service_account = ""
[commands]
"us-central1-docker.pkg.dev/my-project/training/trainer:1" = ["python"]
"""
JOB = """# a comment
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: us-central1-docker.pkg.dev/my-project/training/trainer:1-cpu} # ours
baseOutputDirectory: {outputUriPrefix: gs://my-project-training/run}
"""
METRIC = "aiplatform.googleapis.com/custom_model_training_cpus"
# A step is there once the line that makes it was told.
GCLOUD = """
import json, os, pathlib, sys
words = [word for word in sys.argv[1:] if not word.startswith("--format") and word != "--quiet"]
told = pathlib.Path(os.environ["TOLD"])
lines = told.read_text().splitlines() if told.exists() else []
line = " ".join(words)
flags = [word for word in words if word.startswith("--project=")]
def there(begins): return any(one.startswith(begins) and all(flag in one.split() for flag in flags) for one in lines)
if line == "config get account":
    print(os.environ.get("ACCOUNT", ""))
elif line.startswith("billing projects describe"):
    print("billingAccounts/0-1-2")
elif line.startswith("beta quotas info list"):
    print(os.environ.get("QUOTAS") or sys.exit("ERROR: (gcloud) PERMISSION_DENIED"))
elif line.startswith("services list"):
    on = next((one.split()[2:-1] for one in lines if one.startswith("services enable") and one.endswith(flags[0])), [])
    print(json.dumps([dict(config=dict(name=name)) for name in on]))
elif not there("services enable") and words[0] in ("artifacts", "iam"):
    sys.exit("ERROR: (gcloud) PERMISSION_DENIED: It has not been used in project 740412345678 before or is off.")
elif "get-iam-policy" in words:
    kind = line.partition(" get-iam-policy ")[0]
    what = words[words.index("get-iam-policy") + 1]
    added = [one.split() for one in lines if one.startswith(f"{kind} add-iam-policy-binding {what} ")]
    value = lambda words, name: next(word.partition("=")[2] for word in words if word.startswith(f"--{name}="))
    print(json.dumps(dict(bindings=[dict(role=value(one, "role"), members=[value(one, "member")]) for one in added])))
elif "describe" in words:
    made = line.replace(" describe ", " create ").split(" --")[0].split("@")[0]
    if not there(made):
        sys.exit("ERROR: (gcloud.describe) NOT_FOUND: it does not exist")
    kept = there(line.replace(" describe ", " set-cleanup-policies ").split(" --")[0])
    print(json.dumps(json.loads(os.environ.get("BUCKET", "{}")) | dict(name=made, cleanupPolicies=kept or None)))
elif "list" in words:
    made = [one for one in lines if one.startswith("billing budgets create")]
    names = [one.partition("--display-name=")[2].partition(" --")[0] for one in made]
    print(json.dumps([dict(displayName=name) for name in names]))
elif os.environ.get("REFUSES", "never") in line:
    sys.exit("ERROR: (gcloud) PERMISSION_DENIED: 740412345678: ask somebody else")
else:
    told.write_text("\\n".join([*lines, line]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vertex.toml").write_text(OLD)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/run.yaml").write_text(JOB)
    write_program(tmp_path / "bin/gcloud", GCLOUD)
    return tmp_path


def setup(
    folder: Path, *words: str, given: str = "", seconds: float = 5 * DEADLINE, **environ: str
) -> "subprocess.CompletedProcess[str]":
    paths = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    told = {"TOLD": str(folder / "told"), "ACCOUNT": "ada@example.com", "PYTHONPATH": str(SOURCE), "PATH": paths}
    command = [sys.executable, "-m", "vertex_launch", "setup", *words]
    ours = os.environ | told | environ
    return subprocess.run(command, cwd=folder, env=ours, input=given, capture_output=True, text=True, timeout=seconds)


def told(folder: Path) -> list[str]:
    return (folder / "told").read_text().splitlines() if (folder / "told").exists() else []


def test_dry_run_prints_the_lines_and_asks_nobody(folder: Path) -> None:
    done = setup(folder, "--dry-run", PATH="/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# bucket gs://my-project-training\ngcloud storage buckets create gs://my-project-training" in done.stdout
    assert "--member=serviceAccount:vertex-trainer@my-project.iam.gserviceaccount.com" in done.stdout
    assert "budgets" not in done.stdout
    assert "gcloud billing budgets create --billing-account=" in setup(folder, "--dry-run", "--budget", "100").stdout
    assert (folder / "vertex.toml").read_text() == OLD


def test_the_lines_of_a_dry_run_can_be_pasted_where_a_folder_has_a_space(folder: Path) -> None:
    shown = setup(folder, "--dry-run", VERTEX_STATE_DIR="my state").stdout.splitlines()[1]
    subprocess.run(["sh", "-c", shown], cwd=folder, check=True)
    assert json.loads((folder / "my state/clean-up.json").read_text())[0]["action"] == {"type": "Keep"}


def test_it_asks_once_takes_what_is_missing_and_then_finds_all_there(folder: Path) -> None:
    first = setup(folder, "--budget", "50", given="y\n")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("missing  ") == 12
    assert first.stdout.count("Run the 12 missing steps?") == 1
    assert len(told(folder)) == 12
    assert "written  vertex.toml" in first.stdout
    assert (
        'service_account = "vertex-trainer@my-project.iam.gserviceaccount.com"' in (folder / "vertex.toml").read_text()
    )
    assert json.loads((folder / ".vertex/clean-up.json").read_text())[0]["action"] == {"type": "Keep"}
    before = told(folder)
    again = setup(folder)
    assert again.returncode == 0, again.stderr
    assert (again.stdout.count("done     "), again.stdout.count("missing")) == (11, 0)
    assert "differs" not in again.stdout
    assert "written" not in again.stdout
    assert told(folder) == before


def test_without_an_answer_nothing_is_made(folder: Path) -> None:
    done = setup(folder, given="n\n")
    assert (done.returncode, told(folder), (folder / "vertex.toml").read_text()) == (1, [], OLD)


def test_another_project_and_bucket_go_into_vertex_toml_and_the_job_files(folder: Path) -> None:
    done = setup(folder, "--yes", "--project", "p2", "--region", "europe-west4", "--bucket", "b2", "--budget", "1")
    assert done.returncode == 0, done.stderr
    assert (folder / "vertex.toml").read_text() == OLD.replace('"my-project-training"', '"b2"').replace(
        '"my-project"', '"p2"'
    ).replace('= "us-central1"', '= "europe-west4"').replace(
        "us-central1-docker.pkg.dev/my-project/", "europe-west4-docker.pkg.dev/p2/"
    ).replace('service_account = ""', 'service_account = "vertex-trainer@p2.iam.gserviceaccount.com"')
    image = "europe-west4-docker.pkg.dev/p2/training/trainer:1-cpu"
    expected = JOB.replace("us-central1-docker.pkg.dev/my-project/training/trainer:1-cpu", image)
    assert (folder / "jobs/run.yaml").read_text() == expected.replace("my-project-training", "b2")
    assert "services enable" in told(folder)[0]
    assert told(folder)[0].endswith("--project=p2")


def test_a_line_that_is_refused_ends_it_and_the_next_time_goes_on_there(folder: Path) -> None:
    done = setup(folder, "--yes", REFUSES="service-accounts create")
    assert done.returncode == 1
    assert "740412345678: ask somebody else; the command was: gcloud iam service-accounts create" in done.stderr
    assert (folder / "vertex.toml").read_text() == OLD
    again = setup(folder, "--yes")
    assert (again.returncode, again.stdout.count("done     ")) == (0, 4)


def test_a_clean_up_that_was_refused_is_missing_the_next_time_and_is_one_step(folder: Path) -> None:
    assert setup(folder, "--yes").returncode == 0
    lines = told(folder)
    (folder / "told").write_text("\n".join(line for line in lines if "set-cleanup-policies" not in line))
    again = setup(folder, given="y\n")
    assert again.returncode == 0, again.stderr
    assert "Run the 1 missing step?" in again.stdout
    assert sorted(told(folder)) == sorted(lines)


def test_a_bucket_that_is_not_as_setup_makes_one_stays_so_and_is_told(folder: Path) -> None:
    assert setup(folder, "--yes").returncode == 0
    before = told(folder)
    found = {"location": "EUROPE-WEST4", "location_type": "region", "public_access_prevention": "inherited"}
    done = setup(folder, BUCKET=json.dumps(found))
    assert [line for line in done.stdout.splitlines() if line.startswith("differs")] == [
        "differs  the bucket is in europe-west4, but the machines are in us-central1; transfers are slow and billed;"
        " use a bucket in us-central1 with --bucket",
        "differs  the bucket can be made public; to prevent public access, run:"
        " gcloud storage buckets update gs://my-project-training --public-access-prevention",
    ]
    assert told(folder) == before
    near = {"location": "US", "location_type": "multi-region", "public_access_prevention": "enforced"}
    assert "differs" not in setup(folder, BUCKET=json.dumps(near)).stdout


def test_a_budget_comes_last_and_another_one_is_another_step(folder: Path) -> None:
    done = setup(folder, "--yes", "--budget", "50", REFUSES="budgets create")
    assert done.returncode == 1
    assert "vertex-trainer@my-project" in (folder / "vertex.toml").read_text()
    assert setup(folder, "--yes", "--budget", "50").returncode == 0
    more = setup(folder, "--yes", "--budget", "1234567")
    assert "missing  email alerts at 50% and 100% of 1234567.00 USD per month" in more.stdout
    assert any("--budget-amount=1234567.00USD" in line for line in told(folder))


def quota_info(limit: str) -> dict[str, Any]:
    """What Cloud Quotas says of the vCPUs."""
    here = {"details": {"value": limit}, "applicableLocations": ["us-central1"]}
    return {"metric": METRIC, "quotaId": "CPUs", "dimensionsInfos": [here]}


def test_at_last_each_quota_stands_beside_the_job_that_needs_most_of_it(folder: Path) -> None:
    (folder / "jobs/more.yaml").write_text(JOB.replace("n1-standard-4", "n1-standard-16"))
    (folder / "jobs/broken.yaml").write_text("no job")
    unseen = setup(folder, "--yes")
    assert unseen.returncode == 0, unseen.stderr
    assert unseen.stdout.splitlines()[-1] == "written  vertex.toml"
    enough, short = (setup(folder, QUOTAS=json.dumps([quota_info(limit)])).stdout.splitlines() for limit in ("16", "4"))
    assert enough[-1] == f"enough   {METRIC} in us-central1 is 16, and jobs/more.yaml needs 16"
    assert short[-1].startswith(f"short    {METRIC} in us-central1 is 4, and jobs/more.yaml needs 16; request more: ")
    assert short[-1].endswith("--preferred-value=16 --dimensions=region=us-central1")


def test_a_second_project_gets_an_account_of_its_own(folder: Path) -> None:
    assert setup(folder, "--yes").returncode == 0
    assert setup(folder, "--yes", "--project", "p2").returncode == 0
    text = (folder / "vertex.toml").read_text()
    assert 'service_account = "vertex-trainer@p2.iam.gserviceaccount.com"' in text
    assert any(line.startswith("iam service-accounts create vertex-trainer ") and "p2" in line for line in told(folder))


def test_keys_are_found_however_they_are_spaced_and_comments_stay(tmp_path: Path) -> None:
    text = """# Example: region = "us-central1"
project   = 'p'
region = "us-central1"
bucket = "b" # not b2
image = "us-central1-docker.pkg.dev/p/r/i:1"
[env]
region = "us-central1"
"""
    (tmp_path / "vertex.toml").write_text(text)
    old = Settings("p", "us-central1", "b", "us-central1-docker.pkg.dev/p/r/i:1")
    new = replace(old, project="q", region="us-east1", bucket="c")
    job = "{uri: gs://b, near: gs://b2/x, i: us-central1-docker.pkg.dev/p/r/i:10}"
    (tmp_path / "run.yaml").write_text(job)
    found = dict(changed(tmp_path / "vertex.toml", tmp_path, old, renamed(old, new)))
    changes = {
        "project   = 'p'\nregion = \"us-central1\"": 'project = "q"\nregion = "us-east1"',
        'bucket = "b"': 'bucket = "c"',
        "us-central1-docker.pkg.dev/p/": "us-east1-docker.pkg.dev/q/",
    }
    expected = text
    for before, after in changes.items():
        expected = expected.replace(before, after)
    assert found[tmp_path / "vertex.toml"] == f'service_account = ""\n{expected}'
    assert found[tmp_path / "run.yaml"] == job.replace("gs://b,", "gs://c,")


def test_a_file_that_cannot_be_changed_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text('project = """p"""\n')
    old = Settings("p", "us-central1", "b", "i")
    with pytest.raises(FaultError, match=r"vertex.toml: this file can't be changed automatically; set project"):
        [*changed(tmp_path / "vertex.toml", tmp_path, old, replace(old, project="q"))]


def test_who_is_not_logged_in_is_told_so(folder: Path) -> None:
    done = setup(folder, ACCOUNT="")
    assert (done.returncode, done.stderr) == (
        1,
        "gcloud: no account is logged in; log in with: gcloud auth login --update-adc\n",
    )


def test_without_gcloud_it_says_where_to_get_it(folder: Path) -> None:
    done = setup(folder, PATH=str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "gcloud isn't installed; install it: https://cloud.google.com/sdk/docs/install; to print"
    )


def test_an_image_of_another_registry_is_refused() -> None:
    with pytest.raises(FaultError, match=r"image: mine:1 isn't in Artifact Registry; write REGION-docker\.pkg\.dev/"):
        [*steps(Settings("p", "us-central1", "b", "mine:1"), "user:ada", Path("policy"))]


@pytest.mark.parametrize(
    ("image", "project"), [("p/r/i:1", "p"), ("p/r/team/i:1", "p"), ("example.com/p/r/i:1", "example.com:p")]
)
def test_the_repository_is_the_one_of_the_image_however_deep_its_name_is(image: str, project: str) -> None:
    settings = Settings("p", "us-central1", "b", f"us-central1-docker.pkg.dev/{image}")
    both = [one for one in steps(settings, "user:ada", Path("policy")) if one.title.startswith("repository r ")]
    assert [f"--project={project}" in one.looks for one in both] == [True, True]


def test_an_account_of_another_project_is_not_made() -> None:
    ours = Settings(
        "p", "us-central1", "b", "us-central1-docker.pkg.dev/p/r/i:1", "trainer@elsewhere.iam.gserviceaccount.com"
    )
    titles = [step.title for step in steps(ours, "user:ada", Path("policy"))]
    assert not [title for title in titles if title.startswith("account ")]
    assert "you can act as the service account: roles/iam.serviceAccountUser" in titles


def test_the_account_of_a_domains_project_has_the_form_that_iam_gives_it() -> None:
    old = Settings("p", "us-central1", "b", "us-central1-docker.pkg.dev/p/r/i:1", "t@p.iam.gserviceaccount.com")
    new = renamed(old, replace(old, project="example.com:q"))
    assert new.service_account == "t@q.example.com.iam.gserviceaccount.com"
    lines = [step.act for step in steps(replace(new, service_account=""), "user:ada", Path("p"))]
    (made,) = (line for line in lines if line[:3] == ("iam", "service-accounts", "create"))
    assert (made[3], made[-1]) == ("vertex-trainer", "--project=example.com:q")
    assert renamed(new, old).service_account == old.service_account


class Google(ThreadingHTTPServer):
    """The services that gcloud asks, as far as the steps go: what was made is there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.made: dict[str, Any] = {}  # by its path
        self.policies: dict[str, Any] = {}
        self.on: list[str] = []  # services

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        """Status and JSON."""
        path = path.replace("/projects/-/", "/projects/my-project/")
        if path.endswith(("/services", "/quotaInfos")):
            services = [{"config": {"name": name}, "state": "ENABLED"} for name in self.on]
            return 200, {"services": services, "quotaInfos": [quota_info("8")]}
        if path.endswith(":batchEnable"):
            self.on += body["serviceIds"]
            return 200, {"name": "operations/1", "done": True, "response": {}}
        if "/operations/" in path:
            return 200, {"name": path.removeprefix("/v1/"), "done": True, "response": {}}
        if path.endswith(("etIamPolicy", "/iam")):
            return 200, self.policy(path, body)
        if method == "POST":
            id = query.partition("repositoryId=")[2].partition("&")[0] or body.get("accountId") or body["name"]
            email = {"email": f"{id}@my-project.iam.gserviceaccount.com"} if "accountId" in body else {}
            there = f"{path}/{email.get('email', id)}"
            kind = {"locationType": "region"} if "location" in body else {}
            self.made[there] = {**body, "name": there.partition("/v1/")[2] or id, **email, **kind}
            made = {"name": "projects/my-project/locations/us-central1/operations/1", "done": True}
            return 200, made if "repositoryId" in query else self.made[there]
        if method == "PATCH" and path in self.made:
            self.made[path] |= body
        return (200, self.made[path]) if path in self.made else (404, {"error": {"code": 404, "message": "not found"}})

    def policy(self, path: str, body: Any) -> Any:
        """Of the resource, after it was set."""
        resource = path.removesuffix("/iam").rpartition(":")[0] if ":" in path else path
        if "bindings" in (given := (body or {}).get("policy", body) or {}):
            self.policies[resource] = given
        return {"etag": "BwU=", "version": 1, **self.policies.get(resource, {})}


class Answer(Replying):
    """One request."""

    server: Google

    def respond(self) -> None:
        body, url = json.loads(self.body() or b"null"), urlsplit(self.path)
        self.reply(*self.server.answer(self.command, url.path, url.query, body))


@pytest.fixture
def google() -> Iterator[Google]:
    with serving(server := Google()):
        yield server


@pytest.mark.proof
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_itself_takes_every_line(folder: Path, google: Google) -> None:
    shutil.rmtree(folder / "bin")
    address = f"http://127.0.0.1:{google.server_port}/"
    services = ("SERVICEUSAGE", "STORAGE", "ARTIFACTREGISTRY", "IAM", "CLOUDRESOURCEMANAGER", "CLOUDQUOTAS")
    environ = {
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": address for name in services},
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{address}storage/v1/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_ACCOUNT": "ada@example.com",
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
    first = setup(folder, "--yes", seconds=SECONDS, **environ)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("missing  ") == 11
    again = setup(folder, seconds=SECONDS, **environ)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (again.stdout.count("done     "), again.stdout.count("missing")) == (11, 0)
    assert "differs" not in again.stdout
    assert again.stdout.splitlines()[-1] == f"enough   {METRIC} in us-central1 is 8, and jobs/run.yaml needs 4"
    (bucket,) = (one for path, one in google.made.items() if "/b/" in path)
    bucket |= {"location": "EUROPE-WEST4", "iamConfiguration": {"publicAccessPrevention": "inherited"}}
    other = setup(folder, seconds=SECONDS, **environ)
    assert "differs  the bucket is in europe-west4, but the machines are in us-central1" in other.stdout
    assert other.stdout.count("differs  ") == 2
    members = [one["members"] for policy in google.policies.values() for one in policy["bindings"]]
    trainer = "serviceAccount:vertex-trainer@my-project.iam.gserviceaccount.com"
    assert sorted(members) == [[trainer]] * 2 + [["user:ada@example.com"]] * 4
