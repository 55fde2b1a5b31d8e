"""The `setup` command, which creates the Google Cloud resources that a project needs before its first job."""

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from vertex_launch import settings
from vertex_launch.cli.options import SETTINGS, SettingsOptions, state_dir
from vertex_launch.cli.output import confirmed, console
from vertex_launch.cloud import setup as cloud
from vertex_launch.cloud.refusals import LOGIN
from vertex_launch.cloud.setup import Step
from vertex_launch.errors import FaultError
from vertex_launch.job import spec
from vertex_launch.job.state_dir import private
from vertex_launch.plan import pools
from vertex_launch.plan.pools import Quota
from vertex_launch.settings import Settings

JOBS = Path("jobs")


@dataclass(frozen=True, kw_only=True)
class SetupOptions(SettingsOptions):
    dry_run: Annotated[bool, Parameter(help="Print the gcloud commands without running them.")] = False
    yes: Annotated[bool, Parameter(help="Don't ask for confirmation.")] = False
    budget: Annotated[
        float,
        Parameter(validator=Number(gte=0), metavar="USD", help="Monthly budget, with email alerts at 50% and 100%."),
    ] = 0

    def act(self) -> None:
        old, new = settings.load(SETTINGS), self.settings()
        settings.require(new, "project", "region", "bucket", "image")
        new = cloud.renamed(old, new)
        if self.dry_run:
            show(new, self.budget)
            return
        missing = [step for step in every(new, self.budget) if not is_there(step)]
        count = f"{len(missing)} missing {'step' if len(missing) == 1 else 'steps'}"
        if missing and not (self.yes or confirmed(f"Run the {count}?")):
            raise SystemExit(1)
        private(policy().parent)
        policy().write_text(json.dumps(cloud.CLEAN_UP))
        budgets = [step for step in missing if step.looks[0] == "billing"]
        take([step for step in missing if step not in budgets])
        for path, text in cloud.changed(SETTINGS, JOBS, old, replace(new, service_account=cloud.account(new))):
            path.write_text(text, encoding="utf-8")
            console.print(f"written  {path}")
        take(budgets)  # last: it requires permissions that few users have, and jobs run without a budget
        show_quotas(new)


def policy() -> Path:
    """Return the path of the cleanup policy, which deletes old images from the image repository."""
    return state_dir().folder / "clean-up.json"


def show(new: Settings, budget: float) -> None:
    folder, file, text = map(shlex.quote, (str(policy().parent), str(policy()), json.dumps(cloud.CLEAN_UP)))
    written = f"mkdir -p {folder} && echo {text} > {file}"
    console.print("# Replace USER and BILLING_ACCOUNT with your own values", written, sep="\n")
    for step in cloud.steps(new, "user:USER", policy(), budget, "BILLING_ACCOUNT"):
        console.print(f"# {step.title}", cloud.shown(step.act), sep="\n")


def every(new: Settings, budget: float) -> list[Step]:
    """Return the setup steps for the logged-in user.

    Raises FaultError if the user or the billing account is unknown.
    """
    who = cloud.ask("config", "get", "account")
    if not who:
        raise FaultError(f"gcloud: no account is logged in; {LOGIN}")
    you = f"{'serviceAccount' if who.endswith('.gserviceaccount.com') else 'user'}:{who}"
    named = budget and cloud.ask("billing", "projects", "describe", new.project, "--format=value(billingAccountName)")
    if budget and not named:
        cure = "to enable the required service, first run setup without --budget"
        raise FaultError(f"--budget: the billing account of {new.project} can't be read; {cure}")
    return [*cloud.steps(new, you, policy(), budget, str(named or "").rpartition("/")[2])]


def is_there(step: Step) -> bool:
    done, differences = cloud.look(step)
    console.print(f"{'done   ' if done else 'missing'}  {step.title}")
    for difference in differences:
        console.print(f"differs  {difference}")
    return done


def take(steps: list[Step]) -> None:
    """Print and run the gcloud command of each setup step, which creates a resource."""
    for step in steps:
        console.print(cloud.shown(step.act))
        cloud.take(step.act)


def show_quotas(new: Settings) -> None:
    """Print whether each quota is large enough for the job that needs the most.

    Skip quotas that gcloud can't read.
    """
    all_needs = ((quota, path) for path in JOBS.glob("*.yaml") for quota in needed(path, new))
    needs = sorted(all_needs, key=lambda need: (need[0].amount, need[1]))
    jobs = {quota.metric: path for quota, path in needs}  # the last job of a metric needs the most of it
    asked = ("--service=aiplatform.googleapis.com", f"--project={new.project}", cloud.JSON)
    infos = json.loads(cloud.ask("beta", "quotas", "info", "list", *asked) or "[]") if needs else []
    for quota, limit in pools.limits((quota for quota, _ in needs), infos, new.region):
        has = f"{quota.metric} in {new.region} is {limit}, and {jobs[quota.metric]} needs {quota.amount}"
        more = f"; request more: {pools.more_command(quota.metric, new, quota.amount)}"
        short = limit < quota.amount
        console.print(f"{'short  ' if short else 'enough '}  {has}{more if short else ''}")


def needed(path: Path, new: Settings) -> tuple[Quota, ...]:
    """Return the quotas that the job in a file needs.

    If the job file isn't valid, return an empty tuple. The `check` command reports the errors in the job file.
    """
    try:
        return pools.needed(spec.load(path), new)
    except FaultError:
        return ()
