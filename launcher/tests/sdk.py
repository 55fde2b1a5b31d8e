"""Google's Python client, pointed at a local Vertex for tests."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.cloud.aiplatform import jobs, training_jobs

from launcher.tests.vertex import Service

Client = TypeVar("Client")


def init(vertex: Service, **more: Any) -> None:
    """What the service prints for users of the SDK."""
    aiplatform.init(
        project="p",
        location="us-central1",
        staging_bucket="gs://b",
        api_endpoint=vertex.endpoint,
        api_transport="rest",
        credentials=AnonymousCredentials(),
        **more,
    )


def prepare(vertex: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it; and quicker looks than Google's every five seconds."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", vertex.endpoint)
    init(vertex)
    monkeypatch.setattr(jobs, "_JOB_WAIT_TIME", 0.2)
    monkeypatch.setattr(training_jobs, "_JOB_WAIT_TIME", 0.2)


def gapic(client: Callable[..., Client], vertex: Service) -> Client:
    """One of the generated clients, such as JobServiceClient."""
    return client(
        transport="rest", client_options={"api_endpoint": vertex.endpoint}, credentials=AnonymousCredentials()
    )
