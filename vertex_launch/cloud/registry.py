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
    """What an image's name means now."""

    name: str
    digest: str  # sha256:...
    revision: str = ""  # of the code it was built from, "" where it does not say
    reducers: str = ""  # whether NCCL can use them there, in a sentence of its build

    @property
    def pinned(self) -> str:
        """The name that will mean the same for ever."""
        return f"{untagged(self.name)}@{self.digest}"

    @property
    def short(self) -> str:
        """The digest's first digits."""
        return self.digest.removeprefix("sha256:")[:12]


def look_up(name: str, service: Service) -> Image | None:
    """What the name means, None if it is not of a repository of the user's in Artifact Registry.

    Raises:
        google.api_core.exceptions.NotFound: there is no such image.
        google.api_core.exceptions.GoogleAPICallError: it cannot be looked at.
        NoAnswerError: for want of an answer.
    """
    parts = ADDRESS.fullmatch(name)
    if not parts or parts["path"].startswith(GOOGLES):
        return None
    repository = f"https://{parts['host']}/v2/{parts['path']}"
    reference = parts["digest"] or parts["tag"] or "latest"
    answer = service.fetch(f"{repository}/manifests/{reference}", ACCEPTED)
    labels: Resource = {}
    with contextlib.suppress(GoogleAPICallError, NoAnswerError):  # the image is there, whatever its labels say
        labels = _labels(_read(answer), repository, service)
    digest = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    return Image(name, digest, str(labels.get(REVISION, "")), str(labels.get(OF_REDUCERS, "")))


def _labels(manifest: Resource, repository: str, service: Service) -> Resource:
    """Those of the image; of an index those of its image for amd64."""
    for one in manifest.get("manifests", ()):
        if one.get("platform", {}).get("architecture") == "amd64":
            inner = service.fetch(f"{repository}/manifests/{one['digest']}", ACCEPTED)
            return _labels(_read(inner), repository, service)
    if "config" not in manifest:
        return {}
    config = _read(service.fetch(f"{repository}/blobs/{manifest['config']['digest']}"))
    return config.get("config", {}).get("Labels") or {}


def _read(answer: bytes) -> Resource:
    try:
        return dict(json.loads(answer))
    except (ValueError, TypeError):
        raise NoAnswerError("the registry answers with something else than its documents") from None
