"""Machines of persistent resources: which ones a job needs, and how many of them there are.

A worker pool runs on machines of its own type, accelerators and disk, as many as a resource pool may have. Source:
Vertex AI documentation, "Run serverless training jobs on a persistent resource", 2026.
"""

from collections import Counter

from vertex_launch import job_resource
from vertex_launch.errors import Finding, Findings
from vertex_launch.job_resource import Resource
from vertex_launch.local.api.store import Store
from vertex_launch.spec import Job, as_json

COLLECTION = "persistentResources"
DISK = "pd-ssd"  # of a pool that names none. Source: google-cloud-aiplatform 2.7.0, types/machine_resources.py

Machines = Counter[str]  # machines by what they are, in words


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


def needed(job: Job) -> Machines:
    """Return the machines that a job takes."""
    return sum((Machines({machine(as_json(pool.spec)): pool.replica_count}) for pool in job.pools), Machines())


def held(resource: Resource) -> Machines:
    """Return the machines that a resource may have; equal pools are one."""
    return sum((Machines({machine(pool): most(pool)}) for pool in resource["resourcePools"]), Machines())


def with_use(resource: Resource, used: Machines) -> Resource:
    """Return a resource whose pools say how many of their machines run jobs."""
    left, pools = Machines(used), []
    for pool in resource["resourcePools"]:
        count = min(left[machine(pool)], most(pool))
        left[machine(pool)] -= count
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
    for kind, count in needed(job).items():
        if count > machines[kind]:
            fault = f"the job needs {count} x {kind}, and {name} has {machines[kind]}"
            has = ", ".join(f"{number} x {one}" for one, number in machines.items())
            yield Finding("workerPoolSpecs", fault, f"use at most {has}")
