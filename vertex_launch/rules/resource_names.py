"""Names by which a job refers to other resources of Google Cloud, in the forms that the API documents."""

import re
from collections.abc import Iterator

from vertex_launch.errors import Finding, Findings
from vertex_launch.rules.region_and_output import REGION_NAME
from vertex_launch.rules.rule import RuleContext, rule, rule_of_search
from vertex_launch.spec import Job, TuningJob

AT = "projects/PROJECT/locations/REGION"
CONTEXT = f"{AT}/metadataStores/STORE/contexts"
NETWORK = "projects/NUMBER/global/networks/NETWORK"
KEY = f"{AT}/keyRings/RING/cryptoKeys/KEY"
ACCOUNT = re.compile(r"[^@\s/]+@[a-z0-9.-]+\.gserviceaccount\.com")
PERSISTENT = re.compile("[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def _named(job: Job) -> Iterator[tuple[str, str, str]]:
    """Every name of a resource in a job: its place, its form, the name."""
    yield "network", NETWORK, job.spec.network
    yield "experiment", f"{CONTEXT}/EXPERIMENT", job.spec.experiment
    yield "experimentRun", f"{CONTEXT}/EXPERIMENT-RUN", job.spec.experiment_run
    for index, model in enumerate(job.spec.models):
        yield f"models[{index}]", f"{AT}/models/MODEL", model


def _has_form(name: str, form: str) -> bool:
    pattern = re.sub("[A-Z]+", "[^/]+", re.sub("NUMBER", "[0-9]+", form))
    return re.fullmatch(pattern, name) is not None


def key_name_findings(key: str) -> Findings:
    """Yield whether a key of Cloud KMS is not named in full."""
    if not _has_form(key, KEY):
        yield Finding("encryptionSpec.kmsKeyName", f'"{key}" is not the whole name of a key', f"write {KEY}")


def key_region_findings(key: str, region: str, what: str) -> Findings:
    """Yield whether a key of Cloud KMS, named in full, is in another region than what it encrypts."""
    if region and _has_form(key, KEY) and f"/locations/{region}/" not in key:
        fault = f"is in {key.split('/')[3]}, and the {what} is in {region}"
        yield Finding("encryptionSpec.kmsKeyName", fault, f"use one in {region}")


@rule("resource-name", "error", "documented", "api-types")
def named_in_full(job: Job, context: RuleContext) -> Findings:
    """A network, an experiment, its run and models are named in full; a network by its project's number."""
    for place, form, name in _named(job):
        if name and not _has_form(name, form):
            counted = ", with the number of the project, not its ID" if "NUMBER" in form else ""
            yield Finding(place, f'"{name}" is not the whole name of one', f"write {form}{counted}")


@rule("account-name", "error", "documented", "service-account")
def account_named(job: Job, context: RuleContext) -> Findings:
    """A service account is named by its e-mail address, which ends in gserviceaccount.com."""
    account, project = job.spec.service_account, context.settings.project or "PROJECT"
    if account and not ACCOUNT.fullmatch(account):
        cure = f"write NAME@{project}.iam.gserviceaccount.com"
        yield Finding("serviceAccount", f'"{account}" is not the address of a service account', cure)


@rule("persistent-name", "error", "documented", "api-types")
def persistent_resource_named(job: Job, context: RuleContext) -> Findings:
    """A persistent resource is named by its ID alone: a letter, then letters, digits and -, 63 at most, all small."""
    name = job.spec.persistent_resource_id
    if name and not PERSISTENT.fullmatch(name):
        last = name.rstrip("/").rpartition("/")[2]
        cure = f"write {last}" if PERSISTENT.fullmatch(last) else "write the last part of its name"
        yield Finding("persistentResourceId", f'"{name}" is not the ID of one', cure)


@rule("artifact-location", "warning", "inferred", "api-types")
def artifacts_elsewhere(job: Job, context: RuleContext) -> Findings:
    """A location for protected artifacts is a region, and another than the job's.

    Otherwise: Vertex AI may refuse the job, or keeps the artifacts where it would keep them anyway.
    """
    place, name = "protectedArtifactLocationId", job.spec.protected_artifact_location_id
    if name and not REGION_NAME.fullmatch(name):
        yield Finding(place, f'"{name}" is no region', "write one, such as us-central1, or remove it")
    elif name and name == context.settings.region:
        yield Finding(place, "is the region of the job itself", "remove it")


@rule_of_search("key-name", "error", "documented", "api-types")
def key_named(job: TuningJob, context: RuleContext) -> Findings:
    """A key that encrypts a search is named in full."""
    if "encryption_spec" in job.spec:
        yield from key_name_findings(job.spec.encryption_spec.kms_key_name)


@rule_of_search("key-region", "error", "documented", "api-types")
def key_near(job: TuningJob, context: RuleContext) -> Findings:
    """A key that encrypts a search is in the region of the search."""
    yield from key_region_findings(job.spec.encryption_spec.kms_key_name, context.settings.region, "search")
