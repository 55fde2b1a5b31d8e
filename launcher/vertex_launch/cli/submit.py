"""The `submit` command, which shows a job, asks for confirmation, and submits it to Vertex AI."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from google.api_core.exceptions import ServerError, TooManyRequests

from vertex_launch.cli.cloud_options import CloudOptions
from vertex_launch.cli.following import DETACHED, EXIT_CODES, command, detached, follow_to_end
from vertex_launch.cli.options import JobFile, SettingsOptions, seconds
from vertex_launch.cli.output import approved, complain, confirmed, console, errors, interrupted, report
from vertex_launch.cloud import jobs, preflight, revision
from vertex_launch.cloud import submit as cloud
from vertex_launch.cloud.logs import Log
from vertex_launch.cloud.refusals import message_of
from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.errors import FaultError
from vertex_launch.facts import labels
from vertex_launch.job.job_resource import ENDED, fault, id_of, state
from vertex_launch.job.spec import Job, TuningJob
from vertex_launch.local.running.signals import signals_as_exceptions
from vertex_launch.plan.formatting import duration
from vertex_launch.rules.check import Examined
from vertex_launch.settings import Settings

WAIT_SECONDS = 1200.0  # default wait for machines, before the next job is sent


@dataclass(frozen=True)
class SubmitOptions(CloudOptions, SettingsOptions):
    job: JobFile
    _: KW_ONLY
    others: Annotated[
        list[Path] | None,
        Parameter("--or", metavar="JOB", help="Submit this job if the previous ones don't start. Can be repeated."),
    ] = None
    regions: Annotated[str, Parameter(metavar="R,R", help="Try each job in these regions, in this order.")] = ""
    wait: Annotated[
        float | None,
        Parameter(
            converter=seconds,
            allow_leading_hyphen=True,
            metavar="20m",
            help="Cancel a job if it waits longer than this for machines.",
        ),
    ] = None
    yes: Annotated[bool, Parameter(help="Don't ask for confirmation.")] = False
    label: Annotated[
        list[str] | None,
        Parameter(metavar="KEY=VALUE", help="Add a label to the job. Labels also appear on the bill. Can be repeated."),
    ] = None
    print: Annotated[
        Literal["gcloud", "curl", "python"] | None, Parameter(help="Print the request instead of submitting the job.")
    ] = None
    follow: Annotated[
        bool | None,
        Parameter(negative="--no-follow", help="Print the log until the job ends. This is the default on a terminal."),
    ] = None

    def act(self) -> None:
        places = [*self.places()]
        code = revision.labels(Path())
        own = {**labels.typed(self.label or []), **code}
        if self.print:
            self.spell(places, own)
            return
        with self.cloud() as service:
            if service.endpoint:
                console.print(f"submitting to the local Vertex at {service.endpoint}, not to Google Cloud")
            with interrupted(
                "no job was submitted" if self.yes else "no job was submitted; to skip the confirmation, add --yes"
            ):
                offers = [offer(job, service, settings, own, code.get("git-revision", "")) for job, settings in places]
                wait = self.wait if self.wait is not None or len(offers) == 1 else WAIT_SECONDS
                if not (all(one.passes for one in offers) and (self.yes or confirmed(question(offers, wait)))):
                    raise SystemExit(1)
            with signals_as_exceptions():
                service, name = first_to_start(offers, wait)
        if sys.stdout.isatty() if self.follow is None else self.follow:
            raise SystemExit(follow_to_end(service, name, Log(service)))
        console.print(f"follow it with: {command(service, 'logs', id_of(name), '--follow')}")

    def places(self) -> Iterator[tuple[Job | TuningJob, Settings]]:
        """Yield each job with each region's settings, in the order in which `submit` tries them."""
        settings, _ = self.where()
        origins = {**settings.origins, "region": "--regions"}
        names = [name for name in map(str.strip, self.regions.split(",")) if name]
        regions = [replace(settings, region=name, origins=origins) for name in names] or [settings]
        for path in (self.job, *(self.others or ())):
            yield from zip(approved(path, *regions), regions, strict=True)

    def spell(self, places: Sequence[tuple[Job | TuningJob, Settings]], own: Mapping[str, str]) -> None:
        """Print the API request as gcloud, curl, or Python code. Raises FaultError if there are several requests."""
        if len(places) > 1:
            raise FaultError("--print: only one request can be printed; remove --or, and specify only one region")
        ((job, settings),) = places
        _, endpoint = self.where()
        assert self.print
        console.print(cloud.CLIENTS[self.print](cloud.request(job, settings, own), job.path, settings, endpoint))


@dataclass(frozen=True)
class Offer:
    """A job for one region, with its API request and check results."""

    job: Job | TuningJob
    service: Service  # of the region
    request: cloud.Request
    passes: bool  # whether it passes the checks before it is sent

    def __str__(self) -> str:
        return f"{self.job.path} in {self.service.settings.region}"


def offer(job: Job | TuningJob, service: Service, settings: Settings, own: Mapping[str, str], revision: str) -> Offer:
    """Check a job, and return it with its API request. Print the job's summary, labels, and findings."""
    there = replace(service, settings=settings)
    checks = preflight.look(job, there, revision)
    request = cloud.request(job, settings, own, checks.images)
    labels = ", ".join(f"{key}={value}" for key, value in sorted(request.resource["labels"].items()))
    console.print(f"{cloud.summary(job, settings, checks)}\n  labels   {labels}")
    report(examined := Examined(job.path, job, checks.findings))
    return Offer(job, there, request, examined.passes(strict=False))


def question(offers: Sequence[Offer], wait: float | None) -> str:
    if wait is None:
        return "Submit the job?"
    if len(offers) == 1:
        return f"Submit the job, and cancel it if it hasn't started after {duration(wait)}?"
    return f"Submit the first of these {len(offers)} jobs, and the next one if none has started after {duration(wait)}?"


def first_to_start(offers: Sequence[Offer], wait: float | None) -> tuple[Service, str]:
    """Submit the jobs one at a time until one starts, and return its service and name.

    A job that doesn't start is canceled before the next job is submitted. If no job starts, exit. If the
    user presses Ctrl-C, the submitted job continues.
    """
    for one in offers:
        if len(offers) > 1:
            console.print(f"sending {one}: {cloud.price(one.job, one.service.settings)}")
        try:
            name = send(one.request, one.service)
        except TooManyRequests as error:
            if wait is None:
                raise
            console.print(f"{one}: {message_of(error)}", style="yellow")
            continue
        console.print(f"sent: {name}\n{one.service.page(name)}")
        if wait is None or starts(one, name, wait):
            return one.service, name
    complain("no job has started, and none is still waiting; try again later, or use a longer --wait")
    raise SystemExit(EXIT_CODES["EXPIRED"])


def starts(one: Offer, name: str, wait: float) -> bool:
    """Return whether a submitted job starts within `wait` seconds. If not, cancel the job and print its state."""
    service = one.service
    try:
        job = jobs.wait(service, name, lambda job: state(job) not in jobs.WAITING, wait)
        if not jobs.found_no_machines(job):
            return True
        if state(job) in ENDED:
            console.print(f"{one}: {state(job)}, {fault(job)}", style="yellow")
            return False
        job = jobs.withdraw(service, name)
    except KeyboardInterrupt:
        errors.print(f"interrupted; no other job will be submitted{detached(service, name)}")
        raise SystemExit(DETACHED) from None
    if state(job) == "SUCCEEDED":
        return True
    console.print(f"{one}: the job hasn't started after {duration(wait)}; its state is {state(job)}", style="yellow")
    return False


def send(request: cloud.Request, service: Service) -> str:
    """Submit a request, and return the name of the created job.

    If the response is lost, print whether the job was created.
    """

    def outcome() -> str:
        return cloud.whereabouts(request, service, lambda name: detached(service, name))

    try:
        return cloud.submit(request, service, lambda message: errors.print(message))
    except KeyboardInterrupt:
        errors.print("interrupted before the response arrived; looking for the job")
        errors.print(outcome())
        raise SystemExit(130) from None
    except (ServerError, NoAnswerError):
        errors.print(outcome())
        raise
