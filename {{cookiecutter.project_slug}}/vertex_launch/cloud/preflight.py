"""What is looked at before a job is sent: its bucket, what is in its output folder, and who writes there."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.api_core.exceptions import Forbidden, NotFound

from vertex_launch import program, spec
from vertex_launch.cloud import jobs
from vertex_launch.cloud.refusals import said_by
from vertex_launch.cloud.service import Service
from vertex_launch.errors import Finding
from vertex_launch.job_resource import ENDED, Resource, id_of, run_spec, state
from vertex_launch.printable import printable
from vertex_launch.rules.region_and_output import OUTPUT, output
from vertex_launch.spec import Job, TuningJob, trial

LOOKED_AT = 100  # newest jobs, of which one may write to the same folder
EMPTY = "empty"
STEP = re.compile(r"/step-(\d+)/committed\.json$")


@dataclass(frozen=True)
class Preflight:
    """What was found; `folder` says what is in the output folder, "" where that is not known."""

    folder: str = ""
    findings: tuple[Finding, ...] = ()


def look(job: Job | TuningJob, service: Service) -> Preflight:
    """Look at what a job that is sent now would meet."""
    address = output(trial(job))
    if not address:
        return Preflight()
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
    below = "trialJobSpec" if isinstance(job, TuningJob) else ""
    placed = (one.below(below) if below else one for one in findings)
    return Preflight(folder, tuple(spec.located(one, job.document) for one in placed))


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
        glob = f"{self.prefix}checkpoints/step-*/committed.json"
        return self.service.objects(self.bucket, prefix=f"{self.prefix}checkpoints/step-", matchGlob=glob)

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
        there = jobs.newest(service, LOOKED_AT)
    except Forbidden as error:
        fault = f"whether another job writes there cannot be seen ({said_by(error)})"
        yield Finding(OUTPUT, fault, "see to it that none does", severity="warning")
        return
    for job in there:
        theirs = str(run_spec(job).get("baseOutputDirectory", {}).get("outputUriPrefix", "")).rstrip("/")
        if theirs == address and state(job) not in ENDED:
            id, name = id_of(job["name"]), printable(str(job.get("displayName")))
            cure = f"wait for its end, stop it with {program.NAME} cancel {id}, or name another folder"
            yield Finding(OUTPUT, f"job {id} ({name}) is {state(job)} and writes there", cure)
            return
