"""The subset of Cloud Storage's JSON API that google-cloud-storage, gcsfs, and gcloud use. Folders serve as buckets.

Source: Cloud Storage JSON API, reference and "Performing resumable uploads", 2026, and the clients' requests.
"""

import contextlib
import email
import http
import re
from collections.abc import Iterator, Mapping
from email.message import Message
from email.utils import formatdate
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.responses import Response, StreamingResponse

from vertex_launch.local.api.http import Call, Route, Router
from vertex_launch.local.resource_file import moment
from vertex_launch.local.storage import bucket_metadata, listing, uploads
from vertex_launch.local.storage.bucket_metadata import BucketMetadata
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.objects import BLOCK, Checksums, Object, bad_request, check
from vertex_launch.local.storage.xml_api import XmlApi

BUCKET = "/storage/v1/b/{bucket}"
OBJECT = f"{BUCKET}/o/{{name:object}}"
TARGET = "/b/{target}/o/{copy:object}"
UPLOADS = "(?:/resumable)?/upload/storage/v1/b/{bucket}/o"
MOST_SOURCES = 32  # the maximum number of sources in a compose call
MOST_CALLS = 100  # the maximum number of calls in a batch


class GcsApi:
    """The methods of the JSON API. Each method takes a call and the segments of the URL path."""

    def __init__(self, root: Path) -> None:
        self.buckets = Buckets(root)
        self._metadata = BucketMetadata(self.buckets)
        self._in_batches = Router(self._plain_routes())

    def routes(self) -> list[Route]:
        """Return the JSON API's routes. GET requests can't start uploads, because web pages can send GET requests."""
        uploading = [(method, UPLOADS, self.upload) for method in ("POST", "PUT", "DELETE")]
        return [*self._plain_routes(), ("POST", "/batch/storage/v1", self.batch), *uploading, *XmlApi(self).routes()]

    def _plain_routes(self) -> list[Route]:
        return [
            ("GET", "/storage/v1/b", self.list_buckets),
            ("POST", "/storage/v1/b", self.create_bucket),
            ("GET", BUCKET, self.get_bucket),
            ("PATCH", BUCKET, self.change_bucket),
            ("PUT", BUCKET, self.change_bucket),
            ("DELETE", BUCKET, self.delete_bucket),
            ("GET", f"{BUCKET}/iam", lambda call, bucket: self._metadata.policy(bucket)),
            ("PUT", f"{BUCKET}/iam", self.set_policy),
            ("GET", f"{BUCKET}/iam/testPermissions", self.permissions),
            ("GET", f"{BUCKET}/storageLayout", self.get_layout),
            ("GET", f"{BUCKET}/managedFolders", self.list_managed_folders),
            ("GET", f"{BUCKET}/o", self.list_objects),
            ("GET", f"(?:/download)?{OBJECT}", self.get_object),
            ("PATCH", OBJECT, self.patch_object),
            ("PUT", OBJECT, self.patch_object),
            ("DELETE", OBJECT, self.delete_object),
            ("POST", f"{OBJECT}/copyTo{TARGET}", self.copy_object),
            ("POST", f"{OBJECT}/rewriteTo{TARGET}", self.rewrite_object),
            ("POST", f"{OBJECT}/moveTo/o/{{to:object}}", self.move_object),
            ("POST", f"{OBJECT}/compose", self.compose_object),
        ]

    def list_buckets(self, call: Call) -> Any:
        names = [name for name in self.buckets.names() if name.startswith(call.query.get("prefix", ""))]
        return {"kind": "storage#buckets", "items": [self.get_bucket(call, name) for name in names]}

    def create_bucket(self, call: Call) -> Any:
        body = call.json()
        name, metadata = str(body.get("name", "")), bucket_metadata.new(body, call.query.get("project", ""))
        self.buckets.create(name)
        self._metadata.write(name, metadata)
        return self.get_bucket(call, name)

    def get_bucket(self, call: Call, bucket: str) -> Any:
        address = {"id": bucket, "selfLink": f"{call.base}/storage/v1/b/{bucket}"}
        return {"kind": "storage#bucket", **address, **self._metadata.get(bucket)}

    def change_bucket(self, call: Call, bucket: str) -> Any:
        change = self._metadata.patch if call.method == "PATCH" else self._metadata.replace
        change(bucket, call.json(), call.query.get("ifMetagenerationMatch", ""))
        return self.get_bucket(call, bucket)

    def delete_bucket(self, call: Call, bucket: str) -> Any:
        self.buckets.remove(bucket)
        self._metadata.remove(bucket)
        return Response(status_code=204)

    def set_policy(self, call: Call, bucket: str) -> Any:
        self._metadata.set_policy(bucket, call.json())
        return self._metadata.policy(bucket)

    def permissions(self, call: Call, bucket: str) -> Any:
        """Return all requested permissions, because the local Vertex doesn't enforce permissions."""
        self.buckets.folder(bucket)
        return {"kind": "storage#testIamPermissionsResponse", "permissions": call.query.getlist("permissions")}

    def get_layout(self, call: Call, bucket: str) -> Any:
        place = {key: value for key, value in self.get_bucket(call, bucket).items() if key.startswith("location")}
        layout = {"kind": "storage#storageLayout", "bucket": bucket, **place}
        return {**layout, "hierarchicalNamespace": {"enabled": False}}

    def list_managed_folders(self, call: Call, bucket: str) -> Any:
        """Return an empty list of managed folders. gcloud requests this list before it removes a bucket."""
        self.buckets.folder(bucket)
        return {"kind": "storage#managedFolders"}

    def list_objects(self, call: Call, bucket: str) -> Any:
        names, prefixes, token = listing.page(self.buckets.folder(bucket), call.query)
        objects = filter(None, (self.buckets.find(bucket, name) for name in names))  # some might be deleted by now
        items = [self.described(call, item) for item in objects]
        listed = {"items": items, "prefixes": prefixes, "nextPageToken": token}
        return {"kind": "storage#objects"} | {key: value for key, value in listed.items() if value}

    def get_object(self, call: Call, bucket: str, name: str) -> Any:
        item, file = self.buckets.open(bucket, name)
        with contextlib.ExitStack() as until_sent:
            until_sent.callback(file.close)
            if call.query.get("ifGenerationNotMatch") == str(item.generation):
                return Response(status_code=304)
            check(call.query, item)
            if call.query.get("alt") != "media":
                return self.described(call, item)
            sums = self.buckets.checksums(item)
            until_sent.pop_all()
            return _media(call, item, file, sums)

    def patch_object(self, call: Call, bucket: str, name: str) -> Any:
        """Return the object unchanged, because a file can't store an object's metadata."""
        item = self.buckets.get(bucket, name)
        check(call.query, item)
        return self.described(call, item)

    def delete_object(self, call: Call, bucket: str, name: str) -> Any:
        self.buckets.delete(bucket, name, call.query)
        return Response(status_code=204)

    def copy_object(self, call: Call, bucket: str, name: str, target: str, copy: str) -> Any:
        item, file = self.buckets.open(bucket, name)
        with file:
            check(call.query, item, "ifSource")
            return self.described(call, self.buckets.combine([file], target, copy, call.query))

    def rewrite_object(self, call: Call, bucket: str, name: str, target: str, copy: str) -> Any:
        resource = self.copy_object(call, bucket, name, target, copy)
        sizes = dict.fromkeys(("totalBytesRewritten", "objectSize"), resource["size"])
        return {"kind": "storage#rewriteResponse", **sizes, "done": True, "resource": resource}

    def move_object(self, call: Call, bucket: str, name: str, to: str) -> Any:
        return self.described(call, self.buckets.move(bucket, name, to, call.query))

    def compose_object(self, call: Call, bucket: str, name: str) -> Any:
        with contextlib.ExitStack() as opened:
            files = []
            for source, conditions in _sources(call.json()):
                item, file = self.buckets.open(bucket, source)
                files.append(opened.enter_context(file))
                check(conditions, item)
            return self.described(call, self.buckets.combine(files, bucket, name, call.query))

    async def upload(self, call: Call, bucket: str) -> Any:
        done = await uploads.upload(self.buckets, call, bucket)
        return done if isinstance(done, Response) else await run_in_threadpool(self.described, call, done)

    def batch(self, call: Call) -> Any:
        """Execute a batch request's calls in order.

        Source: Cloud Storage documentation, "Batch requests", 2026.
        """
        head = f"Content-Type: {call.headers.get('content-type', '')}\r\n\r\n"
        try:
            message = email.message_from_bytes(head.encode("latin-1", "replace") + call.body)
        except RecursionError:
            raise bad_request("The batch is nested too deeply; send the calls without nesting.") from None
        parts = cast(list[Message], message.get_payload()) if message.is_multipart() else []
        if not 0 < len(parts) <= MOST_CALLS:
            raise bad_request(f"The body isn't a batch request; send 1 to {MOST_CALLS} calls as multipart/mixed.")
        answers = [_as_part(part, self._in_batches.answer(_call_in(part, call))) for part in parts]
        body = b"".join(b"--batch\r\n%s\r\n" % answer for answer in answers) + b"--batch--\r\n"
        return Response(body, media_type='multipart/mixed; boundary="batch"')

    def described(self, call: Call, item: Object) -> dict[str, Any]:
        address = f"storage/v1/b/{item.bucket}/o/{quote(item.name, safe='')}"
        sums = self.buckets.checksums(item)
        resource = {
            "kind": "storage#object",
            "id": f"{item.bucket}/{item.name}/{item.generation}",
            "selfLink": f"{call.base}/{address}",
            "mediaLink": f"{call.base}/download/{address}?generation={item.generation}&alt=media",
            "name": item.name,
            "bucket": item.bucket,
            "generation": str(item.generation),
            "metageneration": "1",
            "contentType": item.content_type,
            "storageClass": "STANDARD",
            "size": str(item.size),
            "etag": str(item.generation),
            **dict.fromkeys(("timeCreated", "updated", "timeStorageClassUpdated"), moment(item.modified)),
        }
        return resource | (sums or {})


def _sources(body: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the name and the preconditions of each source object in a compose call."""
    sources = body.get("sourceObjects")
    if not isinstance(sources, list) or not 0 < len(sources) <= MOST_SOURCES:
        raise bad_request(f"sourceObjects isn't a list of 1 to {MOST_SOURCES} objects; compose in several steps.")
    read = []
    for source in sources:
        preconditions = source.get("objectPreconditions") or {} if isinstance(source, dict) else None
        if not isinstance(preconditions, dict):
            raise bad_request('sourceObjects isn\'t valid; use objects such as {"name": "a"}.')
        wanted = {"generation": source.get("generation"), **preconditions}
        conditions = {key: str(value) for key, value in wanted.items() if value is not None}
        read.append((str(source.get("name", "")), conditions))
    return read


def _call_in(part: Message, batch: Call) -> Call:
    """Parse the call in one part of a batch request. The part contains the text of an HTTP request."""
    line, _, remainder = str(part.get_payload()).lstrip().partition("\n")
    method, target, *_ = [*line.split(" "), "", ""]
    try:
        url = urlsplit(target)
    except ValueError as error:  # such as half of an IPv6 address
        raise bad_request(f"{target} in the batch isn't a URL: {error}.") from None
    query = QueryParams(parse_qsl(url.query))
    if query.get("alt") == "media":
        raise bad_request("A batch request can't download objects; request the object separately.")
    body = str(email.message_from_string(remainder).get_payload()).encode("utf-8", "surrogateescape")
    return Call(method, url.path, query, batch.headers, batch.stream, body)


def _as_part(part: Message, answer: Response) -> bytes:
    """Convert a response to one part of the batch response.

    The new part has the same content ID as the corresponding part of the request.
    """
    id = str(part.get("content-id", "")).strip("<> ")
    about = f"Content-Type: application/http\r\nContent-ID: <response-{id}>\r\n"
    status = f"HTTP/1.1 {answer.status_code} {http.HTTPStatus(answer.status_code).phrase}\r\n"
    kind = f"Content-Type: {answer.headers.get('content-type', 'text/plain')}\r\nContent-Length: {len(answer.body)}\r\n"
    return f"{about}\r\n{status}{kind}\r\n".encode("utf-8", "replace") + bytes(answer.body)


def _media(call: Call, item: Object, file: BinaryIO, sums: Checksums | None) -> Response:
    """Return a response with the object's bytes. If the call requests a range, return only this range."""
    headers = {
        "Content-Type": item.content_type,
        "ETag": f'"{item.generation}"',
        "Last-Modified": formatdate(item.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        # In a browser, HTML from a bucket can't run scripts or read other pages.
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
        "X-Goog-Generation": str(item.generation),
        "X-Goog-Metageneration": "1",
        "X-Goog-Stored-Content-Length": str(item.size),
    }
    if sums:
        headers["X-Goog-Hash"] = f"crc32c={sums['crc32c']},md5={sums['md5Hash']}"
    byte_range = _range(call.headers.get("range", ""), item.size)
    begin, end = byte_range or (0, item.size)
    if byte_range:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{item.size}"
    if byte_range and begin >= end:
        file.close()
        return Response(status_code=416, headers={"Content-Range": f"bytes */{item.size}"})
    headers["Content-Length"] = str(end - begin)
    return StreamingResponse(_blocks_of(file, begin, end), 206 if byte_range else 200, headers)


def _range(text: str, size: int) -> tuple[int, int] | None:
    """Return the start and the exclusive end of a range such as bytes=0-9, bytes=5-, or bytes=-5.

    If no bytes of the range exist, the start is greater than or equal to the end. Return None if the text isn't a
    range.
    """
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", text)
    if not match or not any(match.groups()) or (all(match.groups()) and int(match[1]) > int(match[2])):
        return None
    if not match[1]:
        return max(size - int(match[2]), 0), size
    return min(int(match[1]), size), min(int(match[2]) + 1, size) if match[2] else size


def _blocks_of(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(begin)
        while begin < end and (block := file.read(min(BLOCK, end - begin))):
            begin += len(block)
            yield block
