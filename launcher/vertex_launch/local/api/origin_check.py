"""Refuses requests of web pages: the service runs what it is sent, and every page open in a browser can send requests.

A page cannot forge the Host header, cannot leave out Origin where it sends anything, and cannot send JSON to
another site without asking first. A Host of Google's comes from a replica's proxy: a browser would have gone to Google.
Source: Fetch standard, 2026, "CORS protocol" and "forbidden request-header".
"""

import re

from starlette.datastructures import Headers
from starlette.types import Scope

from vertex_launch.local.api.errors import STORAGE
from vertex_launch.local.google import is_google

OURS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")  # this machine, as a Host
PAGE = re.compile("/|/projects/.*|/[0-9]+", re.DOTALL)  # the page, which is the same for every job


def fault_of(scope: Scope) -> str:
    """The reason to refuse a request, or "" """
    headers, path = Headers(scope=scope), scope["path"]
    host = headers.get("host", "").lower()
    if not (OURS.fullmatch(host) or is_google(host)):
        return f'the Host "{host}" is not this machine; use http://127.0.0.1 and the port'
    if scope["type"] == "websocket":  # a browser opens one to any site, and says whose page does
        ours = OURS.fullmatch(host) and headers.get("origin") == f"http://{host}"
        return "" if ours else "only a page of this service may open a websocket"
    if "origin" in headers:
        return "requests of web pages are refused; use gcloud, the SDK or this project's own commands"
    # An image or a link on another site's page brings no Origin. A link to our page only shows it.
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not PAGE.fullmatch(path):
        return "requests of other sites' pages are refused; open the address by itself"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # Storage clients send any content type, to an address that no form can guess; Origin still guards it.
    writes = scope["method"] in ("POST", "PUT", "PATCH")
    if writes and not (path.startswith(STORAGE) or is_google(host) or in_parts(scope)) and kind != "application/json":
        return f'a body of type "{kind}" is refused; send application/json'
    return ""


def in_parts(scope: Scope) -> bool:
    """Whether this belongs to an upload in parts, for which clients use Cloud Storage's XML API at whatever host."""
    return re.search(rb"(^|&)upload(s|Id)([=&]|$)", scope["query_string"]) is not None
