"""Rules for a job's region, its output folder, and the names of other resources that it uses."""

import re
from collections.abc import Iterator
from dataclasses import replace

from vertex_launch.facts.aliases import region_cure
from vertex_launch.job import lease
from vertex_launch.job.addresses import folder_fault
from vertex_launch.job.spec import OUTPUT, Job, TuningJob
from vertex_launch.rules.containers import words
from vertex_launch.rules.machines import known
from vertex_launch.rules.rule import Finding, Findings, RuleContext, rule, rule_of_search
from vertex_launch.rules.training import runs_trainer

REGION = "region"  # the only place that isn't in the job file
REGION_NAME = re.compile("[a-z]+-[a-z]+[0-9]+|us|eu")  # us and eu since google-cloud-aiplatform 1.163 and 2.7
WORDS = re.compile(
    "(africa|asia|australia|europe|me|northamerica|southamerica|us)-(central|(north|south)?(east|west)?)[0-9]+"
)
TENSORBOARD = re.compile("projects/[^/]+/locations/([^/]+)/tensorboards/[^/]+")
AT = "projects/PROJECT/locations/REGION"
CONTEXT = f"{AT}/metadataStores/STORE/contexts"
NETWORK = "projects/NUMBER/global/networks/NETWORK"
KEY = f"{AT}/keyRings/RING/cryptoKeys/KEY"
ACCOUNT = re.compile(r"[^@\s/]+@[a-z0-9.-]+\.gserviceaccount\.com")
PERSISTENT = re.compile("[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def _prefix(job: Job) -> str:
    return job.spec.base_output_directory.output_uri_prefix


def output(job: Job) -> str:
    """Return the job's output folder without a trailing slash, or "" if the job doesn't specify one."""
    return _prefix(job).rstrip("/")


def folder(job: Job, context: RuleContext) -> str:
    """Return the output folder that findings suggest for a job."""
    return f"gs://{context.settings.bucket or 'BUCKET'}/{job.name}"


@rule("region-name", "error", "documented", "locations")
def region_named(job: Job, context: RuleContext) -> Findings:
    """The region in the settings must be a Google Cloud region or one of the multi-regions us and eu. A zone isn't a
    valid region.
    Otherwise: You can't submit the job, because Vertex AI doesn't have an endpoint for this region."""
    region = context.settings.region
    if region and not REGION_NAME.fullmatch(region):
        fault = f'"{region}" from {context.settings.origin(REGION)} isn\'t a Google Cloud region'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-words", "warning", "inferred", "locations")
def region_spelled(job: Job, context: RuleContext) -> Findings:
    """The region's name should consist of a continent, a direction, and a number, like the names of all known regions.
    Otherwise: Vertex AI might not have an endpoint for this region. Whether jobs can run in the multi-regions us and eu
    hasn't been verified."""
    region = context.settings.region
    if REGION_NAME.fullmatch(region) and not WORDS.fullmatch(region):
        several = "is a multi-region. The SDK has accepted us and eu since July 2026, but they might not run jobs"
        fault = "isn't a known region" if "-" in region else several
        fault = f'"{region}" from {context.settings.origin(REGION)} {fault}'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-accelerator", "error", "documented", "locations")
def region_offers(job: Job, context: RuleContext) -> Findings:
    """The region must offer the job's accelerators for training."""
    region, regions = context.settings.region, context.catalog.regions
    is_one = WORDS.fullmatch(region)  # the rules above report others
    for pool, machine in known(context, job.pools if is_one else ()):
        kind = pool.accelerator or machine.tpu
        there = [name for name, kinds in regions.items() if kind in kinds]
        if there and region not in there:
            cure = f"set one of these regions in {context.settings.origin(REGION)}: {', '.join(there)}"
            yield Finding(pool.at("machineSpec"), f"{region} doesn't offer {kind} for training", cure)


@rule("output-missing", "warning", "documented", "api-types")
def output_named(job: Job, context: RuleContext) -> Findings:
    """A job should specify an output folder. Vertex AI passes paths in this folder to the trainer.
    Otherwise: The job runs, but its checkpoints, model, and logs are lost when Vertex AI deletes its machines."""
    if not _prefix(job) and job.strategy != "SPOT":  # `spot-output` says more
        fault = "the job doesn't set an output folder, so the checkpoints and the model are lost"
        yield Finding(OUTPUT, fault, f"set it to {folder(job, context)}")


@rule("output-folder", "error", "documented", "api-types", "vertex_launch/job/addresses.py")
def output_in_a_bucket(job: Job, context: RuleContext) -> Findings:
    """The output folder must be a Cloud Storage URI such as gs://BUCKET/FOLDER, and a valid path in a mounted
    bucket."""
    if _prefix(job) and (found := folder_fault(_prefix(job), OUTPUT)):
        yield replace(found, cure=f"set it to {folder(job, context)}")


@rule("output-shared", "warning", "documented", "api-types", "trainer")
def output_of_its_own(job: Job, context: RuleContext) -> Findings:
    """Job files that you check together should specify different output folders.
    Otherwise: One job resumes from the other's checkpoints, or the jobs overwrite each other's checkpoints."""
    if other := context.project.outputs.get(output(job)):
        fault = f"{other} has the same output folder, so the jobs share their checkpoints"
        yield Finding(OUTPUT, fault, "give each job its own folder")


@rule("output-in-use", "warning", "documented", "api-types", "trainer")
def output_free(job: Job, context: RuleContext) -> Findings:
    """A job should not use an output folder that another job in the local Vertex is using.
    Otherwise: This job exits immediately with an error message that names the other job."""
    if context.project.buckets and _prefix(job) and not folder_fault(_prefix(job), OUTPUT):
        yield from lease.in_use(context.project.buckets / _prefix(job).removeprefix("gs://"))


@rule("gcs-mount", "warning", "uncertain", "gcs-mount")
def buckets_mounted(job: Job, context: RuleContext) -> Findings:
    """A program on machines with H200 or B200 GPUs should not rely on /gcs, the folder in which Vertex AI mounts
    buckets.
    Otherwise: The program might not find its files. According to an open issue of 2026-01-29, /gcs might be missing on
    these machines."""
    for pool, machine in known(context, job.training_pools):
        texts = [*(word for _, word in words(pool, context)), *(one.value for one in pool.env)]
        reads = runs_trainer(pool, context) or any("/gcs/" in text for text in texts)
        if reads and {"NVIDIA_H200_141GB", "NVIDIA_B200"} & machine.gpus.keys():
            fault = f"/gcs might be missing on {machine.name}, according to an unconfirmed report from 2026-01-29"
            yield Finding(pool.at("machineSpec.machineType"), fault, "to test /gcs, first run the job on one machine")


@rule("bucket-differs", "warning", "documented", "settings")
def bucket_ours(job: Job, context: RuleContext) -> Findings:
    """The output folder should be in the bucket that the settings specify.
    Otherwise: The job writes to a bucket that might belong to another team or be in another region."""
    prefix, bucket, origin = _prefix(job), context.settings.bucket, context.settings.origin("bucket")
    if prefix and bucket and not folder_fault(prefix, OUTPUT) and not f"{prefix}/".startswith(f"gs://{bucket}/"):
        fault = f'"{prefix}" isn\'t in the bucket that {origin} specifies'
        yield Finding(OUTPUT, fault, f"use a folder in gs://{bucket}/, or change the bucket in {origin}")


@rule("tensorboard-account", "error", "documented", "tensorboard")
def tensorboard_has_account(job: Job, context: RuleContext) -> Findings:
    """A job with a TensorBoard instance must specify the service account that writes to the instance."""
    if job.spec.tensorboard and not (job.spec.service_account or context.settings.service_account):
        yield Finding(
            "tensorboard",
            "TensorBoard requires a service account, but the job doesn't set one",
            "add serviceAccount to the job",
        )


@rule("tensorboard-name", "error", "documented", "api-types")
def tensorboard_named(job: Job, context: RuleContext) -> Findings:
    """A job must specify the full resource name of its TensorBoard instance:
    projects/PROJECT/locations/REGION/tensorboards/ID."""
    if job.spec.tensorboard and not TENSORBOARD.fullmatch(job.spec.tensorboard):
        project, region = context.settings.project or "PROJECT", context.settings.region or "REGION"
        cure = f"write projects/{project}/locations/{region}/tensorboards/ID"
        yield Finding("tensorboard", f'"{job.spec.tensorboard}" isn\'t a full resource name', cure)


@rule("tensorboard-region", "error", "documented", "tensorboard")
def tensorboard_near(job: Job, context: RuleContext) -> Findings:
    """A TensorBoard instance must be in the same region as its job."""
    name, region = TENSORBOARD.fullmatch(job.spec.tensorboard), context.settings.region
    if name and region and name[1] != region:
        yield Finding(
            "tensorboard",
            f"the TensorBoard instance is in {name[1]}, but the job runs in {region}",
            f"use a TensorBoard in {region}",
        )


def _named(job: Job) -> Iterator[tuple[str, str, str]]:
    yield "network", NETWORK, job.spec.network
    yield "experiment", f"{CONTEXT}/EXPERIMENT", job.spec.experiment
    yield "experimentRun", f"{CONTEXT}/EXPERIMENT-RUN", job.spec.experiment_run
    for index, model in enumerate(job.spec.models):
        yield f"models[{index}]", f"{AT}/models/MODEL", model


def _has_form(name: str, form: str) -> bool:
    pattern = re.sub("[A-Z]+", "[^/]+", re.sub("NUMBER", "[0-9]+", form))
    return re.fullmatch(pattern, name) is not None


@rule("resource-name", "error", "documented", "api-types")
def named_in_full(job: Job, context: RuleContext) -> Findings:
    """A job must specify the full resource names of networks, experiments, runs, and models. A network's name must
    contain the project number."""
    for place, form, name in _named(job):
        if name and not _has_form(name, form):
            counted = ", with the project number instead of the project ID" if "NUMBER" in form else ""
            yield Finding(place, f'"{name}" isn\'t a full resource name', f"write {form}{counted}")


@rule("account-name", "error", "documented", "service-account")
def account_named(job: Job, context: RuleContext) -> Findings:
    """A job must specify a service account by its email address, which ends in gserviceaccount.com."""
    account, project = job.spec.service_account, context.settings.project or "PROJECT"
    if account and not ACCOUNT.fullmatch(account):
        cure = f"write NAME@{project}.iam.gserviceaccount.com"
        yield Finding("serviceAccount", f'"{account}" isn\'t the email address of a service account', cure)


@rule("persistent-name", "error", "documented", "api-types")
def persistent_resource_named(job: Job, context: RuleContext) -> Findings:
    """A job must specify a persistent resource by its ID. The ID begins with a letter and consists of at most 63
    lowercase letters, digits, and hyphens."""
    name = job.spec.persistent_resource_id
    if name and not PERSISTENT.fullmatch(name):
        last = name.rstrip("/").rpartition("/")[2]
        cure = f"write {last}" if PERSISTENT.fullmatch(last) else "write the last segment of the resource's name"
        yield Finding("persistentResourceId", f'"{name}" isn\'t the ID of a persistent resource', cure)


@rule("artifact-location", "warning", "inferred", "api-types")
def artifacts_elsewhere(job: Job, context: RuleContext) -> Findings:
    """The location for protected artifacts should differ from the job's region.
    Otherwise: Vertex AI might reject the job or store the artifacts in the default location."""
    place, name = "protectedArtifactLocationId", job.spec.protected_artifact_location_id
    if name and not WORDS.fullmatch(name):
        yield Finding(place, f'"{name}" isn\'t a region', "write a region such as us-central1, or remove the field")
    elif name and name == context.settings.region:
        yield Finding(place, "the value is the job's own region", "remove the field")


@rule_of_search("key-name", "error", "documented", "api-types")
def key_named(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job must specify the full resource name of its encryption key."""
    if "encryption_spec" in job.spec:
        yield from key_name_findings(job.spec.encryption_spec.kms_key_name)


@rule_of_search("key-region", "error", "documented", "api-types")
def key_near(job: TuningJob, context: RuleContext) -> Findings:
    """A tuning job's encryption key must be in the job's own region."""
    yield from key_region_findings(job.spec.encryption_spec.kms_key_name, context.settings.region, "tuning job")


def key_name_findings(key: str) -> Findings:
    """Yield a finding if a Cloud KMS key's name isn't a full resource name."""
    if not _has_form(key, KEY):
        yield Finding("encryptionSpec.kmsKeyName", f'"{key}" isn\'t the full name of a key', f"write {KEY}")


def key_region_findings(key: str, region: str, what: str) -> Findings:
    """Yield a finding if a Cloud KMS key isn't in the same region as the resource that it encrypts."""
    if region and _has_form(key, KEY) and f"/locations/{region}/" not in key:
        fault = f"the key is in {key.split('/')[3]}, but the {what} is in {region}"
        yield Finding("encryptionSpec.kmsKeyName", fault, f"use a key in {region}")
