"""Usages of Vertex AI that others have published, each a short script with Google's own clients."""

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import storage
from google.cloud.aiplatform.metadata import metadata as sdk_metadata

from launcher.tests.sdk import prepare
from launcher.tests.vertex import Json, Service

DOCS = "documentation"
NOTEBOOKS = "vertex-ai-samples: notebooks/official"
SAMPLES = "python-aiplatform: samples/model-builder"
SNIPPETS = "python-aiplatform: samples/snippets"
SYSTEM = "python-aiplatform: tests/system/aiplatform"

TRAINER = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
SERVING = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"
ACCOUNT = "trainer@p.iam.gserviceaccount.com"

Script = Callable[[Service], None]


@dataclass(frozen=True)
class Usage:
    """A script that ends with what its source relies on, and that source."""

    script: Script
    source: str
    absent: str = ""  # a word of the refusal, for what the local Vertex leaves out by decision
    differs: str = ""  # how the local Vertex differs, so that the script fails
    needs: str = ""  # a program or a module

    @property
    def id(self) -> str:
        return f"{self.script.__module__.rpartition('.')[2]}-{self.script.__name__}"

    @property
    def name(self) -> str:
        return str(self.script.__doc__).strip().rstrip(".")

    @property
    def skipped(self) -> str:
        """Why the script cannot run on this machine, "" if it can."""
        there = not self.needs or shutil.which(self.needs) or importlib.util.find_spec(self.needs)
        return "" if there else f"{self.needs} is not installed"

    def verdict(self, vertex: Service) -> str:
        """Run the script; raises what it raises, or AssertionError if it does not end as it should."""
        with clients(vertex):
            if self.absent:
                return f"refused: {self._fault(refusal(self.script, vertex))}"
            if self.differs:
                with contextlib.suppress(AssertionError, RuntimeError):
                    self.script(vertex)
                    raise ValueError("it differs no longer")
                return f"differs: {self.differs}"
            self.script(vertex)
            return "works"

    def _fault(self, error: Json) -> str:
        """Return what a refusal says, in front of its cure; raises AssertionError if it is unclear."""
        assert error["status"] in ("UNIMPLEMENTED", "NOT_FOUND") or "details" in error, error  # which name the field
        assert self.absent in error["message"], error
        assert "\n" not in error["message"], error
        return str(error["message"].partition(";")[0])


def usage(source: str, **more: str) -> Callable[[Script], Usage]:
    """Make a usage of a script, whose docstring names it; `more` are fields of a usage."""
    return lambda script: Usage(script, source, **more)


def of_module(theme: ModuleType) -> list[Usage]:
    return [value for value in vars(theme).values() if isinstance(value, Usage)]


@contextlib.contextmanager
def clients(vertex: Service) -> Iterator[None]:
    """Point Google's clients at the service, and end the experiment of the script that used them."""
    with pytest.MonkeyPatch.context() as patch:
        # With a TensorBoard for all experiments, the SDK 2.7.0 asks for the person's own credentials.
        patch.setattr(sdk_metadata._experiment_tracker, "_global_tensorboard", None)
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # or gcsfs looks for gRPC for a minute
        prepare(vertex, patch)
        yield
        sdk_metadata._experiment_tracker.reset()


def refusal(script: Script, vertex: Service) -> Json:
    """Return the error with which the service answers the script's last call."""
    try:
        script(vertex)
    except (GoogleAPICallError, requests.HTTPError) as error:
        answer: Json = error.response.json()["error"]
        return answer
    raise AssertionError("the service did not refuse it")


def pool(*command: str, count: int = 1, machine: str = "n1-standard-4", **more: Any) -> Json:
    """A worker pool as users of the SDK write it, in which each replica runs this command."""
    container = {"image_uri": "gcr.io/p/trainer:1", "command": list(command)}
    return {
        "machine_spec": {"machine_type": machine},
        "replica_count": count,
        "container_spec": container,
    } | more


def put(name: str, content: str) -> str:
    """Upload an object to the staging bucket and return its address."""
    storage.Client(project="p").bucket("b").blob(name).upload_from_string(content)
    return f"gs://b/{name}"


def rest(vertex: Service, method: str, path: str, body: Any = None, **query: str) -> Any:
    """Send a request as curl would, and return the answer's JSON; raises requests.HTTPError."""
    answer = requests.request(method, f"{vertex.endpoint}/{path}", json=body, params=query, timeout=60)
    answer.raise_for_status()
    return answer.json()
