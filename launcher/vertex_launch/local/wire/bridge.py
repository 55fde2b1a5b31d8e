"""Translates gRPC calls to REST calls. Google's SDK uses gRPC by default, but the local Vertex serves only REST."""

import functools
import importlib
import inspect
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.api_core.rest_streaming import ResponseIterator
from google.auth.credentials import AnonymousCredentials
from google.protobuf import field_mask_pb2, json_format
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # noqa: F401 - the types of details, which JSON names

from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import not_here

THREADS = 8
# /google.cloud.aiplatform.v1.JobService/CreateCustomJob
METHOD = re.compile(r"/(google\.cloud\.(?:aiplatform|resourcemanager))\.(v\w+)\.(\w+)/(\w+)")
# The methods that every Google service has. Every Vertex AI client supports these methods.
MIXIN = re.compile(r"/google\.(?:longrunning\.Operations|cloud\.location\.Locations|iam\.v1\.IAMPolicy)/(\w+)")
MIXED_INTO = ("google.cloud.aiplatform", "v1", "JobService")
DETAILS_HEADER = "grpc-status-details-bin"  # Source: grpcio-status 1.85.3, rpc_status.py


class Bridge(grpc.GenericRpcHandler):
    """A gRPC handler that translates calls to REST.

    The handler rejects services whose Python client doesn't support REST.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method, mixin = METHOD.fullmatch(details.method), MIXIN.fullmatch(details.method)
        names = method.groups() if method else (*MIXED_INTO, mixin[1]) if mixin else None

        def answer(bodies: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                stub = self._stub(*names) if names else None
                if stub is None:
                    raise not_here(details.method[1:])
                response = stub(_request(stub, next(bodies, b"")))
                yield from map(_bytes, response if isinstance(response, ResponseIterator) else [response])
            except GoogleAPICallError as error:
                _abort(context, error.response.json())  # the exception for a 400 contains no status
            except ApiError as error:
                _abort(context, error.as_json())
            except (json_format.Error, DecodeError, ValueError) as error:  # not valid in JSON, such as NaN in a Value
                _abort(context, ApiError("INVALID_ARGUMENT", f"{error}; use a value that JSON supports").as_json())
            except NotImplementedError:  # a stream from the client
                _abort(context, not_here(details.method[1:]).as_json())

        return grpc.stream_stream_rpc_method_handler(answer)  # on the wire, a message is a stream of one message

    @functools.cache  # noqa: B019 - one bridge lives as long as the process
    def _stub(self, package: str, version: str, service: str, method: str) -> Any:
        """Return the function that calls a method over REST. Return None if the client doesn't support the method."""
        try:
            module = importlib.import_module(f"{package}_{version}.services.{_snake(service)}")
        except ImportError:
            return None
        connect, options = getattr(module, f"{service}Client"), {"api_endpoint": self._endpoint}
        client = connect(transport="rest", credentials=AnonymousCredentials(), client_options=options)
        session = client.transport._session
        session.trust_env = False  # a proxy can't reach this machine
        session.headers["Connection"] = "close"  # the client wouldn't close a connection that the server closed
        return getattr(client.transport, _snake(method), None)


def serve(endpoint: str, host: str) -> int:
    """Start a gRPC server without TLS that runs until the process exits. Return the server's port."""
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[Bridge(endpoint)])
    port: int = server.add_insecure_port(f"{host}:0")
    server.start()
    # gRPC stops a server without references, so this thread keeps a reference.
    threading.Thread(target=server.wait_for_termination, name="gRPC", daemon=True).start()
    return port


def _request(stub: Any, body: bytes) -> Any:
    """Convert a serialized gRPC request to a request for the REST call. Raises ApiError if a field is unknown."""
    kind = inspect.signature(stub.__call__).parameters["request"].annotation
    request = kind() if issubclass(kind, Message) else kind.pb(kind())
    request.ParseFromString(body)
    size = request.ByteSize()
    request.DiscardUnknownFields()
    if request.ByteSize() != size:
        fault = "the request has fields that the local Vertex's google-cloud-aiplatform release doesn't define"
        raise ApiError("INVALID_ARGUMENT", f"{fault}; install the same release in the replica")
    for field in request.DESCRIPTOR.fields:
        if field.message_type is field_mask_pb2.FieldMask.DESCRIPTOR and request.HasField(field.name):
            mask = getattr(request, field.name)
            mask.paths[:] = map(_snake, mask.paths)  # clients use either case, but JSON conversion needs snake case
    return request if kind is type(request) else kind(request)


def _abort(context: grpc.ServicerContext, answer: Mapping[str, Any]) -> None:
    """Abort a gRPC call with an error from the REST API, including the error's details."""
    error = answer["error"]
    code = grpc.StatusCode[error["status"]]
    whole = {"code": code.value[0], "message": error["message"], "details": error.get("details", [])}
    status = json_format.ParseDict(whole, status_pb2.Status())
    context.set_trailing_metadata(((DETAILS_HEADER, status.SerializeToString()),))
    context.abort(code, error["message"])


def _bytes(response: Any) -> bytes:
    """Convert a response to bytes. The response can be a wrapped message, a plain message, or None."""
    if response is None:
        return b""
    pb = type(response).pb(response) if hasattr(type(response), "pb") else response
    return bytes(pb.SerializeToString())


def _snake(name: str) -> str:
    """Convert a name to snake case. For example, convert CreateCustomJob to create_custom_job."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
