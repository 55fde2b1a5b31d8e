"""ML Metadata: contexts (experiments and runs), artifacts, executions, and their lineage.

The lineage is a graph of artifacts and executions. An event connects an execution to an artifact that the execution
reads or writes.
Source: google-cloud-aiplatform 2.7.0, types/metadata_service.py, lineage_subgraph.py and event.py, and
metadata/constants.py.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from google.cloud.aiplatform_v1.types import metadata_service as service
from google.cloud.aiplatform_v1.types.artifact import Artifact
from google.cloud.aiplatform_v1.types.context import Context
from google.cloud.aiplatform_v1.types.execution import Execution
from google.cloud.aiplatform_v1.types.metadata_store import MetadataStore

from vertex_launch.errors import Finding
from vertex_launch.job.job_resource import Resource, collection_of, id_of
from vertex_launch.job.spec import as_json
from vertex_launch.local.api import filters
from vertex_launch.local.api.collection import TYPES, Act, Collection, Records, fields, read_message
from vertex_launch.local.api.errors import ApiError, invalid, refuse
from vertex_launch.local.api.filters import IN_CONTEXT, Predicate
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.local.resource_file import now

STORES = "metadataStores"
DEFAULT = f"{STORES}/default"  # the metadata store of experiments
CONTEXTS, ARTIFACTS, EXECUTIONS = (f"{STORES}/*/{kind}" for kind in ("contexts", "artifacts", "executions"))
PARENTS = "parentContexts"
CHILDREN = "childContexts"  # a field that is only for filters
EVENTS = "events"  # an internal field of executions
NODES = {"artifacts": Artifact, "executions": Execution}
MOST_PARENTS = 10
SAMPLE = 100  # the number of names in the response to a purge without `force`
RUN, EXPERIMENT = "system.ExperimentRun", "system.Experiment"  # context schemas


def collections(store: Store) -> list[Collection]:
    return [Stores(store), Contexts(store), Artifacts(store), Executions(store)]


def create_context(store: Store, name: str, schema: str, metadata: Mapping[str, Any], experiment: str = "") -> str:
    """Create a context if it doesn't exist, and return its name. For a run, `experiment` is the parent context."""
    parent = name.rpartition("/contexts/")[0]
    if parent not in store:
        store.create(parent, {})
    if name not in store:
        shown = id_of(name).removeprefix(f"{id_of(experiment)}-")
        above = {PARENTS: [experiment]} if experiment else {}
        schemas = {"schemaTitle": schema, "schemaVersion": "0.0.1"}
        store.create(name, {"displayName": shown, **schemas, **above, "metadata": metadata, "etag": store.new_id()})
    return name


class Stores(Records):
    collection, message, long_running = STORES, MetadataStore, True


class _Nodes(Records):
    """The contexts, artifacts, or executions of a metadata store."""

    hidden = (IN_CONTEXT,)

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"POST {self.collection}:purge": self._purge}

    def _purge(self, call: Call, name: str) -> Resource:
        """Delete all resources that match a filter. Without `force`, return only the match count and sample names."""
        kind = name.rpartition("/")[2].title()
        wanted = read_message(call, getattr(service, f"Purge{kind}Request"))
        if not wanted.filter:
            raise invalid([Finding("filter", "is missing", f"set a filter that selects the {kind.lower()}")])
        matches = filters.predicate(wanted.filter, fields(self.message) | {*self.hidden})
        names = [node["name"] for node in self.list(name.rpartition("/")[0]) if matches(node)]
        if wanted.force:
            for one in names:
                self.delete(one)
        sample = {} if wanted.force else {"purgeSample": names[:SAMPLE]}
        return {"@type": f"{TYPES}cloud.aiplatform.v1.Purge{kind}Response", "purgeCount": str(len(names)), **sample}


class Contexts(_Nodes):
    """Experiments and their runs. A context can contain artifacts, executions, and other contexts."""

    collection, message, hidden = CONTEXTS, Context, (CHILDREN,)
    _linking = threading.Lock()

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"POST {CONTEXTS}/*:addContextChildren": partial(self._join, service.AddContextChildrenRequest, PARENTS),
            f"POST {CONTEXTS}/*:addContextArtifactsAndExecutions": partial(
                self._join, service.AddContextArtifactsAndExecutionsRequest, IN_CONTEXT
            ),
            f"POST {CONTEXTS}/*:removeContextChildren": self._remove_children,
            f"GET {CONTEXTS}/*:queryContextLineageSubgraph": self._lineage,
        }

    def list(self, parent: str) -> Sequence[Resource]:
        """List the contexts, newest first, with the names of their children."""
        contexts, children = super().list(parent), defaultdict[str, list[str]](list)
        for context in contexts:
            for above in context.get(PARENTS, ()):
                children[above].append(context["name"])
        return [{**context, CHILDREN: children[context["name"]]} for context in contexts]

    def delete(self, name: str) -> None:
        """Delete a context, but keep its members.

        Raises ApiError NOT_FOUND if the context doesn't exist.
        """
        with self._linking:
            super().delete(name)
            self._leave(name, PARENTS, self._store.list(_store_of(name), "contexts"))
            self._leave(name, IN_CONTEXT, _members(self._store, name))

    def _join(self, request: Any, field: str, call: Call, context: str) -> Resource:
        """Add contexts, artifacts, or executions to a context."""
        with self._linking:
            for resource in self._named(call, request, context):
                contexts = [*dict.fromkeys((*resource.get(field, ()), context))]
                if field == PARENTS and context in self._below(resource["name"]):
                    raise ApiError(
                        "INVALID_ARGUMENT", f"{resource['name']} is an ancestor of {context}; use another child"
                    )
                if field == PARENTS and len(contexts) > MOST_PARENTS:
                    fault = f"{resource['name']} already has {MOST_PARENTS} parents; remove it from one of them first"
                    raise ApiError("INVALID_ARGUMENT", fault)
                self._store.update(resource["name"], **{field: contexts})
        return {}

    def _remove_children(self, call: Call, context: str) -> Resource:
        with self._linking:
            self._leave(context, PARENTS, self._named(call, service.RemoveContextChildrenRequest, context))
        return {}

    def _leave(self, context: str, field: str, members: Sequence[Resource]) -> None:
        for member in members:
            if context in (contexts := member.get(field, ())):
                self._store.update(member["name"], **{field: [one for one in contexts if one != context] or None})

    def _named(self, call: Call, request: Any, context: str) -> Sequence[Resource]:
        """Return the resources that a request specifies. Raises ApiError if a resource isn't in the metadata store."""
        lists = [names for key, names in as_json(read_message(call, request)).items() if key != "context"]
        self._store.get(context)
        named = [self._store.get(name) for names in lists for name in names]
        store = _store_of(context)
        for resource in named:
            if not resource["name"].startswith(f"{store}/"):
                raise ApiError("INVALID_ARGUMENT", f"{resource['name']} isn't in {store}; use a resource in that store")
        return named

    def _below(self, context: str) -> set[str]:
        """Return the names of a context and of all contexts under it."""
        contexts, below = self._store.list(_store_of(context), "contexts"), set[str]()
        found = {context}
        while found - below:
            below |= found
            found = {child["name"] for child in contexts if below & {*child.get(PARENTS, ())}}
        return below

    def _lineage(self, call: Call, context: str) -> Resource:
        self._store.get(context)
        return _subgraph(self._store, {member["name"] for member in _members(self._store, context)})


class Artifacts(_Nodes):
    """The inputs and outputs of executions."""

    collection, message = ARTIFACTS, Artifact

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"GET {ARTIFACTS}/*:queryArtifactLineageSubgraph": self._lineage}

    def _lineage(self, call: Call, artifact: str) -> Resource:
        self._store.get(artifact)
        hops = call.query.get("maxHops", "")
        if not hops.isdecimal() and hops:
            raise invalid([Finding("maxHops", f'"{hops}" isn\'t a whole number', "use 0 or more")])
        matches = filters.predicate(call.query.get("filter", ""), fields(Artifact))
        return _around(self._store, artifact, matches, int(hops) if hops else None)


class Executions(_Nodes):
    """The workflow steps that read and write artifacts."""

    collection, message = EXECUTIONS, Execution
    _adding = threading.Lock()

    def methods(self) -> dict[str, Act]:
        return super().methods() | {
            f"POST {EXECUTIONS}/*:addExecutionEvents": self._add_events,
            f"GET {EXECUTIONS}/*:queryExecutionInputsAndOutputs": self._inputs_and_outputs,
        }

    def _add_events(self, call: Call, name: str) -> Resource:
        """Add events that connect artifacts to an execution. Skip artifacts that already have an event."""
        events = as_json(read_message(call, service.AddExecutionEventsRequest)).get("events", [])
        cures = {"artifact": "set an artifact name", "type": "set INPUT or OUTPUT"}
        places = [(f"events[{i}].{key}", key) for i, event in enumerate(events) for key in cures if key not in event]
        refuse(Finding(place, "is missing", cures[key]) for place, key in places)
        for event in events:
            if _store_of(self._store.get(event["artifact"])["name"]) != _store_of(name):
                raise ApiError(
                    "INVALID_ARGUMENT", f"{event['artifact']} isn't in {_store_of(name)}; use an artifact in that store"
                )
        with self._adding:
            kept = {event["artifact"]: event for event in self._store.get(name).get(EVENTS, ())}
            added = {event["artifact"]: {**event, "execution": name, "eventTime": now()} for event in events}
            self._store.update(name, **{EVENTS: [*(added | kept).values()]})
        return {}

    def _inputs_and_outputs(self, call: Call, name: str) -> Resource:
        artifacts = {event["artifact"] for event in self._store.get(name).get(EVENTS, ())}
        return _subgraph(self._store, {name, *artifacts})


def _store_of(name: str) -> str:
    """Return the name of the metadata store that contains this resource."""
    return name.rsplit("/", 2)[0]


def _members(store: Store, context: str) -> Sequence[Resource]:
    nodes = [node for kind in ("artifacts", "executions") for node in store.list(_store_of(context), kind)]
    return [node for node in nodes if context in node.get(IN_CONTEXT, ())]


def _subgraph(store: Store, names: Iterable[str]) -> Resource:
    """Return a LineageSubgraph with the existing artifacts and executions in `names`, and their events."""
    nodes = {name: store.get(name) for name in sorted(names) if name in store}
    graph: dict[str, Any] = {kind: [] for kind in NODES}
    for name, node in nodes.items():
        kind = collection_of(name)
        graph[kind].append({key: value for key, value in node.items() if key in fields(NODES[kind])})
    events = [event for node in nodes.values() for event in node.get(EVENTS, ())]
    return graph | {"events": [event for event in events if event["artifact"] in nodes]}


def _around(store: Store, artifact: str, matches: Predicate, hops: int | None) -> Resource:
    """Return the lineage subgraph within `hops` events of an artifact. If `hops` is None, the distance isn't limited.

    Follow only artifacts for which `matches` returns true.
    """
    parent = _store_of(artifact)
    excluded = {one["name"] for one in store.list(parent, "artifacts") if not matches(one)} - {artifact}
    events = [event for execution in store.list(parent, "executions") for event in execution.get(EVENTS, ())]
    joined = [{event["artifact"], event["execution"]} for event in events if event["artifact"] not in excluded]
    found, reached = {artifact}, set[str]()
    while found != reached and hops != 0:
        reached, found = found, found.union(*(pair for pair in joined if pair & found))
        hops = hops and hops - 1
    return _subgraph(store, found)
