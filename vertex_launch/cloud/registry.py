"""The images of a job in Artifact Registry: whether they are there, and which content their tags mean now.

Source: OCI Distribution Specification 1.1, "Pulling manifests"; Artifact Registry takes an access token of Google's.
"""

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass

from google.api_core.exceptions import GoogleAPICallError

from vertex_launch.cloud.service import NoAnswerError, Service
from vertex_launch.image import REVISION
from vertex_launch.job_resource import Resource
from vertex_launch.rules.containers import OF_REDUCERS, untagged

ADDRESS = re.compile(r"(?P<host>[a-z0-9-]+-docker\.pkg\.dev)/(?P<path>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?")
GOOGLES = ("vertex-ai/", "vertex-ai-restricted/")  # projects whose images only jobs read
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ACCEPTED = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}


@dataclass(frozen=True)
class Image:
    """An image in a registry."""

    name: str
    digest: str  # sha256:...
    revision: str = ""  # revision of the code it was built from, "" without the label
    reducers: str = ""  # sentence of its build on whether NCCL can use reducers there

    @property
    def pinned(self) -> str:
        """The name that will mean the same for ever."""
        return f"{untagged(self.name)}@{self.digest}"


def look_up(name: str, service: Service) -> Image | None:
    """The image of a name now, None if it is not of a repository of the user's in Artifact Registry.

    Raises NotFound where there is no such image, another GoogleAPICallError or NoAnswerError where it cannot be seen.
    """
    parts = ADDRESS.fullmatch(name)
    if not parts or parts["path"].startswith(GOOGLES):
        return None
    repository = f"https://{parts['host']}/v2/{parts['path']}"
    reference = parts["digest"] or parts["tag"] or "latest"
    answer = service.fetch(f"{repository}/manifests/{reference}", ACCEPTED)
    labels: Resource = {}
    # The image is there, whatever its labels say.
    with contextlib.suppress(GoogleAPICallError, NoAnswerError, TypeError, ValueError):
        labels = _labels(answer, repository, service)
    digest = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    return Image(name, digest, str(labels.get(REVISION, "")), str(labels.get(OF_REDUCERS, "")))


def _labels(document: bytes, repository: str, service: Service) -> Resource:
    """Labels of the image; for an index, of its amd64 image. Raises TypeError or ValueError for no such document."""
    manifest = dict(json.loads(document))
    for entry in manifest.get("manifests", ()):
        if entry.get("platform", {}).get("architecture") == "amd64":
            return _labels(service.fetch(f"{repository}/manifests/{entry['digest']}", ACCEPTED), repository, service)
    if "config" not in manifest:
        return {}
    config = dict(json.loads(service.fetch(f"{repository}/blobs/{manifest['config']['digest']}")))
    return config.get("config", {}).get("Labels") or {}
