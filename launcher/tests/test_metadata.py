"""What Google's Python client notes about artifacts and executions, as it is, against the local Vertex."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import aiplatform
from google.cloud.aiplatform.metadata import metadata as sdk_metadata

from launcher.tests.sdk import init, prepare
from launcher.tests.vertex import BY_ID, PARENT, Service, service

METADATA = f"{PARENT}/metadataStores/default"
CONTEXTS = f"{METADATA}/contexts"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex"), "--grace-seconds", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def _client(vertex: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepare(vertex, monkeypatch)
    yield
    sdk_metadata._experiment_tracker.reset()


def artifact(name: str, **metadata: Any) -> aiplatform.Artifact:
    return aiplatform.Artifact.create("system.Dataset", resource_id=name, display_name=name, metadata=metadata)


def execution(name: str, read: list[aiplatform.Artifact], written: list[aiplatform.Artifact]) -> aiplatform.Execution:
    with aiplatform.start_execution(
        schema_title="system.ContainerExecution", resource_id=name, display_name=name
    ) as step:
        step.assign_input_artifacts(read)
        step.assign_output_artifacts(written)
    return aiplatform.Execution(name)


def test_metadata_and_an_address_stay_as_the_client_wrote_them(vertex: Service) -> None:
    names = {"by_number": f"{PARENT}/datasets/1", "by_id": f"{BY_ID}/datasets/1"}
    addresses = [f"https://host/v1/{name}" for name in names.values()]
    made = [aiplatform.Artifact.create("system.Dataset", uri=address, metadata=names) for address in addresses]
    assert [one.metadata for one in made] == [names, names]
    assert [one.uri for one in made] == addresses


def service_client() -> Any:
    return aiplatform.Artifact._instantiate_client().select_version("v1")


def ids(nodes: Any) -> list[str]:
    return sorted(node.name.rpartition("/")[2] for node in nodes)


def test_an_execution_has_inputs_and_outputs() -> None:
    raw, clean = artifact("io-raw"), artifact("io-clean")
    step = execution("io-step", [raw], [clean])
    step.assign_input_artifacts([raw])  # which is one already
    assert (ids(step.get_input_artifacts()), ids(step.get_output_artifacts())) == (["io-raw"], ["io-clean"])
    clean.delete()
    assert aiplatform.Execution("io-step").get_output_artifacts() == []


def test_lineage_goes_over_executions_in_both_directions() -> None:
    nodes = [artifact(f"line-{letter}") for letter in "abc"]
    execution("line-1", nodes[:1], nodes[1:2])
    execution("line-2", nodes[1:2], nodes[2:])
    client, name = service_client(), nodes[0].resource_name

    def found(**asked: Any) -> tuple[list[str], list[str], int]:
        graph = client.query_artifact_lineage_subgraph(request={"artifact": name, **asked})
        return ids(graph.artifacts), ids(graph.executions), len(graph.events)

    assert found() == (["line-a", "line-b", "line-c"], ["line-1", "line-2"], 4)
    assert found(max_hops=2) == (["line-a", "line-b"], ["line-1"], 2)
    assert found(max_hops=1) == (["line-a"], ["line-1"], 1)
    assert found(filter='display_name!="line-b"') == (["line-a"], ["line-1"], 1)


def test_a_run_has_the_artifacts_and_executions_of_its_time(vertex: Service) -> None:
    init(vertex, experiment="lineage")
    run = aiplatform.start_run("r")
    own = artifact("of-run")
    with aiplatform.start_execution(schema_title="system.ContainerExecution", display_name="train") as step:
        step.assign_output_artifacts([own])
    run.associate_execution(step)
    context = aiplatform.Context("lineage-r")
    context.add_artifacts_and_executions(artifact_resource_names=[own.resource_name])
    assert "of-run" in ids(run.get_artifacts())
    assert ids(run.get_executions()) == [step.name]
    graph = context.query_lineage_subgraph()
    assert [(event.artifact, event.execution) for event in graph.events] == [(own.resource_name, step.resource_name)]


def test_what_is_deleted_has_no_members() -> None:
    context = aiplatform.Context.create("system.Experiment", resource_id="again")
    context.add_artifacts_and_executions(artifact_resource_names=[artifact("of-again").resource_name])
    child = aiplatform.Context.create("system.ExperimentRun", resource_id="again-r")
    context.add_context_children([child])
    context.delete()
    context = aiplatform.Context.create("system.Experiment", resource_id="again")
    assert context.get_artifacts() == []
    assert aiplatform.Context("again-r").parent_contexts == []


def test_contexts_form_families_without_circles(vertex: Service) -> None:
    top, middle, bottom = (aiplatform.Context.create("system.Experiment", resource_id=f"family-{i}") for i in range(3))
    top.add_context_children([middle])
    middle.add_context_children([bottom])

    def listed(expression: str) -> list[str]:
        return ids(aiplatform.Context.list(filter=expression))

    assert listed(f'parent_contexts:"{top.resource_name}"') == ["family-1"]
    assert listed(f'child_contexts:"{bottom.resource_name}"') == ["family-1"]
    status, refused = vertex.call(
        "POST", f"/v1/{bottom.resource_name}:addContextChildren", {"childContexts": [top.resource_name]}
    )
    assert status == 400
    message = f"{top.resource_name} is an ancestor of {bottom.resource_name}".replace(PARENT, BY_ID)
    assert message in refused["error"]["message"]
    service_client().remove_context_children(context=top.resource_name, child_contexts=[middle.resource_name])
    assert listed(f'parent_contexts:"{top.resource_name}"') == []
    assert listed(f'parent_contexts:"{middle.resource_name}"') == ["family-2"]


def test_artifacts_are_found_by_what_they_hold() -> None:
    artifact("held", rows=10, split="train", clean=True)
    artifact("other", rows="10", split="test", clean=False)

    def listed(expression: str) -> list[str]:
        return ids(aiplatform.Artifact.list(filter=f'schema_title="system.Dataset" AND {expression}'))

    assert listed("metadata.rows.number_value=10.0") == ["held"]
    assert listed('metadata.rows.string_value="10"') == ["other"]
    assert listed('metadata.split.string_value="train"') == ["held"]
    assert listed("metadata.clean.bool_value=false") == ["other"]


def test_a_purge_deletes_what_it_has_announced() -> None:
    for name in ("purge-a", "purge-b", "keep"):
        artifact(name)
    client, asked = service_client(), {"parent": METADATA, "filter": 'display_name="purge-*"'}
    announced = client.purge_artifacts(request=asked).result()
    assert [name.rpartition("/")[2] for name in sorted(announced.purge_sample)] == ["purge-a", "purge-b"]
    assert client.purge_artifacts(request={**asked, "force": True}).result().purge_count == announced.purge_count == 2
    assert ids(aiplatform.Artifact.list(filter='display_name="purge-*" OR display_name="keep"')) == ["keep"]


@pytest.mark.parametrize(
    ("method", "address", "body", "status", "message"),
    [
        ("POST", "executions/s:addExecutionEvents", {"events": [{}]}, 400, "events[0].artifact: is missing; set"),
        (
            "POST",
            "executions/s:addExecutionEvents",
            {"events": [{"artifact": "x", "type": "INPUT"}]},
            404,
            "x does not",
        ),
        ("GET", "executions/none:queryExecutionInputsAndOutputs", None, 404, "executions/none does not exist"),
        (
            "GET",
            "artifacts/a:queryArtifactLineageSubgraph?maxHops=-1",
            None,
            400,
            'maxHops: "-1" isn\'t a whole number',
        ),
        ("GET", "contexts?filter=in_context(%22x%22)", None, 400, '"in_context" isn\'t a field of this resource'),
        ("GET", "artifacts?filter=metadata.rows=10", None, 400, "doesn't end with a value type"),
        ("POST", "artifacts:purge", {"filter": "shoe_size=1"}, 400, '"shoe_size" isn\'t a field of this resource'),
    ],
)
def test_a_refusal_says_why(vertex: Service, method: str, address: str, body: Any, status: int, message: str) -> None:
    for node in ("executions?executionId=s", "artifacts?artifactId=a"):
        aiplatform.Experiment.get_or_create("own")
        vertex.call("POST", f"/v1/{METADATA}/{node}", {})
    actual, refused = vertex.call(method, f"/v1/{METADATA}/{address}", body)
    assert (actual, message in refused["error"]["message"]) == (status, True), refused
