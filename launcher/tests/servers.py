"""Servers that a test puts in the place of somebody else's."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter


class Replying(BaseHTTPRequestHandler):
    """One request, to whatever method, which `respond` answers; nothing of it is printed."""

    def respond(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def do_PUT(self) -> None:
        self.respond()

    def do_PATCH(self) -> None:
        self.respond()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, content: Any) -> None:
        """Answer with JSON; bytes are JSON already. Whoever asked may be gone."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """The server answers until the end of the block."""
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class ToLocal(HTTPAdapter):
    """Sends to a server here what is meant for Google."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._endpoint = endpoint

    def send(self, request: PreparedRequest, *rest: Any, **how: Any) -> Response:
        request.url = f"{self._endpoint}{request.path_url}"
        return super().send(request, *rest, **how)
