"""Model registry."""

from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform
from google.cloud.aiplatform import models
from google.cloud.aiplatform_v1 import ModelServiceClient
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Service
from tests.fidelity.usages import DOCS, NOTEBOOKS, SAMPLES, SERVING, SNIPPETS, SYSTEM, put, usage

REGISTRY = f"{SAMPLES}/model_registry"
TABULAR = "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml"


def folder(name: str) -> str:
    """Return the address of a folder with an artifact."""
    return put(f"models/{name}/model.joblib", "weights").removesuffix("/model.joblib")


def upload(name: str, **more: Any) -> aiplatform.Model:
    """Upload a model from a folder of its own."""
    parts = {"display_name": name, "artifact_uri": folder(name), "serving_container_image_uri": SERVING}
    model: aiplatform.Model = aiplatform.Model.upload(**(parts | more))
    return model


def versions(model: aiplatform.Model) -> dict[str, list[str]]:
    return {one.version_id: [*one.version_aliases] for one in model.versioning_registry.list_versions()}


@usage(f"{SAMPLES}/upload_model_sample.py")
def uploaded(vertex: Service) -> None:
    """Upload a folder as a model with its serving container."""
    model = upload(
        "uploaded",
        serving_container_predict_route="/predict",
        serving_container_health_route="/health",
        serving_container_command=["serve"],
        serving_container_args=["--fast"],
        serving_container_environment_variables={"MODE": "fast"},
        serving_container_ports=[8080],
        description="from a folder",
        labels={"team": "vision"},
    )
    model.wait()
    assert model.uri == "gs://b/models/uploaded"
    assert (model.description, model.version_id, model.labels) == ("from a folder", "1", {"team": "vision"})
    assert [*model.container_spec.args] == ["--fast"]


@usage(f"{SAMPLES}/upload_model_explain_tabular_managed_container_sample.py")
def with_explanations(vertex: Service) -> None:
    """Upload a model with an explanation specification."""
    inputs = {"features": aiplatform.explain.ExplanationMetadata.InputMetadata({"input_tensor_name": "x"})}
    outputs = {"score": aiplatform.explain.ExplanationMetadata.OutputMetadata({"output_tensor_name": "y"})}
    model = upload(
        "explained",
        explanation_metadata=aiplatform.explain.ExplanationMetadata(inputs=inputs, outputs=outputs),
        explanation_parameters=aiplatform.explain.ExplanationParameters(
            {"sampled_shapley_attribution": {"path_count": 10}}
        ),
    )
    assert model.gca_resource.explanation_spec.parameters.sampled_shapley_attribution.path_count == 10


@usage(f"{SAMPLES}/get_model_sample.py")
def found(vertex: Service) -> None:
    """Get a model by its ID and by its name."""
    model = upload("found")
    assert aiplatform.Model(model.name).display_name == "found"
    assert aiplatform.Model(model.resource_name).resource_name == model.resource_name


@usage(f"{NOTEBOOKS}/custom/sdk-custom-image-classification-online.ipynb")
def listed(vertex: Service) -> None:
    """List models by display name and label."""
    model = upload("listed", labels={"kind": "listed"})
    for text in ('display_name="listed"', "labels.kind=listed"):
        assert [one.name for one in aiplatform.Model.list(filter=text, order_by="create_time desc")] == [model.name]


@usage(f"{DOCS}: ListModels, filter")
def listed_by_id(vertex: Service) -> None:
    """List a model by its ID with the filter in the documentation."""
    model = upload("by id")
    assert [one.display_name for one in aiplatform.Model.list(filter=f'model="{model.name}"')] == ["by id"]


@usage(f"{NOTEBOOKS}/model_registry/get_started_with_model_registry.ipynb")
def versioned(vertex: Service) -> None:
    """Upload a second version, list both, and delete the first one."""
    first = upload("versioned", model_id="versioned", version_aliases=["v1"])
    second = upload("versioned again", parent_model=first.resource_name, is_default_version=True)
    assert versions(second) == {"1": ["v1"], "2": ["default"]}
    first.versioning_registry.delete_version("1")
    assert [*versions(second)] == ["2"]


@usage(f"{SYSTEM}/test_model_version_management.py")
def aliases_of_a_version(vertex: Service) -> None:
    """Move aliases between versions with the model registry."""
    model = upload("moved")
    upload("moved again", parent_model=model.resource_name, is_default_version=False, version_aliases=["canary"])
    model.versioning_registry.add_version_aliases(["default"], "2")
    assert versions(model) == {"1": [], "2": ["canary", "default"]}
    assert aiplatform.Model(model.name).version_id == "2"


@usage(f"{REGISTRY}/create_model_registry_sample.py")
def registry(vertex: Service) -> None:
    """Open the registry of a model by its ID."""
    model = upload("registry")
    assert models.ModelRegistry(model=model.name).model_resource_name.endswith(f"/{model.name}")


@usage(f"{REGISTRY}/create_default_model_sample.py")
def default_version(vertex: Service) -> None:
    """Get the default version of a model."""
    model = upload("default")
    upload("default again", parent_model=model.resource_name)
    assert aiplatform.Model(model_name=model.name).version_id == "2"


@usage(f"{REGISTRY}/create_aliased_model_sample.py")
def aliased_version(vertex: Service) -> None:
    """Get a version of a model by its alias, by its number, and after an @."""
    model = upload("aliased", version_aliases=["stable"])
    for version in ("stable", "1"):
        assert aiplatform.Model(model_name=model.name, version=version).version_id == "1"
    assert aiplatform.Model(f"{model.resource_name}@stable").version_id == "1"


@usage(f"{REGISTRY}/get_registered_model_version_sample.py")
def model_of_a_version(vertex: Service) -> None:
    """Get the model of a version from the registry."""
    model = upload("of a version", version_aliases=["stable"])
    assert models.ModelRegistry(model=model.name).get_model(version="stable").version_id == "1"


@usage(f"{REGISTRY}/get_model_version_info_sample.py")
def version_info(vertex: Service) -> None:
    """Read the registry's information about a version."""
    model = upload("info", version_aliases=["stable"], version_description="first")
    info = models.ModelRegistry(model=model.name).get_version_info(version="stable")
    assert (info.version_id, info.version_description, info.model_display_name) == ("1", "first", "info")


@usage(f"{REGISTRY}/list_model_versions_with_model_registry_sample.py")
def all_versions(vertex: Service) -> None:
    """List all versions of a model."""
    model = upload("many")
    upload("many again", parent_model=model.resource_name)
    assert {one.version_id for one in models.ModelRegistry(model=model.name).list_versions()} == {"1", "2"}


@usage(f"{REGISTRY}/assign_aliases_model_version_sample.py")
def assigned_aliases(vertex: Service) -> None:
    """Add aliases to a version."""
    model = upload("assigned")
    models.ModelRegistry(model=model.name).add_version_aliases(new_aliases=["stable", "prod"], version="1")
    assert set(aiplatform.Model(model.name).version_aliases) == {"default", "stable", "prod"}


@usage(f"{REGISTRY}/delete_aliases_model_version_sample.py")
def removed_aliases(vertex: Service) -> None:
    """Remove aliases from a version."""
    model = upload("removed", version_aliases=["stable"])
    models.ModelRegistry(model=model.name).remove_version_aliases(target_aliases=["stable"], version="1")
    assert [*aiplatform.Model(model.name).version_aliases] == ["default"]


@usage(f"{REGISTRY}/upload_new_aliased_model_version_sample.py")
def new_aliased_version(vertex: Service) -> None:
    """Upload a version with aliases that isn't the default version."""
    model = upload("new")
    more = {"version_aliases": ["candidate"], "version_description": "a candidate"}
    second = upload("new again", parent_model=model.resource_name, is_default_version=False, **more)
    assert (second.version_id, second.version_description) == ("2", "a candidate")
    assert versions(model) == {"1": ["default"], "2": ["candidate"]}


@usage(f"{REGISTRY}/upload_new_default_model_version_sample.py")
def new_default_version(vertex: Service) -> None:
    """Upload a version that becomes the default version."""
    model = upload("replaced")
    upload("replaced again", parent_model=model.resource_name)
    assert versions(model) == {"1": [], "2": ["default"]}


@usage(f"{REGISTRY}/delete_model_version_sample.py")
def deleted_version(vertex: Service) -> None:
    """Delete one version of a model."""
    model = upload("less")
    upload("less again", parent_model=model.resource_name)
    models.ModelRegistry(model=model.name).delete_version(version="1")
    with pytest.raises(NotFound):
        aiplatform.Model(model.name, version="1")


@usage(f"{REGISTRY}/delete_model_sample.py")
def deleted(vertex: Service) -> None:
    """Delete a model with all its versions."""
    model = upload("deleted")
    aiplatform.Model(model_name=model.name).delete()
    assert aiplatform.Model.list(filter='display_name="deleted"') == []


@usage(f"{DOCS}: google.cloud.aiplatform.Model.update")
def updated(vertex: Service) -> None:
    """Change a model's display name, description and labels."""
    model = upload("before", labels={"old": "yes"})
    model.update(display_name="after", description="changed", labels={"new": "yes"})
    changed = aiplatform.Model(model.name)
    assert (changed.display_name, changed.description, changed.labels) == ("after", "changed", {"new": "yes"})


@usage(f"{DOCS}: google.cloud.aiplatform.Model.copy")
def copied(vertex: Service) -> None:
    """Copy a model to another region."""
    copy = upload("copied").copy(destination_location="europe-west4", destination_model_id="copied")
    assert copy.resource_name == PARENT.replace("us-central1", "europe-west4") + "/models/copied"
    assert copy.display_name == "copied"


@usage(f"{SNIPPETS}/model_service/export_model_sample.py")
def exported(vertex: Service) -> None:
    """Export a model to a folder of a bucket."""
    model = upload("exported")
    formats = model.supported_export_formats
    assert "custom-trained" in formats
    model.export_model(export_format_id="custom-trained", artifact_destination="gs://b/exported-models")
    assert [*(vertex.state_dir / "gcs/b/exported-models").rglob("model.joblib")]


@usage(f"{NOTEBOOKS}/model_evaluation/get_started_with_custom_model_evaluation_import.ipynb")
def evaluated(vertex: Service) -> None:
    """Import an evaluation of a model, list it, and read its metrics."""
    model, client = upload("evaluated"), gapic(ModelServiceClient, vertex)
    metrics = json_format.ParseDict({"auRoc": 0.9}, Value())
    evaluation = {"display_name": "evaluation", "metrics_schema_uri": TABULAR, "metrics": metrics}
    created = client.import_model_evaluation(parent=model.resource_name, model_evaluation=evaluation)
    assert created.name.startswith(f"{model.resource_name}")
    assert [one.metrics["auRoc"] for one in model.list_model_evaluations()] == [0.9]
    assert model.get_model_evaluation().metrics["auRoc"] == 0.9


@usage(f"{SNIPPETS}/model_service/list_model_evaluation_slices_sample.py")
def without_evaluations(vertex: Service) -> None:
    """List the evaluations of a model without evaluations."""
    assert upload("plain").list_model_evaluations() == []


@usage(f"{SNIPPETS}/model_service/upload_model_sample.py")
def uploaded_by_gapic(vertex: Service) -> None:
    """Upload a model with the generated client."""
    client = gapic(ModelServiceClient, vertex)
    container = {"image_uri": SERVING, "command": [], "args": []}
    model = {"display_name": "gapic", "metadata_schema_uri": "", "artifact_uri": folder("gapic")}
    response = client.upload_model(parent=PARENT, model=model | {"container_spec": container})
    assert response.operation.name.startswith(PARENT)
    assert response.result(timeout=60).model_version_id == "1"


@usage(f"{SNIPPETS}/model_service/get_model_sample.py")
def read_by_gapic(vertex: Service) -> None:
    """Get a model with the generated client and its path helper."""
    client, model = gapic(ModelServiceClient, vertex), upload("path")
    name = client.model_path(project="p", location="us-central1", model=model.name)
    assert client.get_model(name=name).artifact_uri == "gs://b/models/path"


@usage(f"{SNIPPETS}/model_service/delete_model_sample.py")
def deleted_by_gapic(vertex: Service) -> None:
    """Delete a model with the generated client."""
    client, model = gapic(ModelServiceClient, vertex), upload("gone")
    client.delete_model(name=model.resource_name).result(timeout=60)
    with pytest.raises(NotFound):
        client.get_model(name=model.resource_name)


@usage(f"{SYSTEM}/test_model_upload.py")
def scikit_learn_file(vertex: Service) -> None:
    """Upload a scikit-learn file, for which the SDK selects the container."""
    path = vertex.folder / "model.joblib"
    path.write_bytes(b"weights")
    model = aiplatform.Model.upload_scikit_learn_model_file(model_file_path=str(path), sklearn_version="1.0")
    assert "sklearn-cpu.1-0" in model.container_spec.image_uri
    assert model.uri.startswith("gs://")


@usage(f"{SYSTEM}/test_model_upload.py")
def xgboost_file(vertex: Service) -> None:
    """Upload an XGBoost file as a version of a model."""
    path = vertex.folder / "model.bst"
    path.write_bytes(b"trees")
    model = aiplatform.Model.upload_xgboost_model_file(model_file_path=str(path), display_name="boosted")
    assert "xgboost-cpu" in model.container_spec.image_uri


@usage(f"{DOCS}: google.cloud.aiplatform.Model.upload_tensorflow_saved_model")
def saved_model(vertex: Service) -> None:
    """Upload a folder with a TensorFlow SavedModel."""
    path = vertex.folder / "saved"
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"graph")
    model = aiplatform.Model.upload_tensorflow_saved_model(saved_model_dir=str(path), tensorflow_version="2.8")
    assert "tf2-cpu.2-8" in model.container_spec.image_uri


@usage(f"{DOCS}: google.cloud.aiplatform.Model.upload, a model without artifacts")
def container_alone(vertex: Service) -> None:
    """Upload a container that contains the model."""
    model = aiplatform.Model.upload(display_name="container", serving_container_image_uri="gcr.io/p/server:1")
    assert model.uri is None or model.uri == ""
    assert model.container_spec.image_uri == "gcr.io/p/server:1"


@usage(f"{DOCS}: google.cloud.aiplatform.Model.upload, a wrong label")
def wrong_label(vertex: Service) -> None:
    """Get an error for a model with a label that isn't valid."""
    with pytest.raises(BadRequest, match="labels"):
        upload("wrong", labels={"Team": "Vision"})


@usage(f"{SAMPLES}/deploy_model_with_dedicated_resources_sample.py", absent="endpoints")
def deployed(vertex: Service) -> None:
    """Deploy a model to a new endpoint."""
    upload("deployed").deploy(machine_type="n1-standard-4", min_replica_count=1)


@usage(f"{SAMPLES}/create_batch_prediction_job_sample.py", absent="batchPredictionJobs")
def batch_predicted(vertex: Service) -> None:
    """Run a batch prediction on a file in a bucket."""
    upload("batch").batch_predict(
        job_display_name="batch", gcs_source=put("instances.jsonl", "{}\n"), gcs_destination_prefix="gs://b/predicted"
    )
