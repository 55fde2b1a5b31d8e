"""Tracks how many machines jobs use from each source of capacity: the service, a region, or a persistent resource.

Without a persistent resource, only the number of a job's replicas matters, not their machine types. On a persistent
resource, each worker pool requires a resource pool with enough machines with the same type, accelerators, and disk.
Source: Vertex AI documentation, "Run serverless training jobs on a persistent resource", 2026.
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
DISK = "pd-ssd"  # the default disk type. Source: google-cloud-aiplatform 2.7.0, types/machine_resources.py

# Numbers of machines. The key is the name of a persistent resource and a machine description, or "" and a region.
Machines = Counter[tuple[str, str]]
ALL = ("", "")  # the key for replicas in all regions


def resource_of(parent: str, job: Job) -> str:
    """Return the name of a job's persistent resource, or "" if the job doesn't use one."""
    id = job.spec.persistent_resource_id
    return f"{parent}/{COLLECTION}/{id}" if id else ""


def machine(pool: Resource) -> str:
    """Return a description of a pool's machines. The machines of two pools match if their descriptions are equal."""
    return f"{job_resource.machine(pool)} ({pool.get('diskSpec', {}).get('bootDiskType') or DISK})"


def most(pool: Resource) -> int:
    """Return the maximum number of machines in a resource pool. Locally, a resource pool scales immediately."""
    return int(pool.get("autoscalingSpec", {}).get("maxReplicaCount") or pool["replicaCount"])


def needed(job: Job, resource: str) -> Machines:
    """Return the machines that a job needs from the persistent resource with this name."""
    pools = ((machine(as_json(pool.spec)), pool.replica_count) for pool in job.pools)
    return sum((Machines({(resource, kind): count}) for kind, count in pools), Machines())


def held(resource: Resource) -> Machines:
    """Return the maximum number of machines of each type in a persistent resource.

    If several pools have the same machine type, add their machine counts.
    """
    pools = ((machine(pool), most(pool)) for pool in resource["resourcePools"])
    return sum((Machines({(resource["name"], kind): count}) for kind, count in pools), Machines())


def needs(parent: str, job: Job, options: Options) -> list[Machines]:
    """Return the machines that a job needs from each source of capacity.

    If a job uses a persistent resource, it needs machines only from this resource. Otherwise, it counts toward the
    replica limits of its region and of the service.
    """
    if resource := resource_of(parent, job):
        return [needed(job, resource)]
    region = parent.rpartition("/")[2]
    stocks = [*({region} & options.region_capacity.keys()), ""]
    return [Machines({("", stock): size(job)}) for stock in stocks]


def stocks(store: Store, options: Options) -> Machines:
    """Return the replica limits of the service and of regions, and the machine counts of persistent resources."""
    limits = {ALL: options.capacity} | {("", region): count for region, count in options.region_capacity.items()}
    return sum(map(held, store.all(COLLECTION)), Machines(limits))


def with_use(resource: Resource, used: Machines) -> Resource:
    """Return a copy of a persistent resource in which each pool reports how many of its machines are in use."""
    left, pools = Machines(used), []
    for pool in resource["resourcePools"]:
        stock = resource["name"], machine(pool)
        count = min(left[stock], most(pool))
        left[stock] -= count
        replicas = max(int(pool["replicaCount"]), count)
        pools.append({**pool, "replicaCount": str(replicas), "usedReplicaCount": str(count)})
    return {**resource, "resourcePools": pools}


def findings(store: Store, parent: str, job: Job) -> Findings:
    """Yield reasons why a job can never run on its persistent resource."""
    name, place = resource_of(parent, job), "persistentResourceId"
    if not name:
        return
    if name not in store:
        yield Finding(place, f"{name} doesn't exist locally", "create the resource first, or remove the field")
        return
    resource = store.get(name)
    if resource["state"] != "RUNNING":
        yield Finding(place, f"{name} is {resource['state']}", "choose a different resource, or remove the field")
    network = resource.get("network", "")
    if job.spec.network not in ("", network):
        yield Finding("network", f"the value isn't the network of {name}", f"use {network}" if network else "remove it")
    machines = held(resource)
    for stock, count in needed(job, name).items():
        if count > machines[stock]:
            fault = f"the job needs {count} x {stock[1]}, but {name} has {machines[stock]}"
            has = ", ".join(f"{number} x {kind}" for (_, kind), number in machines.items())
            yield Finding("workerPoolSpecs", fault, f"use at most {has}")
