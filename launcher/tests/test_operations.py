"""Operations, locations and partial answers, as every API of Google Cloud has them."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.api_core.exceptions import InvalidArgument, NotFound
from google.cloud.aiplatform_v1 import (
    DatasetServiceClient,
    JobServiceClient,
    MetadataServiceClient,
    ModelServiceClient,
    TensorboardServiceClient,
)
from google.cloud.aiplatform_v1.services.dataset_service.transports.grpc import DatasetServiceGrpcTransport
from google.cloud.aiplatform_v1.services.job_service.transports.grpc import JobServiceGrpcTransport
from google.cloud.aiplatform_v1.services.metadata_service.transports.grpc import MetadataServiceGrpcTransport
from google.cloud.aiplatform_v1.types import Context, CustomJob, Dataset, MetadataStore, Model, Tensorboard

from launcher.tests.running import DEADLINE
from launcher.tests.sdk import gapic
from launcher.tests.vertex import BY_ID, PARENT, Service, custom_job, script, service
from vertex_launch.local.api import field_mask
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.running.hosts import LOOPBACK
from vertex_launch.local.wire import bridge

TEXTS = "gs://google-cloud-aiplatform/schema/dataset/metadata/text_1.0.0.yaml"


@pytest.fixture(scope="module")
def vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as running:
        yield running


@pytest.fixture(scope="module")
def channel(vertex: Service) -> Any:
    """Of gRPC, as a replica's proxy leads it."""
    return grpc.insecure_channel(f"{LOOPBACK}:{bridge.serve(vertex.endpoint, LOOPBACK)}")


@pytest.fixture(params=["rest", "grpc"])
def client(vertex: Service, channel: Any, request: pytest.FixtureRequest) -> DatasetServiceClient:
    if request.param == "grpc":
        return DatasetServiceClient(transport=DatasetServiceGrpcTransport(channel=channel))
    return gapic(DatasetServiceClient, vertex)


def made(client: DatasetServiceClient) -> Any:
    """The operation of a new dataset."""
    dataset = Dataset(display_name="texts", metadata_schema_uri=TEXTS)
    return client.create_dataset(parent=PARENT, dataset=dataset).operation


def waited(client: DatasetServiceClient, name: str, known: Any) -> Any:
    """The operation that `wait_operation` returns, of a known type; over gRPC, the client 2.7.0 returns its bytes."""
    operation = client.wait_operation({"name": name})
    return type(known).FromString(operation) if isinstance(operation, bytes) else operation


def test_an_operation_lies_below_its_resource_and_is_done(client: DatasetServiceClient) -> None:
    operation = made(client)
    dataset = client.list_datasets(parent=PARENT).datasets[0].name
    assert operation.name.startswith(f"{dataset}/operations/")
    assert client.get_operation({"name": operation.name}) == operation
    assert waited(client, operation.name, operation) == operation
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


def test_an_operation_is_found_by_its_location_and_id_as_gcloud_asks(client: DatasetServiceClient) -> None:
    operation = made(client)
    name = f"{PARENT}/operations/{operation.name.rpartition('/')[2]}"
    assert client.get_operation({"name": name}) == waited(client, name, operation) == operation
    with pytest.raises(NotFound):
        client.get_operation({"name": name.replace("us-central1", "us-east1")})


def test_every_operation_has_the_metadata_of_its_kind(vertex: Service, channel: Any) -> None:
    """The clients know by which type they read it."""
    boards, models = gapic(TensorboardServiceClient, vertex), gapic(ModelServiceClient, vertex)
    metadata = MetadataServiceClient(transport=MetadataServiceGrpcTransport(channel=channel))
    store = metadata.create_metadata_store(parent=PARENT, metadata_store_id="default", metadata_store=MetadataStore())
    context = metadata.create_context(parent=store.result().name, context=Context(metadata={"a": 1}))
    board = boards.create_tensorboard(parent=PARENT, tensorboard=Tensorboard(display_name="board"))
    model = models.upload_model(parent=PARENT, model=Model(display_name="model"))
    operations = [
        *(store, metadata.purge_contexts(request={"parent": store.result().name, "filter": "display_name=none"})),
        *(metadata.delete_context(name=context.name), metadata.delete_metadata_store(name=store.result().name)),
        *(board, boards.update_tensorboard(tensorboard=board.result(), update_mask={"paths": ["display_name"]})),
        *(model, models.copy_model(parent=f"{BY_ID[:-1]}2", source_model=model.result().model)),
        *(boards.delete_tensorboard(name=board.result().name), models.delete_model(name=model.result().model)),
    ]
    for operation in operations:
        assert operation.metadata.generic_metadata.create_time
    # An answer that a client cannot read would fail here: an operation holds no field of ours.
    listed = boards.list_operations({"name": PARENT}).operations
    assert len(listed) == len(metadata.list_operations({"name": PARENT}).operations) >= len(operations)


@pytest.mark.parametrize("path", ["displayName", "display_name"])
def test_a_mask_names_fields_in_either_case(vertex: Service, channel: Any, path: str) -> None:
    client = DatasetServiceClient(transport=DatasetServiceGrpcTransport(channel=channel))
    name = made(client).name.partition("/operations/")[0]
    changed = Dataset(name=name, display_name=path)
    assert client.update_dataset(dataset=changed, update_mask={"paths": [path]}).display_name == path


def test_an_error_keeps_its_details_over_grpc(channel: Any) -> None:
    client = JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))
    with pytest.raises(InvalidArgument, match="displayName: is missing") as raised:
        client.create_custom_job(parent=PARENT, custom_job=CustomJob())
    assert raised.value.details[0].field_violations[0].field == "displayName"


def test_what_json_cannot_carry_is_refused_in_a_sentence(channel: Any) -> None:
    contexts = MetadataServiceClient(transport=MetadataServiceGrpcTransport(channel=channel))
    with pytest.raises(InvalidArgument, match="NaN"):
        contexts.create_context(parent=f"{PARENT}/metadataStores/s", context=Context(metadata={"loss": float("nan")}))
    call = channel.unary_unary("/google.cloud.aiplatform.v1.JobService/GetCustomJob")
    for body, fault in ((b"\xff\xff", "parsing"), (b"\x0a\x01a\xfa\x3f\x01b", "google-cloud-aiplatform release")):
        with pytest.raises(grpc.RpcError, match=fault) as raised:
            call(body, timeout=DEADLINE)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "method",
    [
        "google.storage.v2.Storage/ReadObject",
        "google.pubsub.v1.Publisher/Publish",
        "google.cloud.aiplatform.v1.JobService/Nothing",
        "google.cloud.aiplatform.v1.PredictionService/StreamDirectPredict",
    ],
)
def test_another_service_gets_one_sentence_over_grpc(channel: Any, method: str) -> None:
    with pytest.raises(grpc.RpcError, match=f"{method} isn't available locally") as raised:
        next(channel.stream_stream(f"/{method}")(iter([b""]), timeout=DEADLINE))
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_whoever_asks_for_permissions_has_them(client: DatasetServiceClient, vertex: Service) -> None:
    model = vertex.call("POST", f"/v1/{PARENT}/models:upload", {"model": {"displayName": "m"}})[1]["response"]["model"]
    asked = ["aiplatform.models.get", "aiplatform.models.delete"]
    assert client.test_iam_permissions({"resource": model, "permissions": asked}).permissions == asked


def test_a_deleted_operation_is_gone(client: DatasetServiceClient) -> None:
    name = made(client).name
    client.delete_operation({"name": name})
    for method in (client.get_operation, client.wait_operation, client.cancel_operation, client.delete_operation):
        with pytest.raises(NotFound):
            method({"name": name})


def test_the_locations_are_regions(client: DatasetServiceClient, vertex: Service) -> None:
    listed = client.list_locations({"name": "projects/p"}).locations
    assert client.get_location({"name": "projects/p/locations/eu"}).location_id == "eu"
    assert ("us-central1", BY_ID) in [(location.location_id, location.name) for location in listed]
    assert client.get_location({"name": PARENT}).location_id == "us-central1"
    status, answer = vertex.call("GET", "/v1/projects/p/locations/mars")
    assert (status, answer["error"]["message"]) == (
        404,
        'location "mars" doesn\'t exist; use a region such as us-central1',
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
    with pytest.raises(ApiError, match=r"fields: .* isn't a field mask; use one such as name,customJobs"):
        field_mask.parse({"fields": text})


def test_a_star_stands_for_every_field() -> None:
    answer = {"a": {"x": 1, "y": 2}, "b": {"x": 3}, "c": 4}
    assert field_mask.selected(answer, field_mask.parse({"fields": "*/x"})) == {"a": {"x": 1}, "b": {"x": 3}, "c": 4}
    assert field_mask.selected(answer, field_mask.parse({"fields": "*"})) == answer
