"""Answers gRPC calls of Google's clients by their REST twins: the SDK's default transport, for an API that is REST."""

import functools
import importlib
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials

THREADS = 8
# /google.cloud.aiplatform.v1.JobService/CreateCustomJob
METHOD = re.compile(r"/(?P<package>google\.cloud\.\w+)\.(?P<version>v\w+)\.(?P<service>\w+)/(?P<method>\w+)")


class Bridge(grpc.GenericRpcHandler):
    """Translates any call of a service whose Python client has a REST transport."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        match = METHOD.fullmatch(details.method)
        stub = self._stub(*match.groups()) if match else None
        if stub is None:
            return None  # gRPC answers UNIMPLEMENTED
        request = inspect.signature(stub.__call__).parameters["request"].annotation

        def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return _bytes(stub(request.deserialize(body)))
            except GoogleAPICallError as error:
                fault = error.response.json()["error"]  # the exception of a 400 names no status
                context.abort(grpc.StatusCode[fault["status"]], fault["message"])
                raise

        return grpc.unary_unary_rpc_method_handler(answer)

    @functools.cache  # noqa: B019 - one bridge lives as long as the process
    def _stub(self, package: str, version: str, service: str, method: str) -> Any:
        """The REST call of a method, None where the client has none."""
        try:
            module = importlib.import_module(f"{package}_{version}.services.{_snake(service)}")
        except ImportError:
            return None
        client = getattr(module, f"{service}Client")(
            transport="rest", credentials=AnonymousCredentials(), client_options={"api_endpoint": self._endpoint}
        )
        client.transport._session.trust_env = False  # no proxy leads to this machine
        return getattr(client.transport, _snake(method), None)


def serve(endpoint: str, host: str) -> int:
    """Serve gRPC without TLS until the process ends; returns the port."""
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[Bridge(endpoint)])
    port: int = server.add_insecure_port(f"{host}:0")
    server.start()
    # gRPC stops a server that nothing refers to.
    threading.Thread(target=server.wait_for_termination, name="gRPC", daemon=True).start()
    return port


def _bytes(response: Any) -> bytes:
    """A response on the wire: of a wrapped message, of a plain one, or of none, which is empty."""
    if response is None:
        return b""
    pb = type(response).pb(response) if hasattr(type(response), "pb") else response
    return bytes(pb.SerializeToString())


def _snake(name: str) -> str:
    """create_custom_job of CreateCustomJob."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
