"""Region, output folder, and the names by which a job refers to other resources, in the forms of the API."""

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

REGION = "region"  # the one place that is not in the job file
REGION_NAME = re.compile("[a-z]+-[a-z]+[0-9]+|us|eu")  # the last two since google-cloud-aiplatform 1.163 and 2.7
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
    """The job's output folder, in one spelling; "" if it names none."""
    return _prefix(job).rstrip("/")


def folder(job: Job, context: RuleContext) -> str:
    """The output folder to propose for a job."""
    return f"gs://{context.settings.bucket or 'BUCKET'}/{job.name}"


@rule("region-name", "error", "documented", "locations")
def region_named(job: Job, context: RuleContext) -> Findings:
    """The region of the settings is a region, or us or eu, not a zone.
    Otherwise: There is no such service to send the job to."""
    region = context.settings.region
    if region and not REGION_NAME.fullmatch(region):
        fault = f'"{region}", from {context.settings.origin(REGION)}, is no region of Google Cloud'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-words", "warning", "inferred", "locations")
def region_spelled(job: Job, context: RuleContext) -> Findings:
    """The region's name is made of a continent and a direction, as those of all regions are.
    Otherwise: There may be no such service to send the job to; that jobs run in us or eu is not verified."""
    region = context.settings.region
    if REGION_NAME.fullmatch(region) and not WORDS.fullmatch(region):
        several = "holds several regions, which the SDK accepts since July 2026; that jobs run there is not verified"
        fault = "is no region that is known here" if "-" in region else several
        fault = f'"{region}", from {context.settings.origin(REGION)}, {fault}'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-accelerator", "error", "documented", "locations")
def region_offers(job: Job, context: RuleContext) -> Findings:
    """The region offers the accelerators for training."""
    region, regions = context.settings.region, context.catalog.regions
    is_one = WORDS.fullmatch(region)  # the rules above report others
    for pool, machine in known(context, job.pools if is_one else ()):
        kind = pool.accelerator or machine.tpu
        there = [name for name, kinds in regions.items() if kind in kinds]
        if there and region not in there:
            cure = f"choose a region that does, in {context.settings.origin(REGION)}: {', '.join(there)}"
            yield Finding(pool.at("machineSpec"), f"{region} offers no {kind} for training", cure)


@rule("output-missing", "warning", "documented", "api-types")
def output_named(job: Job, context: RuleContext) -> Findings:
    """A job has an output folder; without one the service names none to the trainer.
    Otherwise: The job runs, and its checkpoints, model and logs are gone with its machines."""
    if not _prefix(job) and job.strategy != "SPOT":  # `spot-output` says more
        fault = "is missing, so neither checkpoints nor the model are kept"
        yield Finding(OUTPUT, fault, f"set it to {folder(job, context)}")


@rule("output-folder", "error", "documented", "api-types", "vertex_launch/job/addresses.py")
def output_in_a_bucket(job: Job, context: RuleContext) -> Findings:
    """The output folder is an address in Cloud Storage, gs://BUCKET/FOLDER, and stays one where buckets are mounted."""
    if _prefix(job) and (found := folder_fault(_prefix(job), OUTPUT)):
        yield replace(found, cure=f"set it to {folder(job, context)}")


@rule("output-shared", "warning", "documented", "api-types", "trainer")
def output_of_its_own(job: Job, context: RuleContext) -> Findings:
    """No two jobs that are checked together have the same output folder.
    Otherwise: One job resumes from the checkpoints of the other, or both write over each other's."""
    if other := context.project.outputs.get(output(job)):
        fault = f"is the folder of {other}, too, so the jobs share their checkpoints"
        yield Finding(OUTPUT, fault, "give each job a folder of its own")


@rule("output-in-use", "warning", "documented", "api-types", "trainer")
def output_free(job: Job, context: RuleContext) -> Findings:
    """No job of the local Vertex writes now to the folder that stands for the output folder.
    Otherwise: The second job ends at once, with the name of the first."""
    if context.project.buckets and _prefix(job) and not folder_fault(_prefix(job), OUTPUT):
        yield from lease.in_use(context.project.buckets / _prefix(job).removeprefix("gs://"))


@rule("gcs-mount", "warning", "uncertain", "gcs-mount")
def buckets_mounted(job: Job, context: RuleContext) -> Findings:
    """A program on machines with H200 or B200 GPUs doesn't rely on /gcs, where Vertex AI mounts buckets.
    Otherwise: By a report of 2026-01-29, which is still open, /gcs may be absent there: the program finds no file."""
    for pool, machine in known(context, job.training_pools):
        texts = [*(word for _, word in words(pool, context)), *(one.value for one in pool.env)]
        reads = runs_trainer(pool, context) or any("/gcs/" in text for text in texts)
        if reads and {"NVIDIA_H200_141GB", "NVIDIA_B200"} & machine.gpus.keys():
            fault = f"/gcs may be absent on {machine.name}, by a report of 2026-01-29 (uncertain)"
            yield Finding(pool.at("machineSpec.machineType"), fault, "try one machine first, for some minutes")


@rule("bucket-differs", "warning", "documented", "settings")
def bucket_ours(job: Job, context: RuleContext) -> Findings:
    """The output folder is in the bucket of the settings.
    Otherwise: The job writes to a bucket that may be somebody else's, or in another region."""
    prefix, bucket, origin = _prefix(job), context.settings.bucket, context.settings.origin("bucket")
    if prefix and bucket and not folder_fault(prefix, OUTPUT) and not f"{prefix}/".startswith(f"gs://{bucket}/"):
        fault = f'"{prefix}" is not in the bucket that {origin} names'
        yield Finding(OUTPUT, fault, f"begin with gs://{bucket}/ here, or change the bucket in {origin}")


@rule("tensorboard-account", "error", "documented", "tensorboard")
def tensorboard_has_account(job: Job, context: RuleContext) -> Findings:
    """A job with a TensorBoard names the service account that writes to it."""
    if job.spec.tensorboard and not (job.spec.service_account or context.settings.service_account):
        yield Finding("tensorboard", "needs a service account, and none is named", "add serviceAccount to the job")


@rule("tensorboard-name", "error", "documented", "api-types")
def tensorboard_named(job: Job, context: RuleContext) -> Findings:
    """A TensorBoard is named in full, projects/PROJECT/locations/REGION/tensorboards/ID."""
    if job.spec.tensorboard and not TENSORBOARD.fullmatch(job.spec.tensorboard):
        project, region = context.settings.project or "PROJECT", context.settings.region or "REGION"
        cure = f"write projects/{project}/locations/{region}/tensorboards/ID"
        yield Finding("tensorboard", f'"{job.spec.tensorboard}" is not the whole name of one', cure)


@rule("tensorboard-region", "error", "documented", "tensorboard")
def tensorboard_near(job: Job, context: RuleContext) -> Findings:
    """A TensorBoard is in the region of its job."""
    name, region = TENSORBOARD.fullmatch(job.spec.tensorboard), context.settings.region
    if name and region and name[1] != region:
        yield Finding("tensorboard", f"is in {name[1]}, and the job runs in {region}", f"use one in {region}")


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
    Otherwise: Vertex AI may refuse the job, or keeps the artifacts where it would keep them anyway."""
    place, name = "protectedArtifactLocationId", job.spec.protected_artifact_location_id
    if name and not WORDS.fullmatch(name):
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


def key_name_findings(key: str) -> Findings:
    """Yield whether a key of Cloud KMS is not named in full."""
    if not _has_form(key, KEY):
        yield Finding("encryptionSpec.kmsKeyName", f'"{key}" is not the whole name of a key', f"write {KEY}")


def key_region_findings(key: str, region: str, what: str) -> Findings:
    """Yield whether a key of Cloud KMS, named in full, is in another region than what it encrypts."""
    if region and _has_form(key, KEY) and f"/locations/{region}/" not in key:
        fault = f"is in {key.split('/')[3]}, and the {what} is in {region}"
        yield Finding("encryptionSpec.kmsKeyName", fault, f"use one in {region}")
