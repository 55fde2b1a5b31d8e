"""The Google API hosts that clients in a replica connect to."""

import re

# The hosts to which a Google client sends its token.
GOOGLE = re.compile(r"([a-z0-9.-]+\.)?(googleapis\.com|google\.internal)(:443)?")
APIS = ("aiplatform", "bigquery", "iamcredentials", "logging", "oauth2", "storage", "www")
METADATA = ("metadata.google.internal", "metadata")


def is_google(host: str) -> bool:
    """Return whether a host is a Google API host. The host can include a port."""
    return bool(GOOGLE.fullmatch(host.lower()))


def names(region: str) -> tuple[str, ...]:
    """Return the hostnames that clients in a region resolve most often."""
    return (
        *METADATA,
        *(f"{api}.googleapis.com" for api in (*APIS, f"{region}-aiplatform", f"aiplatform.{region}.rep")),
    )
