"""Region, output folder, account and TensorBoard of a job."""

import re
from dataclasses import replace

from vertex_launch.addresses import folder_fault
from vertex_launch.aliases import region_cure
from vertex_launch.errors import Finding, Findings
from vertex_launch.rules.machines import known
from vertex_launch.rules.rule import RuleContext, rule
from vertex_launch.spec import OUTPUT, Job

REGION = "region"  # the one place that is not in the job file
REGION_NAME = re.compile("[a-z]+-[a-z]+[0-9]+")
WORDS = re.compile(
    "(africa|asia|australia|europe|me|northamerica|southamerica|us)-(central|(north|south)?(east|west)?)[0-9]+"
)
TENSORBOARD = re.compile("projects/[^/]+/locations/([^/]+)/tensorboards/[^/]+")


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
    """The region of the settings is a region, not a zone or a multi-region.

    Otherwise: There is no such service to send the job to.
    """
    region = context.settings.region
    if region and not REGION_NAME.fullmatch(region):
        fault = f'"{region}", from {context.settings.origin(REGION)}, is no region of Google Cloud'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-words", "warning", "inferred", "locations")
def region_spelled(job: Job, context: RuleContext) -> Findings:
    """The region's name is made of a continent and a direction, as those of all regions are.

    Otherwise: If it is misspelt, there is no such service to send the job to.
    """
    region = context.settings.region
    if REGION_NAME.fullmatch(region) and not WORDS.fullmatch(region):
        fault = f'"{region}", from {context.settings.origin(REGION)}, is no region that is known here'
        yield Finding(REGION, fault, region_cure(region, context.catalog.regions))


@rule("region-accelerator", "error", "documented", "locations")
def region_offers(job: Job, context: RuleContext) -> Findings:
    """The region offers the accelerators for training."""
    region, regions = context.settings.region, context.catalog.regions
    is_one = REGION_NAME.fullmatch(region)  # `region_named` reports others
    for pool, machine in known(context, job.pools if is_one else ()):
        kind = pool.accelerator or machine.tpu
        there = [name for name, kinds in regions.items() if kind in kinds]
        if there and region not in there:
            cure = f"choose a region that does, in {context.settings.origin(REGION)}: {', '.join(there)}"
            yield Finding(pool.at("machineSpec"), f"{region} offers no {kind} for training", cure)


@rule("output-missing", "warning", "documented", "api-types")
def output_named(job: Job, context: RuleContext) -> Findings:
    """A job has an output folder; without one the service names none to the trainer.

    Otherwise: The job runs, and its checkpoints, model and logs are gone with its machines.
    """
    if not _prefix(job) and job.strategy != "SPOT":  # `spot-output` says more
        fault = "is missing, so neither checkpoints nor the model are kept"
        yield Finding(OUTPUT, fault, f"set it to {folder(job, context)}")


@rule("output-folder", "error", "documented", "api-types", "vertex_launch/addresses.py")
def output_in_a_bucket(job: Job, context: RuleContext) -> Findings:
    """The output folder is an address in Cloud Storage, gs://BUCKET/FOLDER, and stays one where buckets are mounted."""
    if _prefix(job) and (found := folder_fault(_prefix(job), OUTPUT)):
        yield replace(found, cure=f"set it to {folder(job, context)}")


@rule("output-shared", "warning", "documented", "api-types", "trainer")
def output_of_its_own(job: Job, context: RuleContext) -> Findings:
    """No two jobs that are checked together have the same output folder.

    Otherwise: One job resumes from the checkpoints of the other, or both write over each other's.
    """
    if other := context.project.outputs.get(output(job)):
        fault = f"is the folder of {other}, too, so the jobs share their checkpoints"
        yield Finding(OUTPUT, fault, "give each job a folder of its own")


@rule("bucket-differs", "warning", "documented", "settings")
def bucket_ours(job: Job, context: RuleContext) -> Findings:
    """The output folder is in the bucket of the settings.

    Otherwise: The job writes to a bucket that may be somebody else's, or in another region.
    """
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
