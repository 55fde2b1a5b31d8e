import json

import numpy as np
import pytest

from trainer.export import Exported
from trainer.serving import Container, from_env, respond
from trainer.vertex.errors import TrainerError

DOUBLE = Exported(lambda array: 2 * array, (None, 2), np.dtype("float32"))


def test_instances_are_answered_by_as_many_predictions() -> None:
    body = json.dumps({"instances": [[1, 2], [3, 4], [5, 6.5]], "parameters": {}}).encode()
    assert respond(DOUBLE, body) == (200, {"predictions": [[2, 4], [6, 8], [10, 13]]})


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{", "the request isn't valid"),
        (b"[]", "the request isn't valid"),
        (b'{"instances": [[1, 2], [3]]}', "the request isn't valid"),
        (b'{"instances": [["a", "b"]]}', "the request isn't valid"),
        (b'{"instances": []}', "the instances have the shape (0,), but they must have the shape (any, 2)"),
        (b'{"instances": [[1, 2, 3]]}', "the instances have the shape (1, 3), but they must have the shape (any, 2)"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(body: bytes, fault: str) -> None:
    status, answer = respond(DOUBLE, body)
    assert status == 400
    assert answer["error"].startswith(fault)


def test_a_number_that_json_does_not_know_is_no_prediction() -> None:
    nothing = DOUBLE._replace(answer=lambda array: array * np.nan)
    assert respond(nothing, b'{"instances": [[1, 2]]}')[0] == 500


def test_the_service_says_where_the_model_is_and_where_it_asks() -> None:
    service = {
        "AIP_STORAGE_URI": "gs://b/model",
        "AIP_HTTP_PORT": "80",
        "AIP_HEALTH_ROUTE": "/h",
        "AIP_PREDICT_ROUTE": "/p",
    }
    assert from_env([], service) == Container("gs://b/model", 80, "/h", "/p", "0.0.0.0")
    assert from_env([], service | {"GCS_MOUNT": "/here"}).host == "127.0.0.1"  # a laptop's
    assert from_env(["output/model"], {}) == Container("output/model")
    with pytest.raises(TrainerError, match="no model is specified"):
        from_env([], {})
