"""HTTP for both APIs of the local Vertex, Vertex AI's and Cloud Storage's: one router, one request, one error."""

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

LOG = logging.getLogger(__name__)  # which the service's terminal shows

POLICY_VIOLATION = 1008  # why a websocket is closed. Source: RFC 6455, section 7.4.1
LARGEST_BODY = 10**6  # bytes, a thousand times a job's; an object's upload is a stream and has no limit

PART = r"(?:(?!%2[Ff])[^/])+"  # of an address, between two slashes
PARTS = {
    "": PART,
    "path": f"{PART}(?:/{PART})*",
    "rest": ".+",  # with slashes, sent as they are or as %2F
    "object": "[^/]+",  # the only one that may hold a slash, sent as %2F
    "parent": f"projects/{PART}/locations/{PART}",
}

# Hosts of Google that this service stands for. A region stands before the name, as in us-central1-aiplatform, or behind
# it, as in aiplatform.us-central1.rep.
SERVED = re.compile(
    r"([a-z0-9-]+-)?aiplatform|(aiplatform|storage)\.[a-z0-9-]+\.rep|storage|www|logging|oauth2|cloudresourcemanager"
)
XML_API = "/xml"  # before the addresses of Cloud Storage's other API, /BUCKET/OBJECT


@dataclass(frozen=True)
class Call:
    """One request. Its body is read, unless the handler is asynchronous: that one reads the stream."""

    method: str
    path: str  # as sent: %2F in an object's name is not a slash
    query: QueryParams
    headers: Mapping[str, str]  # names in lower case
    stream: Callable[[], AsyncIterator[bytes]]
    body: bytes = b""

    @property
    def base(self) -> str:
        """The address under which the client knows this service."""
        host = self.headers.get("host", "")
        return f"{'https' if is_google(host) else 'http'}://{host}"

    def text(self) -> str:
        """The body; raises ApiError if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise ApiError("INVALID_ARGUMENT", f"byte {error.start} of the body is not UTF-8; send UTF-8") from None

    def json(self) -> dict[str, Any]:
        """The body, which is a JSON object or, if it is empty, stands for one; raises ApiError for anything else."""
        try:
            parsed = jsons.loads(self.body or b"{}")
            json.dumps(parsed, ensure_ascii=False).encode()  # no half of a character, over which protobuf stumbles
        except ValueError as error:
            raise ApiError("INVALID_ARGUMENT", f"the body is not JSON: {error}; correct it there") from None
        if not isinstance(parsed, dict):
            raise ApiError("INVALID_ARGUMENT", "the body must be a JSON object")
        return parsed


Handler = Callable[..., Any]  # takes a call and the address's named parts; returns a Response, or JSON to put into one
Route = tuple[str, str, Handler]  # a method, an address, a handler
Connect = Callable[[WebSocket], Awaitable[None]]


class Router:
    """An ASGI application that gives each request to the first route with its method and address.

    An address is a regular expression in which {name} or {name:KIND} stands for one of PARTS. Websockets go to
    `connect`.
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
            else:  # in a thread, so that other requests are served meanwhile
                answer = await run_in_threadpool(self.answer, replace(call, body=await read_body(call)))
        except (ClientDisconnect, asyncio.CancelledError):  # the client is gone, or the service stops
            answer = Response(status_code=499)  # nobody reads it
        except Exception as error:
            answer = refusal(call, error)
        if request.method == "HEAD":  # no byte of a file needs to be read
            answer = Response(status_code=answer.status_code, headers=answer.headers)
        await answer(scope, receive, send)

    def answer(self, call: Call) -> Response:
        """The answer of a handler that is not asynchronous."""
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
        raise ApiError("NOT_FOUND", f"{call.method} {unquote(call.path)} is not served by the local Vertex")


def _path_of(host: str, path: str) -> str:
    """Return the address here of a path on one of Google's hosts; raises ApiError for a service that is not here."""
    name = host.lower().partition(":")[0].removesuffix(".googleapis.com")
    if not SERVED.fullmatch(name):
        raise not_here(host)
    return f"{XML_API}{path}" if name.startswith("storage") and not path.startswith(STORAGE) else path


def not_here(service: str) -> ApiError:
    """Return the error for a call to another service of Google."""
    fault = f"{service} is not on this machine, and replicas here never reach Google Cloud"
    return ApiError("UNIMPLEMENTED", f"{fault}; the local Vertex has Vertex AI, Cloud Storage and Cloud Logging")


async def read_body(call: Call) -> bytes:
    """The whole body; raises ApiError if it is too large, but only at its end, as many clients want to send it all."""
    body = bytearray()
    async for chunk in call.stream():
        if len(body) <= LARGEST_BODY:
            body += chunk
    if len(body) > LARGEST_BODY:
        raise ApiError("INVALID_ARGUMENT", f"the body is larger than {LARGEST_BODY // 10**6} MB; send less at once")
    return bytes(body)


def refusal(call: Call, error: Exception) -> Response:
    """An error as the API to which the address belongs writes it; whoever runs the service reads it, too."""
    if isinstance(error, OSError):
        fault = f"this machine refused it: {error.strerror or error}; check its disk and permissions"
        error = ApiError("INTERNAL", fault)
    elif not isinstance(error, ApiError):
        traceback.print_exception(error)
        error = our_fault(error)
    stored = call.path.startswith((*STORAGE, XML_API))
    # Clients of Cloud Storage ask whether an object exists, and send conditions, as a matter of course.
    if not (stored and error.http_status in (404, 412)):
        address, reason = call.path.removeprefix(XML_API), re.split("[;\n]", error.message)[0]
        line = f"{call.method} {address} {error.http_status} {error.status}: {reason}"
        LOG.warning("%s refused: %s", time.strftime("%X"), printable(line))
    return _response(error.for_storage() if stored else error.as_json(), error.http_status)


def _response(content: Any, status: int = 200) -> Response:
    if isinstance(content, Response):
        return content
    # ASCII, because a line of a replica may hold a lone surrogate, which UTF-8 cannot encode.
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _pattern(address: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+):?(\w*)}", lambda part: f"(?P<{part[1]}>{PARTS[part[2]]})", address), re.DOTALL)
