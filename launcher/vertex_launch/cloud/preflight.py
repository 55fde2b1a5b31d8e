"""Checks before a job is sent: its images and quotas, its bucket and output folder, and other jobs that write there."""

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
Objects = Callable[..., Iterable[Resource]]  # objects of a bucket, as Service.objects takes keywords
warning = partial(Finding, severity="warning")

ADDRESS = re.compile(r"(?P<host>[a-z0-9-]+-docker\.pkg\.dev)/(?P<path>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?")
GOOGLES = ("vertex-ai/", "vertex-ai-restricted/")  # projects whose images only jobs read
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPTED = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}


@dataclass(frozen=True)
class Image:
    name: str
    digest: str  # sha256:...
    revision: str = ""  # revision of the code it was built from, "" without the label
    reducers: str = ""  # sentence of its build on whether NCCL can use reducers there

    @property
    def pinned(self) -> str:
        """The name that will mean the same for ever."""
        return f"{untagged(self.name)}@{self.digest}"


@dataclass(frozen=True)
class Preflight:
    """Result of the checks; `folder` says what is in the output folder, "" where that is not known."""

    folder: str = ""
    findings: tuple[Finding, ...] = ()
    images: tuple[Image, ...] = ()


def look(job: Job | TuningJob, service: Service, revision: str = "") -> Preflight:
    """Run the checks before a job is sent; `revision` is the local code's, "" if it is unknown."""
    folder, findings, images = "", list[Finding](), list[Image]()
    if not service.endpoint:  # the local Vertex has no images, and needs no quota
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
    except NotFound:  # Google reports it only once the machines run; the local Vertex makes every bucket
        folder = EMPTY if service.endpoint else ""
        where = f"--project={service.settings.project} --location={service.settings.region}"
        cure = f"make it: gcloud storage buckets create gs://{bucket} {where} --uniform-bucket-level-access"
        findings += [] if service.endpoint else [Finding(OUTPUT, f"there is no bucket {bucket}", cure)]
    except Forbidden as error:
        cure = "see that the account of the job may write there: roles/storage.objectAdmin"
        findings.append(warning(OUTPUT, f"you cannot look at it ({message_of(error)})", cure))
    return folder, findings


def _content(objects: Objects, prefix: str) -> str:
    """Say what is in a folder, for the summary; the folder's name may have characters that mean something in a glob."""
    items = objects(prefix=f"{prefix}checkpoints/step-", matchGlob="**/committed.json")
    if steps := [int(match[1]) for item in items if (match := STEP.search(item["name"]))]:
        return f"resumes at step {max(steps)}"
    return "not empty" if any(objects(prefix=prefix, maxResults="1")) else EMPTY


def _images(job: Job, service: Service, revision: str) -> tuple[list[Image], list[Finding]]:
    """Look up the images, because one that is not there would be missed only once the machines run."""
    images, findings = list[Image](), list[Finding]()
    for pool, name in containers.images(job):
        place = containers.image_at(pool)
        try:
            image = _image(name, service) if pool.task == "containerSpec" else None
        except NotFound:
            findings.append(Finding(place, f"there is no image {name}", "build it and send it, or mend the name"))
        except (GoogleAPICallError, NoAnswerError) as error:
            cure = "see that it is there; looking takes roles/artifactregistry.reader"
            findings.append(warning(place, f"you cannot look at the image ({message_of(error)})", cure))
        else:
            if image:
                images.append(image)
                findings += _of_image(image, place, revision, job.reducers and pool.trains)
    return images, findings


def _image(name: str, service: Service) -> Image | None:
    """Return the image that a name means now, None if it is not of a repository of the user's in Artifact Registry.

    Raises NotFound where there is no such image, another GoogleAPICallError or NoAnswerError where it cannot be seen.
    Source: OCI Distribution Specification 1.1, "Pulling manifests"; the registry takes an access token of Google's.
    """
    parts = ADDRESS.fullmatch(name)
    if not parts or parts["path"].startswith(GOOGLES):
        return None
    repository = f"https://{parts['host']}/v2/{parts['path']}"
    reference = parts["digest"] or parts["tag"] or "latest"
    answer = service.fetch(f"{repository}/manifests/{reference}", ACCEPTED)
    labels: Resource = {}
    # The image is there, whatever its labels say.
    with contextlib.suppress(GoogleAPICallError, NoAnswerError, TypeError, ValueError):
        labels = _labels(answer, repository, service)
    digest = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    return Image(name, digest, str(labels.get(REVISION, "")), str(labels.get(OF_REDUCERS, "")))


def _labels(document: bytes, repository: str, service: Service) -> Resource:
    """Labels of the image; for an index, of its amd64 image. Raises TypeError or ValueError for no such document."""
    manifest = dict(json.loads(document))
    for entry in manifest.get("manifests", ()):
        if entry.get("platform", {}).get("architecture") == "amd64":
            return _labels(service.fetch(f"{repository}/manifests/{entry['digest']}", ACCEPTED), repository, service)
    if "config" not in manifest:
        return {}
    config = dict(json.loads(service.fetch(f"{repository}/blobs/{manifest['config']['digest']}")))
    return config.get("config", {}).get("Labels") or {}


def _of_image(image: Image, place: str, revision: str, reduced: object) -> Findings:
    """Find an image of other code than is here, and one whose NCCL cannot use the reducers, as its build has said."""
    built = image.revision.removesuffix("-dirty")
    if revision and built not in ("", revision):
        fault = f"the image was built from revision {built}, and this folder is at {revision}"
        yield warning(place, fault, "build it and send it again, unless you mean that one")
    if reduced and "idle" in image.reducers:
        fault, _, cure = image.reducers.partition("; ")
        yield warning(place, fault, cure)


def _shortages(job: Job | TuningJob, service: Service) -> Findings:
    """Find quotas that are smaller than what the job needs, where they may be looked at."""
    settings = service.settings
    with contextlib.suppress(GoogleAPICallError, NoAnswerError):  # the service itself will say
        for quota, limit in pools.limits(pools.needed(job, settings), service.quotas(), settings.region):
            if limit < quota.amount:
                fault = f"it needs {quota.amount} of {quota.metric} in {settings.region}, and the quota is {limit}"
                more = pools.more_command(quota.metric, settings, quota.amount)
                cure = f"take another region or a smaller job, or ask for more: {more}"
                yield warning("workerPoolSpecs", fault, cure)


def _earlier(job: Job | TuningJob, folder: str, objects: Objects, prefix: str) -> Findings:
    if isinstance(job, TuningJob) and folder != EMPTY:
        fault = "it is not empty, and a trial resumes from what a trial of the same number has left there"
        yield Finding(OUTPUT, fault, "name another folder")
    elif any(objects(prefix=f"{prefix}model/", maxResults="1")):
        fault = "an earlier run has exported its model there, and the job would go on where that ended"
        yield warning(OUTPUT, fault, "name another folder, unless this job has more steps")


def _elsewhere(bucket: str, service: Service) -> Findings:
    """Find a bucket of another region: slower, and billed; a bucket of several regions may be near."""
    described: Resource = {}
    region = service.settings.region
    with contextlib.suppress(Forbidden, NotFound):  # many who may write objects may not see the bucket itself
        described = service.bucket(bucket)
    location = str(described.get("location", "")).lower()
    if described.get("locationType") == "region" and location != region:
        fault = f"the bucket is in {location}, and the machines are in {region}: slower, and billed as egress"
        yield warning(OUTPUT, fault, f"name a bucket in {region}")


def _leased(bucket: str, prefix: str, service: Service) -> Findings:
    """Find a job, also of another project or machine, that holds the lease of the folder.

    The bucket's clock says when it was renewed, and this machine's how long ago that is, so this only warns.
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
    """Find another job that writes to the folder: two would write each other's checkpoints."""
    try:
        writers = [job for job in jobs.unfinished(service) if output_folder(job) == address]
    except Forbidden as error:
        fault = f"whether another job writes there cannot be seen ({message_of(error)})"
        yield warning(OUTPUT, fault, "see to it that none does")
        return
    for job in writers[:1]:
        id, name = id_of(job["name"]), printable(str(job.get("displayName")))
        cure = f"wait for its end, stop it with {program.NAME} cancel {id}, or name another folder"
        yield Finding(OUTPUT, f"job {id} ({name}) is {state(job)} and writes there", cure)
