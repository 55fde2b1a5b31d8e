"""Lineage: artifacts and executions, joined by events that say what an execution reads and writes.

Source: google-cloud-aiplatform 2.7.0, types/lineage_subgraph.py and types/event.py.
"""

from collections.abc import Iterable, Set

from google.cloud.aiplatform_v1.types.artifact import Artifact
from google.cloud.aiplatform_v1.types.execution import Execution

from vertex_launch.job_resource import Resource, collection_of
from vertex_launch.local.api.collection import fields
from vertex_launch.local.api.filters import Predicate
from vertex_launch.local.api.store import Store

EVENTS = "events"  # a field of ours, of executions
NODES = {"artifacts": Artifact, "executions": Execution}


def subgraph(store: Store, names: Iterable[str]) -> Resource:
    """Return these artifacts and executions, as far as they exist, and the events between them: a LineageSubgraph."""
    nodes = {name: store.get(name) for name in sorted(names) if name in store}
    joined = [event for node in nodes.values() for event in node.get(EVENTS, ()) if event["artifact"] in nodes]
    lists = {
        kind: [_public(node, kind) for name, node in nodes.items() if collection_of(name) == kind] for kind in NODES
    }
    return lists | {"events": joined}


def around(store: Store, artifact: str, matches: Predicate, hops: int | None) -> Resource:
    """Return what is at most so many events away from an artifact, over artifacts that match; None for all."""
    parent = artifact.rsplit("/", 2)[0]
    excluded = {one["name"] for one in store.list(parent, "artifacts") if not matches(one)} - {artifact}
    events = [event for execution in store.list(parent, "executions") for event in execution.get(EVENTS, ())]
    joined = [(event["artifact"], event["execution"]) for event in events if event["artifact"] not in excluded]
    found, reached = {artifact}, set[str]()
    while found != reached and hops != 0:
        reached, found = found, found | _neighbours(found, joined)
        hops = hops and hops - 1
    return subgraph(store, found)


def _neighbours(names: Set[str], joined: Iterable[tuple[str, str]]) -> set[str]:
    return {name for pair in joined if names & {*pair} for name in pair}


def _public(node: Resource, kind: str) -> Resource:
    """A node without fields of ours."""
    return {key: value for key, value in node.items() if key in fields(NODES[kind])}
