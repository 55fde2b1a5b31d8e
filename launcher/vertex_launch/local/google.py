"""Hosts of Google, as clients in a replica name them."""

import re

# Hosts to which a client of Google sends its token.
GOOGLE = re.compile(r"([a-z0-9.-]+\.)?(googleapis\.com|google\.internal)(:443)?")
APIS = ("aiplatform", "bigquery", "iamcredentials", "logging", "oauth2", "storage", "www")
METADATA = ("metadata.google.internal", "metadata")


def is_google(host: str) -> bool:
    """Whether a host, with or without its port, is one of Google's APIs."""
    return bool(GOOGLE.fullmatch(host.lower()))


def names(region: str) -> tuple[str, ...]:
    """Return the hosts that clients of a region look up most."""
    return (
        *METADATA,
        *(f"{api}.googleapis.com" for api in (*APIS, f"{region}-aiplatform", f"aiplatform.{region}.rep")),
    )
