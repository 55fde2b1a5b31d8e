"""The HTTP router, the request type, and the error responses for all APIs of the local Vertex."""

import asyncio
import inspect
import json
import logging
import re
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from vertex_launch.local.api import field_mask
from vertex_launch.local.api.errors import STORAGE, ApiError, our_fault
from vertex_launch.local.api.origin_check import fault_of, in_parts
from vertex_launch.local.google import is_google
from vertex_launch.untrusted import jsons
from vertex_launch.untrusted.printable import printable

LOG = logging.getLogger(__name__)  # the server's terminal shows this log

POLICY_VIOLATION = 1008  # the code for closing a websocket. Source: RFC 6455, section 7.4.1
LARGEST_BODY = 10**6  # bytes; a job takes about 1,000 bytes, and object uploads are streams without a limit

PART = r"(?:(?!%2[Ff])[^/])+"  # one segment of a path, between two slashes
PARTS = {
    "": PART,
    "path": f"{PART}(?:/{PART})*",
    "rest": ".+",  # can contain slashes, plain or as %2F
    "object": "[^/]+",  # can contain slashes as %2F
    "parent": f"projects/{PART}/locations/{PART}",
}

# The Google hosts that the local Vertex replaces. A region can come before or after the name, as in
# us-central1-aiplatform and aiplatform.us-central1.rep.
SERVED = re.compile(
    r"([a-z0-9-]+-)?aiplatform|(aiplatform|storage)\.[a-z0-9-]+\.rep|storage|www|logging|oauth2|cloudresourcemanager"
)
XML_API = "/xml"  # the prefix for the paths of Cloud Storage's XML API, /BUCKET/OBJECT


@dataclass(frozen=True)
class Call:
    """An HTTP request. The router reads the body for synchronous handlers. Asynchronous handlers read `stream`."""

    method: str
    path: str  # as sent: %2F in an object's name isn't a slash
    query: QueryParams
    headers: Mapping[str, str]  # names in lowercase
    stream: Callable[[], AsyncIterator[bytes]]
    body: bytes = b""

    @property
    def base(self) -> str:
        """The server's URL as the client sees it."""
        host = self.headers.get("host", "")
        return f"{'https' if is_google(host) else 'http'}://{host}"

    def text(self) -> str:
        """Return the request body as text. Raises ApiError if the body isn't valid UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise ApiError("INVALID_ARGUMENT", f"byte {error.start} of the body isn't UTF-8; send UTF-8") from None

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object, or {} if the body is empty. Raises ApiError if the body isn't an object."""
        try:
            parsed = jsons.loads(self.body or b"{}")
            json.dumps(parsed, ensure_ascii=False).encode()  # rejects lone surrogates, which protobuf can't encode
        except ValueError as error:
            raise ApiError("INVALID_ARGUMENT", f"the body isn't JSON: {error}; send valid JSON") from None
        if not isinstance(parsed, dict):
            raise ApiError("INVALID_ARGUMENT", "the body must be a JSON object")
        return parsed


Handler = Callable[..., Any]  # takes a call and the named parts of the path; returns a Response, or JSON for a Response
Route = tuple[str, str, Handler]  # method, path pattern and handler
Connect = Callable[[WebSocket], Awaitable[None]]


class Router:
    """An ASGI application that sends each request to the first route with a matching method and path.

    A route's path is a regular expression. In a path, {name} matches the pattern PARTS[""], and {name:KIND} matches the
    pattern PARTS[KIND]. The `connect` function handles websockets.
    """

    def __init__(self, routes: Iterable[Route], connect: Connect | None = None) -> None:
        self._connect = connect
        self._routes = [(method, _pattern(address), handler) for method, address, handler in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send)
            await (self._connect(socket) if self._connect and not fault_of(scope) else socket.close(POLICY_VIOLATION))
            return
        request = Request(scope, receive)
        path = scope["raw_path"].decode("ascii", "replace")
        method = "GET" if request.method == "HEAD" else request.method
        call = Call(method, path, request.query_params, request.headers, request.stream)
        try:
            if fault := fault_of(scope):  # before the body is read
                raise ApiError("PERMISSION_DENIED", fault)
            if is_google(host := call.headers.get("host", "")):
                call = replace(call, path=_path_of(host, path))
            elif in_parts(scope):
                call = replace(call, path=f"{XML_API}{path}")
            handler, parts = self._find(call)
            if inspect.iscoroutinefunction(handler):
                answer = _response(await handler(call, **parts))
            else:  # in a thread, so that the server can handle other requests at the same time
                answer = await run_in_threadpool(self.answer, replace(call, body=await read_body(call)))
        except (ClientDisconnect, asyncio.CancelledError):  # the client disconnected, or the server is stopping
            answer = Response(status_code=499)  # no client reads this response
        except Exception as error:
            answer = refusal(call, error)
        if request.method == "HEAD":  # without reading the file
            answer = Response(status_code=answer.status_code, headers=answer.headers)
        await answer(scope, receive, send)

    def answer(self, call: Call) -> Response:
        """Call a synchronous handler, and return its response."""
        try:
            handler, parts = self._find(call)
            mask = field_mask.parse(call.query)
            return _response(field_mask.selected(handler(call, **parts), mask))
        except Exception as error:
            return refusal(call, error)

    def _find(self, call: Call) -> tuple[Handler, dict[str, str]]:
        for method, address, handler in self._routes:
            match = address.fullmatch(call.path)
            if match and method == call.method:
                return handler, {name: unquote(part) for name, part in match.groupdict().items()}
        raise ApiError("NOT_FOUND", f"the local Vertex doesn't serve {call.method} {unquote(call.path)}")


def _path_of(host: str, path: str) -> str:
    """Convert a path on a Google host to a local path. Raises ApiError if the service isn't available locally."""
    name = host.lower().partition(":")[0].removesuffix(".googleapis.com")
    if not SERVED.fullmatch(name):
        raise not_here(host)
    return f"{XML_API}{path}" if name.startswith("storage") and not path.startswith(STORAGE) else path


def not_here(service: str) -> ApiError:
    """Return the error for a call to a Google service that isn't available locally."""
    fault = f"{service} isn't available locally, and local replicas can't reach Google Cloud"
    return ApiError("UNIMPLEMENTED", f"{fault}; the local Vertex serves Vertex AI, Cloud Storage, and Cloud Logging")


async def read_body(call: Call) -> bytes:
    """Return the whole request body.

    Raises ApiError if the body is too large. Even then, first read the whole body, because many clients require this.
    """
    body = bytearray()
    async for chunk in call.stream():
        if len(body) <= LARGEST_BODY:
            body += chunk
    if len(body) > LARGEST_BODY:
        raise ApiError("INVALID_ARGUMENT", f"the body is larger than {LARGEST_BODY // 10**6} MB; send a smaller body")
    return bytes(body)


def refusal(call: Call, error: Exception) -> Response:
    """Return an error response in the format of the called API, and log the error to the server's terminal."""
    if isinstance(error, OSError):
        fault = f"the operating system reported: {error.strerror or error}; check the disk space and permissions"
        error = ApiError("INTERNAL", fault)
    elif not isinstance(error, ApiError):
        traceback.print_exception(error)
        error = our_fault(error)
    stored = call.path.startswith((*STORAGE, XML_API))
    # Cloud Storage clients often check whether an object exists and send preconditions, so these errors aren't logged.
    if not (stored and error.http_status in (404, 412)):
        address, reason = call.path.removeprefix(XML_API), re.split("[;\n]", error.message)[0]
        line = f"{call.method} {address} {error.http_status} {error.status}: {reason}"
        LOG.warning("%s rejected: %s", time.strftime("%X"), printable(line))
    return _response(error.for_storage() if stored else error.as_json(), error.http_status)


def _response(content: Any, status: int = 200) -> Response:
    if isinstance(content, Response):
        return content
    # ASCII, because a log line can contain a lone surrogate, which UTF-8 can't encode.
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _pattern(address: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+):?(\w*)}", lambda part: f"(?P<{part[1]}>{PARTS[part[2]]})", address), re.DOTALL)
