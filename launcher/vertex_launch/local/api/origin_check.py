"""Rejects requests from web pages, because the server runs any command that a request contains.

Any page that is open in a browser can send requests to the server. However, a page can't forge the Host header, send
data without an Origin header, or send JSON to a different site without a preflight request. If the Host header
contains a Google host, the request comes from a replica's proxy, not a browser. Browsers connect directly to Google.
Source: Fetch standard, 2026, "CORS protocol" and "forbidden request-header".
"""

import re

from starlette.datastructures import Headers
from starlette.types import Scope

from vertex_launch.local.api.errors import STORAGE
from vertex_launch.local.google import is_google

OURS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")  # this machine's names in a Host header
PAGE = re.compile("/|/projects/.*|/[0-9]+", re.DOTALL)  # the paths of the web page, which is the same for every job


def fault_of(scope: Scope) -> str:
    """Return the reason for rejecting a request, or "" if the request is allowed."""
    headers, path = Headers(scope=scope), scope["path"]
    host = headers.get("host", "").lower()
    if not (OURS.fullmatch(host) or is_google(host)):
        return f'the Host header "{host}" doesn\'t refer to this machine; use http://127.0.0.1 and the port'
    if scope["type"] == "websocket":  # a browser can open a websocket to any site, but sends the page's origin
        ours = OURS.fullmatch(host) and headers.get("origin") == f"http://{host}"
        return "" if ours else "only the local Vertex's own page can open a websocket"
    if "origin" in headers:
        return "requests from web pages are rejected; use gcloud, the SDK, or this project's own commands"
    # For an image or a link on a different site, a browser doesn't send an Origin header. A link to our page is
    # harmless.
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not PAGE.fullmatch(path):
        return "requests from other sites' pages are rejected; open the URL in a new tab"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # Storage clients send any content type to URLs that a form can't guess. The Origin check protects these URLs, too.
    writes = scope["method"] in ("POST", "PUT", "PATCH")
    if writes and not (path.startswith(STORAGE) or is_google(host) or in_parts(scope)) and kind != "application/json":
        return f'a request body of type "{kind}" is rejected; use application/json'
    return ""


def in_parts(scope: Scope) -> bool:
    """Return whether a request belongs to an XML API multipart upload.

    Clients send multipart uploads to any allowed host.
    """
    return re.search(rb"(^|&)upload(s|Id)([=&]|$)", scope["query_string"]) is not None
