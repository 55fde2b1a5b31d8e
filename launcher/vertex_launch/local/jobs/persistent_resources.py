"""Manages persistent resources, whose machines keep running between jobs.

A job starts immediately or waits for free machines.
Source: Vertex AI documentation, "Create", "Reboot", and "Delete a persistent resource", 2026; google-cloud-aiplatform
2.7.0, types/persistent_resource.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.cloud.aiplatform_v1.types.custom_job import CustomJobSpec, WorkerPoolSpec
from google.cloud.aiplatform_v1.types.persistent_resource import PersistentResource, ResourcePool
from google.protobuf import json_format
from starlette.datastructures import QueryParams

from vertex_launch.errors import Finding, Findings
from vertex_launch.facts.labels import name_findings
from vertex_launch.job.job_resource import Resource
from vertex_launch.job.spec import Job, as_json
from vertex_launch.local.api.collection import Act, Records
from vertex_launch.local.api.errors import ApiError, refuse
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.local.jobs import resource_pools
from vertex_launch.local.jobs.custom_jobs import Jobs
from vertex_launch.local.resource_file import now
from vertex_launch.rules import machines, pools, region_and_output, scheduling

MOST = 1000  # the maximum number of machines in a pool. Source: gcloud 528, ai persistent-resources create
CHANGEABLE = frozenset(("displayName", "labels", "resourcePools"))
FIXED = ("id", "machineSpec", "diskSpec")  # fields of a pool that can't change
# Rules for the machines of jobs that are also valid for persistent resources.
RULES = (
    *(pools.has_machine, machines.machine_known, machines.accelerators_fit, machines.tpu_topology),
    *(machines.disk_size, machines.disk_type, scheduling.reservation_named, scheduling.persistent_without_reservation),
    *(region_and_output.region_offers, region_and_output.named_in_full, region_and_output.persistent_resource_named),
)


class PersistentResources(Records):
    collection, message, long_running = resource_pools.COLLECTION, PersistentResource, True
    output_only = ("name", "state", "error", "create_time", "start_time", "update_time", "resource_runtime")

    def __init__(self, store: Store, jobs: Jobs) -> None:
        super().__init__(store)
        self._jobs = jobs

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"POST {self.collection}/*:reboot": lambda call, name: self.typed(self.reboot(name)),
        }

    def get(self, name: str) -> Resource:
        return resource_pools.with_use(super().get(name), self._jobs.used())

    def list(self, parent: str) -> Sequence[Resource]:
        return [resource_pools.with_use(one, self._jobs.used()) for one in super().list(parent)]

    def create(self, parent: str, message: PersistentResource, id: str = "") -> Resource:
        """Create a persistent resource.

        Raises ApiError if Vertex AI would reject the resource or if it exceeds this service's capacity.
        """
        if not id:
            refuse([Finding("persistentResourceId", "is missing", "add an ID such as cluster")])
        started = {"state": "RUNNING", "startTime": now()}
        return self._store.create(f"{parent}/{self.collection}/{id}", self._completed(parent, id, message) | started)

    def update(self, name: str, changed: Mapping[str, Any]) -> Resource:
        """Replace a persistent resource's labels, display name, or machine counts.

        Raises ApiError if the resource doesn't exist or the change isn't valid.
        """
        stored = super().get(name)
        merged = json_format.ParseDict({**stored, **changed}, PersistentResource.pb(PersistentResource()))
        parent, _, id = name.rsplit("/", 2)
        resource = self._completed(parent, id, PersistentResource(merged))
        if changed.keys() - CHANGEABLE or _fixed(resource) != _fixed(stored):
            cure = "change only labels, displayName, and the replica counts of pools, or create a new resource"
            refuse([Finding("updateMask", f"the other fields of {name} can't be changed", cure)])
        updated = self._store.update(name, **{**changed, "resourcePools": resource["resourcePools"]})
        self._jobs.dispatch()
        return updated

    def reboot(self, name: str) -> Resource:
        """Reboot all machines. An autoscaling pool restarts with its minimum number of machines.

        Raises ApiError NOT_FOUND if the resource doesn't exist, and FAILED_PRECONDITION if a job is running on it.
        """
        if any(resource == name for resource, _ in self._jobs.used()):
            raise ApiError("FAILED_PRECONDITION", f"a job is running on {name}; cancel the job, or wait until it ends")
        pools = super().get(name)["resourcePools"]
        fewest = [pool.get("autoscalingSpec", {}).get("minReplicaCount", pool["replicaCount"]) for pool in pools]
        pools = [{**pool, "replicaCount": count} for pool, count in zip(pools, fewest, strict=True)]
        return self._store.update(name, resourcePools=pools)

    def delete(self, name: str) -> None:
        """Cancel all jobs on a resource, and delete it after the jobs have ended.

        Raises ApiError NOT_FOUND if the resource doesn't exist.
        """
        self._store.update(name, state="STOPPING")  # from now on, the resource doesn't accept jobs
        self._jobs.clear(name)
        super().delete(name)

    def _updated(self, call: Call, name: str) -> Resource:
        # The SDK's update mask for the size of a Ray cluster contains a field inside the pools.
        mask = re.sub(r"(resourcePools|resource_pools)[.\w]*", r"\1", call.query.get("updateMask", ""))
        query = QueryParams({**call.query, "updateMask": mask})
        return super()._updated(replace(call, query=query), name)

    def _completed(self, parent: str, id: str, message: PersistentResource) -> dict[str, Any]:
        """Return a resource in which every pool has an ID and a machine count.

        Raises ApiError if Vertex AI would reject the resource.
        """
        refuse([*_findings(message), *self._of_rules(parent, id, message)])
        for index, pool in enumerate(message.resource_pools):
            pool.id = pool.id or f"pool-{index}"
            pool.replica_count = pool.replica_count or pool.autoscaling_spec.min_replica_count
        resource = as_json(message)
        self._jobs.require_capacity(sum(map(resource_pools.most, resource["resourcePools"])), "persistent resource")
        return resource

    def _of_rules(self, parent: str, id: str, message: PersistentResource) -> Findings:
        """Apply the job rules to a resource's machines, network, and ID, and yield the findings."""
        pools = message.resource_pools
        specs = [WorkerPoolSpec(machine_spec=pool.machine_spec, disk_spec=pool.disk_spec) for pool in pools]
        job = Job(id, id, CustomJobSpec(worker_pool_specs=specs, persistent_resource_id=id, network=message.network))
        context = self._jobs.rule_context(parent)
        for finding in (finding for rule in RULES for finding in rule.findings(job, context)):
            yield replace(finding, place=finding.place.replace("workerPoolSpecs", "resourcePools"))


def _findings(message: PersistentResource) -> Findings:
    if message.display_name:
        yield from name_findings(message.display_name)
    if "ray_spec" in message.resource_runtime_spec:
        yield Finding("resourceRuntimeSpec.raySpec", "requires Ray, which isn't supported locally", "remove it")
    if not message.resource_pools:
        yield Finding("resourcePools", "is missing", "add at least one resource pool")
    ids = [pool.id for pool in message.resource_pools]
    for index, pool in enumerate(message.resource_pools):
        if pool.id and pool.id in ids[:index]:
            yield Finding(
                f"resourcePools[{index}].id", f'"{pool.id}" is the ID of another pool', "choose a different ID"
            )
        yield from (finding.below(f"resourcePools[{index}]") for finding in _of_counts(pool))


def _of_counts(pool: ResourcePool) -> Findings:
    least, largest = pool.autoscaling_spec.min_replica_count, pool.autoscaling_spec.max_replica_count
    count = pool.replica_count or least
    if not 1 <= count <= MOST:
        yield Finding("replicaCount", f"is {count}", f"use a number from 1 to {MOST}")
    elif "autoscaling_spec" in pool and not (1 <= least <= count <= largest <= MOST and least < largest):
        fault, cure = (
            f"the range {least} to {largest} isn't valid for {count} machines",
            f"set limits that satisfy 1 <= minimum <= {count} <= maximum",
        )
        yield Finding("autoscalingSpec", fault, cure)


def _fixed(resource: Resource) -> list[Any]:
    return [[pool.get(key) for key in FIXED] for pool in resource["resourcePools"]]
