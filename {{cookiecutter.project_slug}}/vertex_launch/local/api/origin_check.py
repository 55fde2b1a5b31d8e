"""Keeps web pages out: the service runs what it is sent, and every page open in a browser can send requests.

A page cannot forge the Host header, cannot leave out Origin where it sends anything, and cannot send JSON to
another site without asking first. Source: Fetch standard, 2026, "CORS protocol" and "forbidden request-header".
"""

import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from vertex_launch.local.api.errors import ApiError

LARGEST_BODY = 10**6  # bytes, a thousand times a job's; uploads to a bucket are not bounded
OURS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")  # this machine, as a Host

# Google's storage clients send any content type, as part of a URL that no form guesses; Origin still guards it.
STORAGE = ("/upload/", "/storage/", "/resumable/", "/download/", "/batch/")


class Guard:
    """Passes on what a client on this machine sends, and refuses everything else before it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = refusal(scope) if scope["type"] == "http" else ""
        if fault:
            error = ApiError("PERMISSION_DENIED", fault)
            await JSONResponse(error.as_json(), error.http_status)(scope, receive, send)
        elif scope["type"] == "websocket":  # nothing here speaks it, and browsers open it to any site
            await send({"type": "websocket.close", "code": 1008, "reason": "the local Vertex has no websockets"})
        else:
            await self._app(scope, receive, send)


def refusal(scope: Scope) -> str:
    """Why a request is refused, or "" """
    headers = Headers(scope=scope)
    host = headers.get("host", "").lower()
    if not OURS.fullmatch(host):
        return f'the Host "{host}" is not this machine; use http://127.0.0.1 and the port'
    if "origin" in headers:
        return "requests of web pages are refused; use gcloud, the SDK or this project's own commands"
    # An image or a link of another site's page brings no Origin. A link to the page itself shows it, no more.
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
        return "requests of other sites' pages are refused; open the address by itself"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    writes = scope["method"] in ("POST", "PUT", "PATCH") and not scope["path"].startswith(STORAGE)
    if writes and kind != "application/json":
        return f'a body of type "{kind}" is refused; send application/json'
    return ""
