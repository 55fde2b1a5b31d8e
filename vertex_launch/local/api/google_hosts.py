"""Addresses of the local Vertex that stand for those of Google's hosts."""

import re

from vertex_launch.local.api.errors import STORAGE, ApiError

# A region stands before the name, as in us-central1-aiplatform, or behind it, as in aiplatform.us-central1.rep.
SERVED = re.compile(
    r"([a-z0-9-]+-)?aiplatform|(aiplatform|storage)\.[a-z0-9-]+\.rep|storage|www|logging|oauth2|cloudresourcemanager"
)
XML_API = "/xml"  # before the addresses of Cloud Storage's other API, /BUCKET/OBJECT


def path_of(host: str, path: str) -> str:
    """Return the address here of a path on one of Google's hosts; raises ApiError for a service that is not here."""
    name = host.lower().partition(":")[0].removesuffix(".googleapis.com")
    if not SERVED.fullmatch(name):
        raise ApiError(
            "UNIMPLEMENTED",
            f"{host} is not on this machine, and replicas here never reach Google Cloud; "
            "the local Vertex has Vertex AI, Cloud Storage and Cloud Logging",
        )
    return f"{XML_API}{path}" if name.startswith("storage") and not path.startswith(STORAGE) else path
