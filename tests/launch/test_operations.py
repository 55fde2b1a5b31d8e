"""Operations, locations and partial answers, as every API of Google Cloud has them."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import DatasetServiceClient
from google.cloud.aiplatform_v1.types import Dataset

from tests.launch.vertex import BY_ID, PARENT, Service, custom_job, script, service
from vertex_launch.local.api import field_mask
from vertex_launch.local.api.errors import ApiError

TEXTS = "gs://google-cloud-aiplatform/schema/dataset/metadata/text_1.0.0.yaml"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as running:
        yield running


@pytest.fixture
def client(vertex: Service) -> DatasetServiceClient:
    options = {"api_endpoint": vertex.endpoint}
    return DatasetServiceClient(credentials=AnonymousCredentials(), transport="rest", client_options=options)


def made(client: DatasetServiceClient) -> Any:
    """The operation of a new dataset."""
    dataset = Dataset(display_name="texts", metadata_schema_uri=TEXTS)
    return client.create_dataset(parent=PARENT, dataset=dataset).operation


def test_an_operation_lies_below_its_resource_and_is_done(client: DatasetServiceClient) -> None:
    operation = made(client)
    dataset = client.list_datasets(parent=PARENT).datasets[0].name
    assert operation.name.startswith(f"{dataset}/operations/")
    assert client.get_operation({"name": operation.name}) == operation
    assert client.wait_operation({"name": operation.name}) == operation
    client.cancel_operation({"name": operation.name})
    assert client.get_operation({"name": operation.name}).done


def test_operations_are_listed_for_a_resource_and_for_a_location(client: DatasetServiceClient) -> None:
    first, second = made(client), made(client)
    listed = client.list_operations({"name": PARENT})
    assert [operation.name for operation in listed.operations][:2] == [second.name, first.name]
    dataset = first.name.partition("/operations/")[0]
    assert client.list_operations({"name": dataset}).operations == [first]
    asked = {"name": PARENT, "page_size": 1, "filter": "done=true"}
    assert client.list_operations(asked).next_page_token


def test_a_deleted_operation_is_gone(client: DatasetServiceClient) -> None:
    name = made(client).name
    client.delete_operation({"name": name})
    for method in (client.get_operation, client.wait_operation, client.cancel_operation, client.delete_operation):
        with pytest.raises(NotFound):
            method({"name": name})


def test_the_locations_are_regions(client: DatasetServiceClient, vertex: Service) -> None:
    listed = client.list_locations({"name": "projects/p"}).locations
    assert ("us-central1", BY_ID) in [(location.location_id, location.name) for location in listed]
    assert client.get_location({"name": PARENT}).location_id == "us-central1"
    status, answer = vertex.call("GET", "/v1/projects/p/locations/mars")
    assert (status, answer["error"]["message"]) == (
        404,
        'there is no location "mars"; use a region such as us-central1',
    )


@pytest.mark.parametrize("parameter", ["fields", "$fields"])
def test_an_answer_has_the_fields_that_a_mask_names(vertex: Service, parameter: str) -> None:
    name = vertex.create(custom_job(*script("pass"), name="masked"))
    assert vertex.get(f"{name}?{parameter}=name,display_name") == {"name": name, "displayName": "masked"}
    listed = vertex.get(
        f"{PARENT}/customJobs?{parameter}={quote('customJobs(name,jobSpec/workerPoolSpecs(replicaCount))')}"
    )
    assert listed["customJobs"][0] == {"name": name, "jobSpec": {"workerPoolSpecs": [{"replicaCount": "1"}]}}
    assert vertex.call("GET", f"/v1/{PARENT}/customJobs/7?{parameter}=name")[1]["error"]["code"] == 404


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("", {}),
        ("a", {"a": {}}),
        ("a,b_c", {"a": {}, "bC": {}}),
        ("a/b/c,a.d", {"a": {"b": {"c": {}}, "d": {}}}),
        ("a(b,c(d)),e", {"a": {"b": {}, "c": {"d": {}}}, "e": {}}),
        ("items( name , */x ) , a", {"items": {"name": {}, "*": {"x": {}}}, "a": {}}),
    ],
)
def test_a_mask_has_names_paths_and_parentheses(text: str, mask: dict[str, Any]) -> None:
    assert field_mask.parse({"fields": text}) == mask


@pytest.mark.parametrize("text", ["a,", ",a", "a(", "a)", "a(b))", "a()", "(a)", "a b", "a(b)c", "a//b", " "])
def test_a_mask_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match=r"fields: .* cannot be read; write it as in name,customJobs"):
        field_mask.parse({"fields": text})


def test_a_star_stands_for_every_field() -> None:
    answer = {"a": {"x": 1, "y": 2}, "b": {"x": 3}, "c": 4}
    assert field_mask.selected(answer, field_mask.parse({"fields": "*/x"})) == {"a": {"x": 1}, "b": {"x": 3}, "c": 4}
    assert field_mask.selected(answer, field_mask.parse({"fields": "*"})) == answer
