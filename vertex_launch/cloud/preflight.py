"""What is looked at before a job is sent: its images and quotas, its bucket and output folder, and who writes there."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound

from vertex_launch import program, spec
from vertex_launch.cloud import jobs, registry
from vertex_launch.cloud import quota as quotas
from vertex_launch.cloud.refusals import said_by
from vertex_launch.cloud.registry import Image
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.errors import Finding
from vertex_launch.job_resource import Resource, id_of, output_folder, state
from vertex_launch.plan import pools
from vertex_launch.printable import printable
from vertex_launch.rules import containers
from vertex_launch.rules.region_and_output import output
from vertex_launch.settings import Settings
from vertex_launch.spec import OUTPUT, Job, Pool, TuningJob, trial

EMPTY = "empty"
STEP = re.compile(r"/step-(\d+)/committed\.json$")


@dataclass(frozen=True)
class Preflight:
    """What was found; `folder` says what is in the output folder, "" where that is not known."""

    folder: str = ""
    findings: tuple[Finding, ...] = ()
    images: tuple[Image, ...] = ()


def look(job: Job | TuningJob, service: Service, settings: Settings, revision: str = "") -> Preflight:
    """Look at what a job that is sent now would meet.

    Args:
        revision: of the code here, "" where that is not known.
    """
    folder, findings, images = "", list[Finding](), list[Image]()
    if not service.endpoint:  # the local Vertex has no images, and needs no quota
        images, findings = _images(trial(job), service, revision)
        findings += _shortages(job, service, settings)
    if output(trial(job)):
        folder, found = _folder(job, service)
        findings += found
    below = "trialJobSpec" if isinstance(job, TuningJob) else ""
    placed = (one.below(below) if below else one for one in findings)
    return Preflight(folder, tuple(spec.located(one, job.document) for one in placed), tuple(images))


def _folder(job: Job | TuningJob, service: Service) -> tuple[str, list[Finding]]:
    """What is in the output folder, and what speaks against writing there."""
    address = output(trial(job))
    bucket, _, prefix = address.removeprefix("gs://").partition("/")
    folder, findings = "", [*_elsewhere(bucket, service), *_taken(address, service)]
    names = Names(service, bucket, f"{prefix}/" if prefix else "")
    try:
        folder = names.folder()
        findings += _earlier(job, folder, names)
    except NotFound:
        folder = EMPTY if service.endpoint else ""
        findings += _no_bucket(bucket, service)
    except Forbidden as error:
        cure = "see that the account of the job may write there: roles/storage.objectAdmin"
        findings.append(Finding(OUTPUT, f"you cannot look at it ({said_by(error)})", cure, severity="warning"))
    return folder, findings


def _images(job: Job, service: Service, revision: str) -> tuple[list[Image], list[Finding]]:
    """What the names of its images mean now; one that is not there would be missed once the machines run."""
    found, findings = list[Image](), list[Finding]()
    own = [(pool, name) for pool, name in containers.images(job) if pool.task == "containerSpec"]
    for pool, name in own:
        place = containers.image_at(pool)
        try:
            image = registry.look_up(name, service)
        except NotFound:
            findings.append(Finding(place, f"there is no image {name}", "build it and send it, or mend the name"))
        except (GoogleAPICallError, NoAnswerError) as error:
            fault = f"you cannot look at the image ({said_by(error)})"
            cure = "see that it is there; looking takes roles/artifactregistry.reader"
            findings.append(Finding(place, fault, cure, severity="warning"))
        else:
            found += [image] if image else []
            findings += [*_outdated(image, place, revision), *_idle(image, pool, job)] if image else []
    return found, findings


def _outdated(image: Image, place: str, revision: str) -> list[Finding]:
    """An image of other code than what is here, if both are known."""
    built = image.revision.removesuffix("-dirty")
    if not revision or built in ("", revision):
        return []
    fault = f"the image was built from revision {built}, and this folder is at {revision}"
    return [Finding(place, fault, "build it and send it again, unless you mean that one", severity="warning")]


def _idle(image: Image, pool: Pool, job: Job) -> Iterator[Finding]:
    """An image that trains, and whose NCCL cannot use the reducers that the job has, as its build has said."""
    if job.reducers and pool in job.training_pools and "idle" in image.reducers:
        fault, _, cure = image.reducers.partition("; ")
        yield Finding(containers.image_at(pool), fault, cure, severity="warning")


def _shortages(job: Job | TuningJob, service: Service, settings: Settings) -> Iterator[Finding]:
    """Quotas that are smaller than what the job needs, where they may be looked at."""
    with contextlib.suppress(GoogleAPICallError, NoAnswerError):  # the service itself will say
        for quota, limit in quotas.limits(quotas.needed(job, settings), service.quotas(), service.region):
            if limit < quota.amount:
                fault = f"it needs {quota.amount} of {quota.metric} in {service.region}, and the quota is {limit}"
                more = pools.more_command(quota.metric, settings, quota.amount)
                cure = f"take another region or a smaller job, or ask for more: {more}"
                yield Finding("workerPoolSpecs", fault, cure, severity="warning")


@dataclass(frozen=True)
class Names:
    """The objects of a folder."""

    service: Service
    bucket: str
    prefix: str  # ends with a slash, unless the folder is the bucket itself

    def folder(self) -> str:
        """What is there, for the summary."""
        steps = [int(found[1]) for name in self._steps() if (found := STEP.search(name))]
        if steps:
            return f"resumes at step {max(steps)}"
        return "not empty" if self._any(self.prefix) else EMPTY

    def finished(self) -> bool:
        return self._any(f"{self.prefix}model/")

    def _steps(self) -> Sequence[str]:
        # The folder's own name may have what means something in a glob.
        return self.service.objects(
            self.bucket, prefix=f"{self.prefix}checkpoints/step-", matchGlob="**/committed.json"
        )

    def _any(self, prefix: str) -> bool:
        return bool(self.service.objects(self.bucket, prefix=prefix, maxResults="1"))


def _no_bucket(bucket: str, service: Service) -> Iterator[Finding]:
    """Google's service finds out once the machines run; the local Vertex has every bucket that a job writes to."""
    if not service.endpoint:
        _, project, *_ = service.parent.split("/")
        where = f"--project={project} --location={service.region}"
        cure = f"make it: gcloud storage buckets create gs://{bucket} {where} --uniform-bucket-level-access"
        yield Finding(OUTPUT, f"there is no bucket {bucket}", cure)


def _earlier(job: Job | TuningJob, folder: str, names: Names) -> Iterator[Finding]:
    """What an earlier job has left: the new one goes on from it."""
    if isinstance(job, TuningJob) and folder != EMPTY:
        fault = "it is not empty, and a trial resumes from what a trial of the same number has left there"
        yield Finding(OUTPUT, fault, "name another folder")
    elif names.finished():
        fault = "an earlier run has exported its model there, and the job would go on where that ended"
        yield Finding(OUTPUT, fault, "name another folder, unless this job has more steps", severity="warning")


def _elsewhere(bucket: str, service: Service) -> Iterator[Finding]:
    """A bucket of another region is slower, and what crosses is billed; one of several regions may be near."""
    described: Resource = {}
    with contextlib.suppress(Forbidden, NotFound):  # many who may write objects may not see the bucket itself
        described = service.bucket(bucket)
    location = str(described.get("location", "")).lower()
    if described.get("locationType") == "region" and location != service.region:
        fault = f"the bucket is in {location}, and the machines are in {service.region}: slower, and billed as egress"
        yield Finding(OUTPUT, fault, f"name a bucket in {service.region}", severity="warning")


def _taken(address: str, service: Service) -> Iterator[Finding]:
    """Two jobs in one folder would write each other's checkpoints."""
    try:
        there = jobs.unfinished(service)
    except Forbidden as error:
        fault = f"whether another job writes there cannot be seen ({said_by(error)})"
        yield Finding(OUTPUT, fault, "see to it that none does", severity="warning")
        return
    for job in there:
        if output_folder(job) == address:
            id, name = id_of(job["name"]), printable(str(job.get("displayName")))
            cure = f"wait for its end, stop it with {program.NAME} cancel {id}, or name another folder"
            yield Finding(OUTPUT, f"job {id} ({name}) is {state(job)} and writes there", cure)
            return
