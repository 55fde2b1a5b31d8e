"""Evaluations of models: metrics that clients import for a version, below whose name they are stored.

Source: google-cloud-aiplatform 2.7.0, types/model_evaluation.py and types/model_service.py.
"""

from collections.abc import Sequence

from google.cloud.aiplatform_v1.types.model_evaluation import ModelEvaluation
from google.cloud.aiplatform_v1.types.model_evaluation_slice import ModelEvaluationSlice
from google.cloud.aiplatform_v1.types.model_service import ImportModelEvaluationRequest

from vertex_launch.job_resource import Resource
from vertex_launch.local.api.collection import Act, Collection, read_message, without_output
from vertex_launch.local.api.http import Call
from vertex_launch.local.api.store import Store
from vertex_launch.local.registry.models import Models
from vertex_launch.spec import as_json

EVALUATIONS = "/evaluations"


class Evaluations(Collection):
    """All evaluations of the service; a model's plain name stands for its default version, as everywhere."""

    collection, message, verbs = f"models/*{EVALUATIONS}", ModelEvaluation, ("GET",)

    def __init__(self, store: Store, models: Models) -> None:
        super().__init__(store)
        self._models = models

    def methods(self) -> dict[str, Act]:
        return super().methods() | {f"POST {self.collection}:import": self._import}

    def get(self, name: str) -> Resource:
        return super().get(self._stored_name(name))

    def list(self, parent: str) -> Sequence[Resource]:
        """List a version's evaluations, newest first; raises ApiError NOT_FOUND."""
        return super().list(self._models.version(parent)["name"])

    def _import(self, call: Call, name: str) -> Resource:
        message = read_message(call, ImportModelEvaluationRequest).model_evaluation
        evaluation = as_json(without_output(message))
        return self._store.create(f"{self._stored_name(name)}/{self._store.new_id()}", evaluation)

    def _stored_name(self, name: str) -> str:
        model, below, id = name.rpartition(EVALUATIONS)
        return f"{self._models.version(model)['name']}{below}{id}"


class Slices(Collection):
    """Slices of evaluations, of which there are none: only Google's own evaluation makes them."""

    collection, message, verbs = f"{Evaluations.collection}/*/slices", ModelEvaluationSlice, ("GET",)
