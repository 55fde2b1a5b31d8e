"""Models and their versions, as pipelines register them."""

from pathlib import Path
from typing import Any

import pytest

from vertex_launch.job_resource import Resource
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry.models import Models

PARENT = "projects/p/locations/us-central1"
ARTIFACT = "gs://b/run/model"


@pytest.fixture
def ours(tmp_path: Path) -> Models:
    (tmp_path / "gcs/b/run/model/deep").mkdir(parents=True)
    (tmp_path / "gcs/b/run/model/deep/weights").touch()
    (tmp_path / "gcs/b/empty/model/deep").mkdir(parents=True)
    return Models(Store(tmp_path / "state"), tmp_path / "gcs")


def upload(ours: Models, name: str = "digits", parent_model: str = "", model_id: str = "", **more: Any) -> Resource:
    model = {"displayName": name, "containerSpec": {"imageUri": "server"}, "labels": {"team": "ours"}, **more}
    return ours.upload(
        PARENT, model, ARTIFACT, parent_model=parent_model, model_id=model_id, trainingPipeline=f"{PARENT}/t/1"
    )


def versions(ours: Models, name: str) -> list[tuple[str, list[str]]]:
    return [(one["versionId"], one["versionAliases"]) for one in ours.list_versions(name)]


def test_an_upload_is_version_1_and_the_default(ours: Models) -> None:
    model = upload(ours)
    assert model["name"].startswith(f"{PARENT}/models/")
    assert "@" not in model["name"]
    assert (model["versionId"], model["versionAliases"]) == ("1", ["default"])
    assert model["artifactUri"] == ARTIFACT
    assert model["trainingPipeline"] == f"{PARENT}/t/1"
    assert (model["displayName"], model["labels"]) == ("digits", {"team": "ours"})
    assert model["createTime"] == model["versionCreateTime"]


@pytest.mark.parametrize("version", ["", "@1", "@default", "@stable"])
def test_a_model_is_found_by_number_and_by_alias(ours: Models, version: str) -> None:
    model = upload(ours, versionAliases=["stable", "default"])
    assert ours.get(f"{model['name']}{version}") == model


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
    assert versions(ours, first["name"]) == [("3", ["canary"]), ("2", ["default"]), ("1", ["stable"])]
    assert ours.get(first["name"])["displayName"] == "digits again"
    assert third["createTime"] == first["createTime"] < third["versionCreateTime"]


def test_the_names_of_versions_in_a_list_differ(ours: Models) -> None:
    name = upload(ours)["name"]
    upload(ours, parent_model=name)
    assert [one["name"] for one in ours.list_versions(name)] == [f"{name}@2", f"{name}@1"]


def test_a_list_has_every_model_once_in_its_default_version(ours: Models) -> None:
    first = upload(ours, "first")
    second = upload(ours, "second", model_id="second")
    upload(ours, "canary", parent_model=first["name"], versionAliases=["canary"])
    assert second["name"] == f"{PARENT}/models/second"
    assert [model["displayName"] for model in ours.list(PARENT)] == ["second", "first"]
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


@pytest.mark.parametrize("artifact", ["gs://b/empty/model", "gs://b/nowhere/model", "gs://b/../gcs/b", ""])
def test_a_folder_without_a_file_is_no_model(ours: Models, artifact: str) -> None:
    with pytest.raises(ApiError, match="is empty, so there is no model; save it in the folder that AIP_MODEL_DIR"):
        ours.upload(PARENT, {"displayName": "digits"}, artifact)
    assert ours.list(PARENT) == []


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"parent_model": f"{PARENT}/models/7"}, "NOT_FOUND", "models/7 does not exist"),
        ({"parent_model": "projects/other/locations/l/models/7"}, "INVALID_ARGUMENT", "is not below"),
        ({"model_id": "7seven"}, "INVALID_ARGUMENT", 'modelId: "7seven" is no id'),
        ({"model_id": "taken"}, "ALREADY_EXISTS", "name it as parentModel"),
        ({"versionAliases": ["2"]}, "INVALID_ARGUMENT", 'versionAliases: "2" is no alias'),
    ],
)
def test_a_wrong_upload_is_refused_with_the_field(ours: Models, more: dict[str, Any], status: str, words: str) -> None:
    upload(ours, model_id="taken")
    with pytest.raises(ApiError, match=words) as caught:
        upload(ours, **more)
    assert caught.value.status == status
    assert len(ours.list(PARENT)) == 1


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
        ours.check(PARENT, model)
    assert [finding.place for finding in refused.value.findings] == [place]
