"""Models and their versions, as pipelines register them and as Google's client writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, GoogleAPICallError, NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform.models import ModelRegistry

from launcher.tests.sdk import prepare
from launcher.tests.vertex import BY_ID, PARENT, Json, Service, service
from vertex_launch.job.job_resource import Resource
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry.models import Models

ARTIFACT = "gs://b/run/model"


@pytest.fixture
def ours(tmp_path: Path) -> Models:
    (tmp_path / "gcs/b/run/model/deep").mkdir(parents=True)
    (tmp_path / "gcs/b/run/model/deep/weights").touch()
    (tmp_path / "gcs/b/empty/model/deep").mkdir(parents=True)
    return Models(Store(tmp_path))


def upload(ours: Models, name: str = "digits", parent_model: str = "", model_id: str = "", **more: Any) -> Resource:
    container = {"imageUri": "server"}
    model = {"displayName": name, "containerSpec": container, "labels": {"team": "ours"}, "artifactUri": ARTIFACT}
    return ours.upload(BY_ID, {**model, "trainingPipeline": f"{BY_ID}/t/1", **more}, model_id, parent_model)


def versions(ours: Models, name: str) -> list[tuple[str, list[str]]]:
    return [(one["versionId"], one["versionAliases"]) for one in ours.list_versions(name)]


def test_an_upload_is_version_1_and_the_default(ours: Models) -> None:
    model = upload(ours)
    assert model["name"].startswith(f"{BY_ID}/models/")
    assert "@" not in model["name"]
    assert (model["versionId"], model["versionAliases"]) == ("1", ["default"])
    assert model["artifactUri"] == ARTIFACT
    assert model["trainingPipeline"] == f"{BY_ID}/t/1"
    assert (model["displayName"], model["labels"]) == ("digits", {"team": "ours"})
    assert model["createTime"] == model["versionCreateTime"]


@pytest.mark.parametrize("version", ["@1", "@default", "@stable"])
def test_a_model_is_found_by_number_and_by_alias(ours: Models, version: str) -> None:
    model = upload(ours, versionAliases=["stable", "default"])
    assert ours.get(model["name"]) == model
    assert ours.get(f"{model['name']}{version}") == {**model, "name": f"{model['name']}@1"}


@pytest.mark.parametrize("name", ["{name}@2", "{name}@other", "{name}1", "projects/p/locations/l/models/1"])
def test_what_is_not_there_is_not_found(ours: Models, name: str) -> None:
    wanted = name.format(name=upload(ours)["name"])
    with pytest.raises(ApiError) as caught:
        ours.get(wanted)
    assert (caught.value.status, str(caught.value)) == ("NOT_FOUND", f"{wanted} does not exist")


def test_a_new_version_of_a_model_takes_the_aliases_it_asks_for(ours: Models) -> None:
    first = upload(ours, versionAliases=["stable", "default"])
    second = upload(ours, "digits again", parent_model=first["name"], versionAliases=["default"])
    third = upload(ours, parent_model=f"{first['name']}@2", versionAliases=["canary"])
    assert (second["name"], third["versionId"]) == (first["name"], "3")
    assert versions(ours, first["name"]) == [("1", ["stable"]), ("2", ["default"]), ("3", ["canary"])]
    assert ours.get(first["name"])["displayName"] == "digits again"
    assert third["createTime"] == first["createTime"] < third["versionCreateTime"]


def test_the_names_of_versions_in_a_list_differ(ours: Models) -> None:
    name = upload(ours)["name"]
    upload(ours, parent_model=name)
    assert [one["name"] for one in ours.list_versions(name)] == [f"{name}@1", f"{name}@2"]


def test_a_list_has_every_model_once_in_its_default_version(ours: Models) -> None:
    first = upload(ours, "first")
    second = upload(ours, "second", model_id="second")
    upload(ours, "canary", parent_model=first["name"], versionAliases=["canary"])
    assert second["name"] == f"{BY_ID}/models/second"
    assert [model["displayName"] for model in ours.list(BY_ID)] == ["second", "first"]
    assert ours.list("projects/p/locations/europe-west4") == []


def test_a_version_is_deleted_and_the_default_one_only_with_its_model(ours: Models) -> None:
    name = upload(ours)["name"]
    upload(ours, parent_model=name, versionAliases=["default"])
    with pytest.raises(ApiError, match="is the default version; delete the model"):
        ours.delete_version(f"{name}@default")
    ours.delete_version(f"{name}@1")
    assert versions(ours, name) == [("2", ["default"])]
    ours.delete(name)
    with pytest.raises(ApiError, match="does not exist"):
        ours.get(name)


@pytest.mark.parametrize("artifact", ["gs://b/empty/model", "gs://b/nowhere/model", "gs://b/../gcs/b", "b"])
def test_a_folder_without_a_file_is_no_model(ours: Models, artifact: str) -> None:
    with pytest.raises(ApiError, match=r"is empty, so it doesn't contain a model; save the model in that folder\. A"):
        ours.upload(BY_ID, {"displayName": "digits", "artifactUri": artifact})
    assert ours.list(BY_ID) == []


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"parent_model": f"{BY_ID}/models/7"}, "NOT_FOUND", "models/7 does not exist"),
        ({"parent_model": "projects/other/locations/l/models/7"}, "INVALID_ARGUMENT", "isn't under"),
        ({"model_id": "7seven"}, "INVALID_ARGUMENT", 'modelId: "7seven" isn\'t a valid ID'),
        ({"model_id": "taken"}, "ALREADY_EXISTS", "set it as parentModel"),
        ({"versionAliases": ["2"]}, "INVALID_ARGUMENT", 'versionAliases: "2" isn\'t a valid alias'),
    ],
)
def test_a_wrong_upload_is_refused_with_the_field(ours: Models, more: dict[str, Any], status: str, words: str) -> None:
    upload(ours, model_id="taken")
    with pytest.raises(ApiError, match=words) as caught:
        upload(ours, **more)
    assert caught.value.status == status
    assert len(ours.list(BY_ID)) == 1


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ({}, "modelToUpload.displayName"),
        ({"displayName": "m" * 129}, "modelToUpload.displayName"),
        ({"displayName": "m", "labels": {"team": "Vision"}}, "modelToUpload.labels.team"),
    ],
)
def test_names_and_labels_are_looked_at_before_anything_trains(ours: Models, model: Resource, place: str) -> None:
    with pytest.raises(ApiError) as refused:
        ours.check(BY_ID, model)
    assert [finding.place for finding in refused.value.findings] == [place]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("vertex")) as vertex:
        yield vertex


@pytest.fixture
def vertex(running: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    prepare(running, monkeypatch)
    weights = running.state_dir / "gcs/b/run/model/deep/weights"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_text("1.5")
    return running


def uploaded(name: str = "digits", **more: Any) -> aiplatform.Model:
    given: Json = {"artifact_uri": ARTIFACT, "serving_container_image_uri": "server", **more}
    model: aiplatform.Model = aiplatform.Model.upload(display_name=name, **given)
    return model


def aliases(registry: ModelRegistry) -> dict[str, list[str]]:
    return {version.version_id: sorted(version.version_aliases or ()) for version in registry.list_versions()}


def test_an_uploaded_model_has_its_container_and_what_such_a_model_supports(vertex: Service) -> None:
    model = uploaded(
        description="ten classes",
        serving_container_predict_route="/predict",
        serving_container_ports=[8080],
        serving_container_environment_variables={"RATE": "1"},
        labels={"team": "ours"},
    )
    assert (model.uri, model.version_id, model.description) == (ARTIFACT, "1", "ten classes")
    assert (model.labels, model.version_aliases) == ({"team": "ours"}, ["default"])
    container = model.gca_resource.container_spec
    assert (container.image_uri, container.predict_route) == ("server", "/predict")
    assert [port.container_port for port in container.ports] == [8080]
    assert [kind.name for kind in model.supported_deployment_resources_types] == ["DEDICATED_RESOURCES"]
    assert "jsonl" in model.supported_input_storage_formats
    assert model.supported_output_storage_formats == ["jsonl", "bigquery"]
    assert {id: [one.name for one in kinds] for id, kinds in model.supported_export_formats.items()} == {
        "custom-trained": ["ARTIFACT"]
    }


def test_a_model_needs_no_artifacts_but_none_that_are_missing(vertex: Service) -> None:
    model = uploaded(artifact_uri=None)
    assert model.uri is None
    assert model.supported_export_formats == {}
    with pytest.raises(BadRequest, match="gs://b/nowhere is empty, so it doesn't contain a model"):
        uploaded(artifact_uri="gs://b/nowhere")


def test_a_local_folder_is_uploaded_with_its_model(vertex: Service, tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_text("weights")
    model = uploaded(artifact_uri=str(tmp_path))
    folder = vertex.state_dir / "gcs" / str(model.uri).removeprefix("gs://")
    assert (folder / "model.pkl").read_text() == "weights"


def test_versions_share_a_name_and_aliases_move_between_them(vertex: Service) -> None:
    first = uploaded(model_id="shared", version_aliases=["stable"])
    second = uploaded(parent_model="shared", is_default_version=False, version_description="wider")
    assert second.resource_name == first.resource_name == f"{PARENT}/models/shared"
    registry = aiplatform.models.ModelRegistry("shared")
    assert aliases(registry) == {"1": ["default", "stable"], "2": []}
    registry.add_version_aliases(["stable", "canary"], "2")
    assert aliases(registry) == {"1": ["default"], "2": ["canary", "stable"]}
    registry.remove_version_aliases(["canary"], "stable")
    registry.add_version_aliases(["default"], "2")
    assert aliases(registry) == {"1": [], "2": ["default", "stable"]}
    assert registry.get_model("stable").version_description == "wider"
    registry.delete_version("1")
    assert aliases(registry) == {"2": ["default", "stable"]}
    with pytest.raises(GoogleAPICallError, match="is the default version; to move the alias, assign"):
        registry.remove_version_aliases(["default"], "2")
    with pytest.raises(BadRequest, match='versionAliases: "2" isn\'t a valid alias'):
        registry.add_version_aliases(["2"], "2")
    first.delete()
    with pytest.raises(NotFound):
        aiplatform.Model("shared")


def test_a_model_is_updated_in_all_versions_and_a_version_alone(vertex: Service) -> None:
    model = uploaded(model_id="updated")
    uploaded(parent_model="updated", is_default_version=False)
    model.update(display_name="renamed", description="new", labels={"team": "theirs"})
    registry = aiplatform.models.ModelRegistry("updated")
    assert [version.model_display_name for version in registry.list_versions()] == ["renamed", "renamed"]
    registry.update_version("2", version_description="wider", labels={"size": "l"})
    first, second = registry.get_model("1"), registry.get_model("2")
    assert (first.description, first.labels, first.version_description) == ("new", {"team": "theirs"}, "")
    assert (second.description, second.labels, second.version_description) == ("new", {"size": "l"}, "wider")


@pytest.mark.parametrize(
    ("name", "mask", "body", "words"),
    [
        ("@1", "displayName", {"displayName": "x"}, "a version's displayName can't be changed; use versionDescription"),
        ("", "versionDescription", {}, "a model's versionDescription can't be changed; use displayName"),
        ("", "artifactUri", {}, "a model's artifactUri can't be changed"),
        ("", "color", {}, 'updateMask: "color" isn\'t a field of'),
        ("", "displayName", {}, "displayName: is missing"),
        ("", "labels", {"labels": {"Team": "x"}}, "labels"),
    ],
)
def test_an_update_of_what_cannot_change_is_refused(
    vertex: Service, name: str, mask: str, body: Json, words: str
) -> None:
    model = uploaded().resource_name
    status, answer = vertex.call("PATCH", f"/v1/{model}{name}?updateMask={mask}", body)
    assert status == 400
    assert words in answer["error"]["message"]


def test_models_are_found_by_id_and_by_label(vertex: Service) -> None:
    uploaded(model_id="found", labels={"stage": "found"})
    uploaded(model_id="other", labels={"stage": "other"})
    for wanted in ('model="found"', "labels.stage=found", 'labels.stage="found" AND display_name="digits"'):
        assert [model.name for model in aiplatform.Model.list(filter=wanted)] == ["found"]
    (shown,) = vertex.get(f"{PARENT}/models?filter=model%3Dfound")["models"]
    assert "model" not in shown


def test_a_model_is_copied_to_another_location_and_says_from_where(vertex: Service) -> None:
    model = uploaded(model_id="copied", labels={"team": "ours"})
    copy = model.copy(destination_location="europe-west4", destination_model_id="there")
    assert copy.resource_name == PARENT.replace("us-central1", "europe-west4") + "/models/there"
    assert (copy.display_name, copy.labels, copy.uri) == ("digits", {"team": "ours"}, ARTIFACT)
    assert copy.gca_resource.original_model_info.model == f"{PARENT}/models/copied@1"
    again = model.copy(destination_location="europe-west4", destination_parent_model="there")
    assert (again.resource_name, again.version_id) == (copy.resource_name, "2")


def test_an_export_writes_the_artifacts_to_a_folder_of_its_own(vertex: Service) -> None:
    exported = uploaded("ten digits").export_model("custom-trained", artifact_destination="gs://b/out/")
    folder = exported["artifactOutputUri"]
    assert folder.startswith("gs://b/out/model-export-ten_digits-")
    assert (vertex.state_dir / "gcs" / folder.removeprefix("gs://") / "deep/weights").read_text() == "1.5"


def test_an_export_into_the_models_own_folder_ends(vertex: Service) -> None:
    exported = uploaded().export_model("custom-trained", artifact_destination=f"{ARTIFACT}/deep")
    folder = vertex.state_dir / "gcs" / exported["artifactOutputUri"].removeprefix("gs://")
    assert sorted(path.name for path in folder.rglob("*")) == ["deep", "weights"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"exportFormatId": "tf-js"}, '"tf-js" isn\'t supported; use custom-trained'),
        ({"exportFormatId": "custom-trained"}, '"" isn\'t a folder in a bucket'),
    ],
)
def test_an_export_that_cannot_be_made_is_refused(vertex: Service, config: Json, words: str) -> None:
    status, answer = vertex.call("POST", f"/v1/{uploaded().resource_name}:export", {"outputConfig": config})
    assert status == 400
    assert words in answer["error"]["message"]


def test_evaluations_are_imported_for_a_version_and_go_with_it(vertex: Service) -> None:
    model = uploaded(model_id="evaluated")
    imported = {"modelEvaluation": {"displayName": "test set", "metricsSchemaUri": "gs://s", "metrics": {"auc": 0.9}}}
    status, evaluation = vertex.call("POST", f"/v1/{model.resource_name}/evaluations:import", imported)
    assert status == 200, evaluation
    assert [one.resource_name for one in model.list_model_evaluations()] == [evaluation["name"]]
    found = model.get_model_evaluation(evaluation["name"].rpartition("/")[2])
    assert found
    assert (found.display_name, dict(found.metrics)) == ("test set", {"auc": 0.9})
    assert vertex.get(f"{evaluation['name']}/slices") == {"modelEvaluationSlices": []}
    newer = uploaded(parent_model="evaluated")
    assert newer.list_model_evaluations() == []
    newer.versioning_registry.delete_version("1")
    assert vertex.call("GET", f"/v1/{evaluation['name']}")[0] == 404


def test_an_endpoint_is_refused_in_a_sentence(vertex: Service) -> None:
    with pytest.raises(NotFound, match="the local Vertex has no endpoints; it has customJobs"):
        uploaded().deploy(machine_type="n1-standard-4")
