"""The replicas' proxy, which redirects Google traffic to the local Vertex and forwards all other connections.

A client in a replica connects to Google as usual. The proxy accepts the connection with a certificate that the replicas
trust, and forwards the requests to the local Vertex. A replica's tokens never leave the machine.

The proxy is also the metadata server, from which Google's clients read a replica's project, zone, and service account.
Source: Compute Engine documentation, "About VM metadata" and "Predefined metadata keys", 2026.
"""

import asyncio
import contextlib
import functools
import json
import random
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vertex_launch import program
from vertex_launch.job.contract import project_number
from vertex_launch.job.spec import Job
from vertex_launch.job.state_dir import private, private_file
from vertex_launch.local.google import is_google
from vertex_launch.local.running.context import Context
from vertex_launch.local.running.hosts import LOOPBACK
from vertex_launch.local.wire.authority import BUNDLES, Authority
from vertex_launch.settings import Settings, for_local

HTTP = "http/1.1"  # the ALPN name; gRPC is "h2"
BUNDLE = "authorities.pem"  # in a job's home folder
PROXIES = ("https_proxy", "HTTPS_PROXY")
METADATA_ROOT = "/computeMetadata"
METADATA_HOSTS = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT")
METADATA_PORT = 80  # the default port, for programs that don't read these variables
METADATA_NETWORK, METADATA_ADDRESSES = IPv4Address("127.192.0.0"), 2**20  # replicas have lower addresses
TOKEN = {"access_token": "local-vertex", "expires_in": 3599, "token_type": "Bearer"}
SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")
CHUNK = 2**16  # bytes
END = b"\r\n\r\n"  # the end of a request's or response's head
OBSOLETE = re.compile(rb"Transfer-Encoding: identity\r\n", re.IGNORECASE)  # TensorFlow sends it, but servers reject it
FLAVOR = re.compile(rb"\r\nmetadata-flavor:[ \t]*google[ \t]*\r\n", re.IGNORECASE)
HEAD_SECONDS = 60  # the time limit for receiving a request's head

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """The proxies for the jobs that this process runs.

    Each proxy has its own port. If the endpoint is "", the proxies serve only Cloud Storage buckets.
    """

    def __init__(self, context: Context, endpoint: str = "") -> None:
        self._environ, self._endpoint, self._buckets = context.environ, endpoint, context.state_dir.buckets
        self._authority = Authority()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="wire", daemon=True).start()

    @contextlib.contextmanager
    def of_job(self, job: Job, job_id: str, context: Context) -> Iterator[Context]:
        """Run a job's proxy during the `with` block. Yield the context with environment variables that select it."""
        values = _metadata(for_local(context.settings), job.spec.service_account)
        bundle = private(context.state_dir.of_replicas(job_id)) / BUNDLE
        with open(bundle, "wb", opener=private_file) as file:
            file.write(self._authority.bundle(self._environ))
        server, metadata = self._listening(values, LOOPBACK, 0), None
        with contextlib.suppress(OSError):  # the port isn't permitted, or a process uses it on all addresses
            address = METADATA_NETWORK + random.randrange(1, METADATA_ADDRESSES)
            metadata = self._listening(values, str(address), METADATA_PORT)
        port = server.sockets[0].getsockname()[1]
        variables = {
            **dict.fromkeys(BUNDLES, str(bundle)),
            **dict.fromkeys(PROXIES, f"http://{LOOPBACK}:{port}"),
            **dict.fromkeys(METADATA_HOSTS, f"{LOOPBACK}:{port}"),
            "STORAGE_EMULATOR_HOST": f"http://{LOOPBACK}:{port}",  # gcsfs ignores proxies
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GOOGLE_CLOUD_DISABLE_GRPC": "true",  # the Cloud Logging client has no REST transport for the bridge
        }
        try:
            yield replace(context, wire=variables, metadata=metadata.sockets[0].getsockname()[0] if metadata else "")
        finally:
            for each in filter(None, (server, metadata)):
                self._loop.call_soon_threadsafe(each.close)
            bundle.unlink(missing_ok=True)

    def _listening(self, values: Any, address: str, port: int) -> asyncio.Server:
        """Start a proxy server for a job's replicas. Raises OSError if the port isn't available."""
        starting = asyncio.start_server(functools.partial(self._serve, values), address, port)
        return asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    async def _serve(self, values: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = reader, writer
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):  # the client disconnected
            head = await asyncio.wait_for(reader.readuntil(END), HEAD_SECONDS)
            method, target, *_ = [*head.decode("latin-1").split(" ", 2), "", ""]
            if method == "CONNECT" and is_google(target):
                await self._take(target.rpartition(":")[0], near)
            elif method == "CONNECT":
                await self._tunnel(target, near)
            elif target.startswith(METADATA_ROOT) or target == "/":
                writer.write(_of_metadata(values, target, head))
            else:  # a storage client that uses STORAGE_EMULATOR_HOST
                await self._hand_over(HTTP, head, near)
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()

    async def _take(self, host: str, near: Connection) -> None:
        """Accept a TLS connection on behalf of a Google host."""
        reader, writer = near
        writer.write(_answer("200 Connection established"))
        await writer.drain()
        await writer.start_tls(self._authority.context(host))
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or HTTP
        head = await reader.readuntil(END) if protocol == HTTP else b""
        await self._hand_over(protocol, head, near)

    async def _hand_over(self, protocol: str, head: bytes, near: Connection) -> None:
        """Forward a connection to the local Vertex.

        The proxy has already read `head`, the head of the first request.
        """
        port = await asyncio.to_thread(_server, protocol, self._endpoint, self._buckets)
        far = await asyncio.open_connection(LOOPBACK, port)
        far[1].write(OBSOLETE.sub(b"", head))
        await _join(near, far)

    async def _tunnel(self, target: str, near: Connection) -> None:
        """Forward a connection to a non-Google host. If the shell sets a proxy, use it."""
        writer = near[1]
        try:
            proxy = self._next_proxy(target)
            address = urlsplit(f"//{proxy or target}")
            far = await asyncio.open_connection(address.hostname or "", address.port or 443)
            if proxy:
                far[1].write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}{END.decode()}".encode("latin-1"))
                writer.write(await far[0].readuntil(END))
            else:
                writer.write(_answer("200 Connection established"))
        except (OSError, ValueError, EOFError) as error:
            writer.write(_answer("502 Bad Gateway", f"{target} can't be reached from this machine: {error}"))
            return
        await _join(near, far)

    def _next_proxy(self, target: str) -> str:
        """Return the shell's proxy for a host as HOST:PORT. Return "" if the shell doesn't set a proxy for the host."""
        proxy = next(filter(None, map(self._environ.get, PROXIES)), "")
        exceptions = {"no": self._environ.get("no_proxy") or self._environ.get("NO_PROXY", "")}
        direct = urllib.request.proxy_bypass_environment(target, exceptions)  # type: ignore[attr-defined]
        return "" if direct else urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc


@functools.cache
def _server(protocol: str, endpoint: str, buckets: Path) -> int:
    """Return the port of the server for a protocol. The first call for a protocol starts its server.

    If the endpoint is "", the server serves only the buckets.
    """
    endpoint = endpoint or _storage(buckets)
    if protocol == HTTP:
        return int(endpoint.rpartition(":")[2])
    from vertex_launch.local.wire import bridge  # imported late because most jobs don't use gRPC

    return bridge.serve(endpoint, LOOPBACK)


@functools.cache
def _storage(buckets: Path) -> str:
    """Start a server that serves the buckets and rejects calls to Vertex AI. Return the server's URL."""
    import uvicorn  # imported late because most runs don't need a server

    from vertex_launch.local.api.errors import ApiError
    from vertex_launch.local.api.http import Call, Router
    from vertex_launch.local.storage.gcs_api import GcsApi

    def refuse(call: Call, **parts: str) -> Any:
        fault = f"{call.method} {call.path}: this request is for the local Vertex, which isn't running"
        raise ApiError("UNIMPLEMENTED", f"{fault}; start `{program.NAME} emulate`, and submit the job to it")

    refusals = [(method, "/v[12].*", refuse) for method in ("GET", "POST", "PATCH", "DELETE")]
    listener = socket.create_server((LOOPBACK, 0))
    app = Router([*GcsApi(buckets).routes(), *refusals])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="buckets", daemon=True).start()
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def _metadata(settings: Settings, account: str) -> dict[str, Any]:
    """Return the metadata server's values for a service account. The account "" means the project's default account."""
    number = project_number(settings.project)
    email = account or f"{number}-compute@developer.gserviceaccount.com"
    own = {"aliases": ["default"], "email": email, "scopes": [*SCOPES], "token": json.dumps(TOKEN)}
    values = {
        "project": {"project-id": settings.project, "numeric-project-id": number},
        "universe": {"universe-domain": "googleapis.com"},
        "instance": {
            "attributes": {},
            "zone": f"projects/{number}/zones/{settings.region}-a",
            "service-accounts": {"default": own, email: own},
        },
    }
    return {METADATA_ROOT[1:]: {"v1": values}}


def _value(value: Any, path: str) -> str | None:
    """Return the value at a path in the metadata tree, or None if the path doesn't exist.

    If the path is a folder, return its keys. If the path ends with ?recursive=true, return the folder as JSON.
    """
    path, _, query = path.partition("?")
    for part in filter(None, path.split("/")):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        listed = "".join(f"{key}{'/' * isinstance(below, dict)}\n" for key, below in value.items())
        return json.dumps(value) if "recursive=true" in query.lower() else listed
    return "".join(f"{line}\n" for line in value) if isinstance(value, list) else value


def _of_metadata(values: Any, target: str, head: bytes) -> bytes:
    """Return the metadata server's response. A request must contain a header that web pages can't send."""
    if not FLAVOR.search(head) and target != "/":
        return _answer(
            "403 Forbidden", "the request doesn't contain the header Metadata-Flavor: Google; send this header"
        )
    value = _value(values, target)
    return _answer("404 Not Found", f"{target} doesn't exist") if value is None else _answer("200 OK", value)


def _answer(status: str, body: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}"]
    if "Connection" not in status:  # an established connection has no body
        kind = "application/json" if body.startswith("{") else "text/plain"
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body.encode())}", "Connection: close"]
        lines += ["Metadata-Flavor: Google"]
    return "\r\n".join(lines).encode() + END + body.encode()


async def _join(near: Connection, far: Connection) -> None:
    """Forward bytes in both directions until both sides have closed the connection."""
    await asyncio.gather(_pass(near[0], far[1]), _pass(far[0], near[1]))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(CHUNK):
            writer.write(block)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
