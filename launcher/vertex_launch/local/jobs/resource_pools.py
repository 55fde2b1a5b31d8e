"""Stocks of machines: what a job takes of which, and how much is in each.

Without a persistent resource, replicas of any kind count. On one, a worker pool runs on machines of its own type,
accelerators and disk, as many as a resource pool may have. Source: Vertex AI documentation, "Run serverless training
jobs on a persistent resource", 2026.
"""

from collections import Counter

from vertex_launch.errors import Finding, Findings
from vertex_launch.job import job_resource
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.spec import Job, as_json
from vertex_launch.local.api.store import Store
from vertex_launch.local.running.context import Options
from vertex_launch.local.running.prepare import size

COLLECTION = "persistentResources"
DISK = "pd-ssd"  # of a pool that names none. Source: google-cloud-aiplatform 2.7.0, types/machine_resources.py

# Counts by the name of a persistent resource and the machines in words; without a resource, by "" and a region.
Machines = Counter[tuple[str, str]]
ALL = ("", "")  # replicas in all regions


def resource_of(parent: str, job: Job) -> str:
    """Return the name of the persistent resource on which a job runs, "" if on none."""
    id = job.spec.persistent_resource_id
    return f"{parent}/{COLLECTION}/{id}" if id else ""


def machine(pool: Resource) -> str:
    """Return what a worker pool or a resource pool consists of, in words; the two match if these are the same."""
    return f"{job_resource.machine(pool)} ({pool.get('diskSpec', {}).get('bootDiskType') or DISK})"


def most(pool: Resource) -> int:
    """Return how many machines a resource pool may have; here it scales at once."""
    return int(pool.get("autoscalingSpec", {}).get("maxReplicaCount") or pool["replicaCount"])


def needed(job: Job, resource: str) -> Machines:
    """Return the machines that a job takes of the persistent resource of this name."""
    pools = ((machine(as_json(pool.spec)), pool.replica_count) for pool in job.pools)
    return sum((Machines({(resource, kind): count}) for kind, count in pools), Machines())


def held(resource: Resource) -> Machines:
    """Return the machines that a resource may have; equal pools are one."""
    pools = ((machine(pool), most(pool)) for pool in resource["resourcePools"])
    return sum((Machines({(resource["name"], kind): count}) for kind, count in pools), Machines())


def needs(parent: str, job: Job, options: Options) -> list[Machines]:
    """Return what a job takes: machines of its resource alone, or replicas of its region, then of all."""
    if resource := resource_of(parent, job):
        return [needed(job, resource)]
    region = parent.rpartition("/")[2]
    stocks = [*({region} & options.region_capacity.keys()), ""]
    return [Machines({("", stock): size(job)}) for stock in stocks]


def stocks(store: Store, options: Options) -> Machines:
    """Return how many replicas run at once: in all, in some regions, on each machine of a persistent resource."""
    limits = {ALL: options.capacity} | {("", region): count for region, count in options.region_capacity.items()}
    return sum(map(held, store.all(COLLECTION)), Machines(limits))


def with_use(resource: Resource, used: Machines) -> Resource:
    """Return a resource whose pools say how many of their machines run jobs."""
    left, pools = Machines(used), []
    for pool in resource["resourcePools"]:
        stock = resource["name"], machine(pool)
        count = min(left[stock], most(pool))
        left[stock] -= count
        replicas = max(int(pool["replicaCount"]), count)
        pools.append({**pool, "replicaCount": str(replicas), "usedReplicaCount": str(count)})
    return {**resource, "resourcePools": pools}


def findings(store: Store, parent: str, job: Job) -> Findings:
    """Yield why a job can never run on the persistent resource that it names."""
    name, place = resource_of(parent, job), "persistentResourceId"
    if not name:
        return
    if name not in store:
        yield Finding(place, f"{name} does not exist here", "create it first, or leave it out")
        return
    resource = store.get(name)
    if resource["state"] != "RUNNING":
        yield Finding(place, f"{name} is {resource['state']}", "choose another, or leave it out")
    network = resource.get("network", "")
    if job.spec.network not in ("", network):
        yield Finding("network", f"is not that of {name}", f"write {network}" if network else "remove it")
    machines = held(resource)
    for stock, count in needed(job, name).items():
        if count > machines[stock]:
            fault = f"the job needs {count} x {stock[1]}, and {name} has {machines[stock]}"
            has = ", ".join(f"{number} x {kind}" for (_, kind), number in machines.items())
            yield Finding("workerPoolSpecs", fault, f"use at most {has}")
