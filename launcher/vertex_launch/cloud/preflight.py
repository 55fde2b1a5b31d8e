"""Checks the images, quotas, bucket, and output folder of a job before it's submitted."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound

from vertex_launch import program
from vertex_launch.cloud import jobs
from vertex_launch.cloud.image import REVISION
from vertex_launch.cloud.refusals import message_of
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.errors import Finding, Findings
from vertex_launch.job import lease, spec
from vertex_launch.job.job_resource import Resource, id_of, output_folder, state
from vertex_launch.job.spec import OUTPUT, Job, TuningJob, trial
from vertex_launch.plan import pools
from vertex_launch.rules import containers
from vertex_launch.rules.containers import OF_REDUCERS, untagged
from vertex_launch.rules.region_and_output import output
from vertex_launch.untrusted.printable import printable

EMPTY = "empty"
STEP = re.compile(r"/step-(\d+)/committed\.json$")
Objects = Callable[..., Iterable[Resource]]  # lists the objects of a bucket, with the keywords of Service.objects
warning = partial(Finding, severity="warning")

ADDRESS = re.compile(r"(?P<host>[a-z0-9-]+-docker\.pkg\.dev)/(?P<path>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?")
GOOGLES = ("vertex-ai/", "vertex-ai-restricted/")  # projects whose images only jobs can read
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPTED = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}


@dataclass(frozen=True)
class Image:
    name: str
    digest: str  # sha256:...
    revision: str = ""  # code revision from the image's label, "" without the label
    reducers: str = ""  # message from its build on whether NCCL can use reducers

    @property
    def pinned(self) -> str:
        """The image name with its digest. A name with a digest always refers to the same image."""
        return f"{untagged(self.name)}@{self.digest}"


@dataclass(frozen=True)
class Preflight:
    """The results of the checks that run before a job is submitted.

    `folder` describes the contents of the output folder. If the contents are unknown, `folder` is "".
    """

    folder: str = ""
    findings: tuple[Finding, ...] = ()
    images: tuple[Image, ...] = ()


def look(job: Job | TuningJob, service: Service, revision: str = "") -> Preflight:
    """Check a job before it's submitted. `revision` is the revision of the local code, or "" if unknown."""
    folder, findings, images = "", list[Finding](), list[Image]()
    if not service.endpoint:  # the local Vertex has no images or quotas
        images, findings = _images(trial(job), service, revision)
        findings += _shortages(job, service)
    if output(trial(job)):
        folder, folder_findings = _folder(job, service)
        findings += folder_findings
    if isinstance(job, TuningJob):
        findings = [finding.below("trialJobSpec") for finding in findings]
    return Preflight(folder, tuple(spec.located(finding, job.document) for finding in findings), tuple(images))


def _folder(job: Job | TuningJob, service: Service) -> tuple[str, list[Finding]]:
    address = output(trial(job))
    bucket, _, prefix = address.removeprefix("gs://").partition("/")
    prefix, objects = f"{prefix}/" if prefix else "", partial(service.objects, bucket)
    folder, findings = "", [*_elsewhere(bucket, service), *_taken(address, service)]
    try:
        folder = _content(objects, prefix)
        findings += [*_earlier(job, folder, objects, prefix), *_leased(bucket, prefix, service)]
    except NotFound:  # Google reports this only after the machines start; the local Vertex creates every bucket
        folder = EMPTY if service.endpoint else ""
        where = f"--project={service.settings.project} --location={service.settings.region}"
        cure = f"create it: gcloud storage buckets create gs://{bucket} {where} --uniform-bucket-level-access"
        findings += [] if service.endpoint else [Finding(OUTPUT, f"the bucket {bucket} doesn't exist", cure)]
    except Forbidden as error:
        cure = "make sure that the job's service account has roles/storage.objectAdmin on the bucket"
        findings.append(warning(OUTPUT, f"you can't read the output folder ({message_of(error)})", cure))
    return folder, findings


def _content(objects: Objects, prefix: str) -> str:
    """Describe the contents of a folder for the summary. The folder's name can contain glob characters."""
    items = objects(prefix=f"{prefix}checkpoints/step-", matchGlob="**/committed.json")
    if steps := [int(match[1]) for item in items if (match := STEP.search(item["name"]))]:
        return f"resumes at step {max(steps)}"
    return "not empty" if any(objects(prefix=prefix, maxResults="1")) else EMPTY


def _images(job: Job, service: Service, revision: str) -> tuple[list[Image], list[Finding]]:
    """Look up a job's images. Without this check, the service would report missing images only after machines start."""
    images, findings = list[Image](), list[Finding]()
    for pool, name in containers.images(job):
        place = containers.image_at(pool)
        try:
            image = _image(name, service) if pool.task == "containerSpec" else None
        except NotFound:
            findings.append(
                Finding(place, f"the image {name} doesn't exist", "build and push the image, or fix its name")
            )
        except (GoogleAPICallError, NoAnswerError) as error:
            cure = "make sure that the image exists; reading an image requires roles/artifactregistry.reader"
            findings.append(warning(place, f"you can't read the image ({message_of(error)})", cure))
        else:
            if image:
                images.append(image)
                findings += _of_image(image, place, revision, job.reducers and pool.trains)
    return images, findings


def _image(name: str, service: Service) -> Image | None:
    """Return the image that a name currently refers to.

    If the image isn't in a user's Artifact Registry repository, return None. Raises NotFound if the image doesn't
    exist. Raises GoogleAPICallError or NoAnswerError if the image can't be read for another reason.
    Source: OCI Distribution Specification 1.1, "Pulling manifests". The registry accepts Google access tokens.
    """
    parts = ADDRESS.fullmatch(name)
    if not parts or parts["path"].startswith(GOOGLES):
        return None
    repository = f"https://{parts['host']}/v2/{parts['path']}"
    reference = parts["digest"] or parts["tag"] or "latest"
    answer = service.fetch(f"{repository}/manifests/{reference}", ACCEPTED)
    labels: Resource = {}
    # The image exists even if its labels can't be read.
    with contextlib.suppress(GoogleAPICallError, NoAnswerError, TypeError, ValueError):
        labels = _labels(answer, repository, service)
    digest = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    return Image(name, digest, str(labels.get(REVISION, "")), str(labels.get(OF_REDUCERS, "")))


def _labels(document: bytes, repository: str, service: Service) -> Resource:
    """Return the labels of an image. If `document` is an image index, return the labels of its amd64 image.

    Raises TypeError or ValueError if a document isn't valid.
    """
    manifest = dict(json.loads(document))
    for entry in manifest.get("manifests", ()):
        if entry.get("platform", {}).get("architecture") == "amd64":
            return _labels(service.fetch(f"{repository}/manifests/{entry['digest']}", ACCEPTED), repository, service)
    if "config" not in manifest:
        return {}
    config = dict(json.loads(service.fetch(f"{repository}/blobs/{manifest['config']['digest']}")))
    return config.get("config", {}).get("Labels") or {}


def _of_image(image: Image, place: str, revision: str, reduced: object) -> Findings:
    """Yield a warning if an image's code differs from this folder's code, or if the image's NCCL can't use reducers."""
    built = image.revision.removesuffix("-dirty")
    if revision and built not in ("", revision):
        fault = f"the image was built from revision {built}, but this folder is at {revision}"
        yield warning(place, fault, "to use this folder's revision, build and push the image again")
    if reduced and "idle" in image.reducers:
        fault, _, cure = image.reducers.partition("; ")
        yield warning(place, fault, cure)


def _shortages(job: Job | TuningJob, service: Service) -> Findings:
    """Yield a warning for each quota that is too small for the job. If the quotas can't be read, yield nothing."""
    settings = service.settings
    with contextlib.suppress(GoogleAPICallError, NoAnswerError):  # the service itself reports a missing quota
        for quota, limit in pools.limits(pools.needed(job, settings), service.quotas(), settings.region):
            if limit < quota.amount:
                fault = f"the job needs {quota.amount} of {quota.metric} in {settings.region}, but the quota is {limit}"
                more = pools.more_command(quota.metric, settings, quota.amount)
                cure = f"use a different region or a smaller job, or request more quota: {more}"
                yield warning("workerPoolSpecs", fault, cure)


def _earlier(job: Job | TuningJob, folder: str, objects: Objects, prefix: str) -> Findings:
    if isinstance(job, TuningJob) and folder != EMPTY:
        fault = "the folder isn't empty, so a trial would resume from files of an earlier trial with the same ID"
        yield Finding(OUTPUT, fault, "specify another folder")
    elif any(objects(prefix=f"{prefix}model/", maxResults="1")):
        fault = "an earlier run exported its model to this folder, so the job would continue where that run ended"
        yield warning(
            OUTPUT, fault, "specify a different folder, unless this job trains for more steps than the earlier run"
        )


def _elsewhere(bucket: str, service: Service) -> Findings:
    """Yield a warning if the bucket isn't in the machines' region.

    A multi-region bucket doesn't cause a warning, because it might be near the machines.
    """
    described: Resource = {}
    region = service.settings.region
    with contextlib.suppress(Forbidden, NotFound):  # many users can write objects but can't read the bucket itself
        described = service.bucket(bucket)
    location = str(described.get("location", "")).lower()
    if described.get("locationType") == "region" and location != region:
        fault = (
            f"the bucket is in {location}, but the machines are in {region}; transfers are slow and billed as egress"
        )
        yield warning(OUTPUT, fault, f"use a bucket in {region}")


def _leased(bucket: str, prefix: str, service: Service) -> Findings:
    """Yield a warning if a job, even one from another project or machine, holds the lease on the output folder.

    The finding is only a warning, because the lease's age depends on two clocks that might differ: the bucket's and
    this machine's.
    """
    items = service.objects(bucket, prefix=f"{prefix}{lease.FOLDER}")
    times = {str(item["name"]): datetime.fromisoformat(item["updated"]) for item in items}
    for name in (name for name in times if name.endswith(".json")):
        renewed = max(time for file, time in times.items() if file.startswith(name.removesuffix("json")))
        seconds = (datetime.now(UTC) - renewed).total_seconds()
        if seconds < lease.EXPIRE_SECONDS:
            with contextlib.suppress(*lease.NONE, GoogleAPICallError, NoAnswerError):
                claim = service.content(bucket, name, lease.LARGEST)
                yield warning(OUTPUT, lease.sentence(f"gs://{bucket}/{prefix}checkpoints", claim, seconds), lease.CURE)


def _taken(address: str, service: Service) -> Findings:
    """Yield a finding if another job writes to the output folder, because both would overwrite each other's files."""
    try:
        writers = [job for job in jobs.unfinished(service) if output_folder(job) == address]
    except Forbidden as error:
        fault = f"it's unknown whether another job writes to this folder ({message_of(error)})"
        yield warning(OUTPUT, fault, "make sure that no other job writes to this folder")
        return
    for job in writers[:1]:
        id, name = id_of(job["name"]), printable(str(job.get("displayName")))
        cure = f"wait until that job ends, stop it with {program.NAME} cancel {id}, or specify a different folder"
        yield Finding(OUTPUT, f"job {id} ({name}) is {state(job)} and writes to this folder", cure)
