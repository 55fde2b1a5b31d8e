"""Google's hosts, as clients in a replica name them, and the addresses of the local Vertex that stand for them."""

import re

from vertex_launch.local.api.errors import STORAGE, ApiError

# Hosts to which a client of Google sends its token.
GOOGLE = re.compile(r"([a-z0-9.-]+\.)?(googleapis\.com|google\.internal)(:443)?")
# A region stands before the name, as in us-central1-aiplatform, or behind it, as in aiplatform.us-central1.rep.
SERVED = re.compile(
    r"([a-z0-9-]+-)?aiplatform|(aiplatform|storage)\.[a-z0-9-]+\.rep|storage|www|logging|oauth2|cloudresourcemanager"
)
XML_API = "/xml"  # before the addresses of Cloud Storage's other API, /BUCKET/OBJECT

APIS = ("aiplatform", "bigquery", "iamcredentials", "logging", "oauth2", "storage", "www")
METADATA = ("metadata.google.internal", "metadata")


def names(region: str) -> tuple[str, ...]:
    """Return the hosts that clients of a region look up most."""
    return (*METADATA, *(f"{api}.googleapis.com" for api in (*APIS, f"{region}-aiplatform")))


def is_google(host: str) -> bool:
    """Whether a host, with or without its port, is one of Google's APIs."""
    return bool(GOOGLE.fullmatch(host.lower()))


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
