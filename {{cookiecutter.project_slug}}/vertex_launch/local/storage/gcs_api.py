"""Cloud Storage's JSON API over buckets that are folders: what google-cloud-storage, gcsfs and gcloud use of it.

Source: Cloud Storage JSON API, reference and "Performing resumable uploads", 2026, and what the clients send.
"""

import contextlib
import http
import json
import mimetypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from vertex_launch.local.storage import uploads
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.objects import BLOCK, Checksums, Object, StorageError, check

PREFIXES = ("/storage/v1", "/download/storage/v1", "/upload/storage/v1", "/resumable/upload/storage/v1", "/batch")
WRITES = ("POST", "PUT", "DELETE")  # of an upload; a GET is what any web page may send, as an image's address
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
MOST_SOURCES = 32  # of a compose call
MOST_CALLS = 100  # of a batch
BOUNDARY = re.compile(r'boundary="?([^";]+)', re.IGNORECASE)  # of a Content-Type
CONTENT_ID = re.compile(rb"^content-id: *<?([^>\n]*)", re.IGNORECASE | re.MULTILINE)

REASONS = {400: "invalid", 403: "forbidden", 404: "notFound", 409: "conflict", 412: "conditionNotMet"}


@dataclass(frozen=True)
class Call:
    """One request, without the bytes of an upload."""

    method: str
    path: str  # as sent, so that %2F in a name is not a slash yet
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""

    @property
    def base(self) -> str:
        return f"http://{self.headers.get('host', '')}"


def routes(root: Path) -> list[BaseRoute]:
    """The API for the buckets below `root`; clients find it by STORAGE_EMULATOR_HOST."""
    buckets = Buckets(root)

    async def endpoint(request: Request) -> Response:
        call = Call(request.method, uploads.raw_path(request), request.query_params, request.headers)
        to = UPLOAD.fullmatch(call.path) if call.method in WRITES else None
        try:
            if not to:
                return await run_in_threadpool(answer, buckets, replace(call, body=await uploads.body(request)))
            done = await uploads.upload(buckets, request, unquote(to[1]))
            return done if isinstance(done, Response) else await run_in_threadpool(_described, buckets, call, done)
        except (StorageError, OSError) as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return [Route(f"{prefix}/{{rest:path}}", endpoint, methods=METHODS) for prefix in PREFIXES]


def answer(buckets: Buckets, call: Call) -> Response:
    """What a call that is no upload does and gets."""
    try:
        for method, pattern, handler in HANDLERS:
            match = pattern.fullmatch(call.path)
            if match and method == call.method:
                return handler(buckets, call, *map(unquote, match.groups()))
        raise StorageError(404, f"{call.method} {call.path} is not part of the local Cloud Storage.")
    except (StorageError, OSError) as error:
        return refusal(error)


def refusal(error: StorageError | OSError) -> Response:
    """As Cloud Storage says it; its errors have a reason where those of Vertex AI have a status."""
    if isinstance(error, OSError):
        error = StorageError(500, f"The bucket's folder cannot be used: {error.strerror}.")
    reason = {"message": error.message, "domain": "global", "reason": REASONS.get(error.code, "invalid")}
    return JSONResponse({"error": {"code": error.code, "message": error.message, "errors": [reason]}}, error.code)


def list_buckets(buckets: Buckets, call: Call) -> Response:
    names = [name for name in buckets.names() if name.startswith(call.query.get("prefix", ""))]
    return JSONResponse({"kind": "storage#buckets", "items": [_bucket(buckets, call, name) for name in names]})


def create_bucket(buckets: Buckets, call: Call) -> Response:
    name = str(uploads.parsed(call.body).get("name", ""))
    buckets.create(name)
    return JSONResponse(_bucket(buckets, call, name))


def get_bucket(buckets: Buckets, call: Call, bucket: str) -> Response:
    return JSONResponse(_bucket(buckets, call, bucket))


def delete_bucket(buckets: Buckets, call: Call, bucket: str) -> Response:
    buckets.remove(bucket)
    return Response(status_code=204)


def get_layout(buckets: Buckets, call: Call, bucket: str) -> Response:
    buckets.folder(bucket)
    layout = {"kind": "storage#storageLayout", "bucket": bucket, "location": "US", "locationType": "multi-region"}
    return JSONResponse({**layout, "hierarchicalNamespace": {"enabled": False}})


def list_managed_folders(buckets: Buckets, call: Call, bucket: str) -> Response:
    """There are none, but gcloud looks before it removes a bucket."""
    buckets.folder(bucket)
    return JSONResponse({"kind": "storage#managedFolders"})


def list_objects(buckets: Buckets, call: Call, bucket: str) -> Response:
    objects, page = buckets.page(bucket, call.query)
    listed: dict[str, Any] = {"kind": "storage#objects"}
    if objects:
        listed["items"] = [_resource(call, item, buckets.checksums(item)) for item in objects]
    if page.prefixes:
        listed["prefixes"] = page.prefixes
    if page.token:
        listed["nextPageToken"] = page.token
    return JSONResponse(listed)


def get_object(buckets: Buckets, call: Call, bucket: str, name: str) -> Response:
    item, file = buckets.open(bucket, name)
    with contextlib.ExitStack() as until_sent:
        until_sent.callback(file.close)
        if call.query.get("ifGenerationNotMatch") == str(item.generation):
            return Response(status_code=304)
        check(call.query, item)
        sums = buckets.checksums(item)
        if call.query.get("alt") != "media":
            return JSONResponse(_resource(call, item, sums))
        until_sent.pop_all()
        return _media(call, item, file, sums)


def patch_object(buckets: Buckets, call: Call, bucket: str, name: str) -> Response:
    """Changes nothing: a file has no place for what could be changed."""
    item = buckets.get(bucket, name)
    check(call.query, item)
    return _described(buckets, call, item)


def delete_object(buckets: Buckets, call: Call, bucket: str, name: str) -> Response:
    buckets.delete(bucket, name, call.query)
    return Response(status_code=204)


def copy_object(buckets: Buckets, call: Call, bucket: str, source: str, target: str, name: str) -> Response:
    item, file = buckets.open(bucket, source)
    with file:
        check(call.query, item, "ifSource")
        copy = buckets.combine([file], target, name, call.query)
    return _described(buckets, call, copy)


def rewrite_object(buckets: Buckets, call: Call, bucket: str, source: str, target: str, name: str) -> Response:
    resource = json.loads(bytes(copy_object(buckets, call, bucket, source, target, name).body))
    size = resource["size"]
    rewritten = {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": resource}
    return JSONResponse({"kind": "storage#rewriteResponse", **rewritten})


def move_object(buckets: Buckets, call: Call, bucket: str, source: str, name: str) -> Response:
    moved = buckets.move(bucket, source, name, call.query)
    return _described(buckets, call, moved)


def compose_object(buckets: Buckets, call: Call, bucket: str, name: str) -> Response:
    with contextlib.ExitStack() as opened:
        files = []
        for source, conditions in _sources(uploads.parsed(call.body)):
            item, file = buckets.open(bucket, source)
            files.append(opened.enter_context(file))
            check(conditions, item)
        composed = buckets.combine(files, bucket, name, call.query)
    return _described(buckets, call, composed)


def _sources(body: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Name and preconditions of each source of a compose call."""
    sources = body.get("sourceObjects")
    if not isinstance(sources, list) or not 0 < len(sources) <= MOST_SOURCES:
        raise StorageError(400, f"sourceObjects is no list of 1 to {MOST_SOURCES} objects; compose in several steps.")
    read = []
    for source in sources:
        asked = source.get("objectPreconditions") or {} if isinstance(source, dict) else None
        if not isinstance(asked, dict):
            raise StorageError(400, 'sourceObjects cannot be read; each is such as {"name": "a"}.')
        wanted = {"generation": source.get("generation"), **asked}
        conditions = {key: str(value) for key, value in wanted.items() if value is not None}
        read.append((str(source.get("name", "")), conditions))
    return read


def batch(buckets: Buckets, call: Call) -> Response:
    """Several calls in one, each answered in its turn."""
    parts = _parts(call)
    if not 0 < len(parts) <= MOST_CALLS:
        raise StorageError(400, f"{len(parts)} calls in multipart/mixed; a batch has 1 to {MOST_CALLS}.")
    answers = [_batched(part, answer(buckets, _unbatched(part, call))) for part in parts]
    body = b"".join(b"--batch\r\n%s\r\n" % one for one in answers) + b"--batch--\r\n"
    return Response(body, media_type='multipart/mixed; boundary="batch"')


def _parts(call: Call) -> list[bytes]:
    """What stands between the marks, one call more than there may be at most; lines end with \\n alone."""
    boundary = BOUNDARY.search(call.headers.get("content-type", ""))
    mark = f"\n--{boundary[1] if boundary else ''}".encode()
    _, *parts = (b"\n" + call.body.replace(b"\r\n", b"\n")).split(mark, MOST_CALLS + 2)
    return [part for part in parts if part.startswith(b"\n")]  # two dashes stand behind the last mark


def _unbatched(part: bytes, call: Call) -> Call:
    head, _, body = part.partition(b"\n\n")[2].decode("utf-8", "replace").lstrip().partition("\n\n")
    method, target, *_ = [*head.partition("\n")[0].split(" "), "", ""]
    try:
        url = urlsplit(target)
    except ValueError as error:  # such as half of an IPv6 address
        raise StorageError(400, f"{target} in the batch is no address: {error}.") from None
    if "alt=media" in url.query:
        raise StorageError(400, "A batch cannot download; ask for the object by itself.")
    return Call(method, url.path, dict(parse_qsl(url.query)), call.headers, body.encode())


def _batched(part: bytes, got: Response) -> bytes:
    named = CONTENT_ID.search(part)
    id = named[1].decode("utf-8", "replace") if named else ""
    about = f"Content-Type: application/http\r\nContent-ID: <response-{id}>\r\n"
    status = f"HTTP/1.1 {got.status_code} {http.HTTPStatus(got.status_code).phrase}\r\n"
    kind = f"Content-Type: {got.headers.get('content-type', 'text/plain')}\r\nContent-Length: {len(got.body)}\r\n"
    return f"{about}\r\n{status}{kind}\r\n".encode() + bytes(got.body)


Handler = Callable[..., Response]


def _handlers(*rows: tuple[str, str, Handler]) -> list[tuple[str, re.Pattern[str], Handler]]:
    return [(method, re.compile(path.replace("*", "([^/]+)")), handler) for method, path, handler in rows]


HANDLERS = _handlers(
    ("GET", "/storage/v1/b", list_buckets),
    ("POST", "/storage/v1/b", create_bucket),
    ("GET", "/storage/v1/b/*", get_bucket),
    ("PATCH", "/storage/v1/b/*", get_bucket),
    ("DELETE", "/storage/v1/b/*", delete_bucket),
    ("GET", "/storage/v1/b/*/storageLayout", get_layout),
    ("GET", "/storage/v1/b/*/managedFolders", list_managed_folders),
    ("GET", "/storage/v1/b/*/o", list_objects),
    ("GET", "(?:/download)?/storage/v1/b/*/o/*", get_object),
    ("PATCH", "/storage/v1/b/*/o/*", patch_object),
    ("PUT", "/storage/v1/b/*/o/*", patch_object),
    ("DELETE", "/storage/v1/b/*/o/*", delete_object),
    ("POST", "/storage/v1/b/*/o/*/copyTo/b/*/o/*", copy_object),
    ("POST", "/storage/v1/b/*/o/*/rewriteTo/b/*/o/*", rewrite_object),
    ("POST", "/storage/v1/b/*/o/*/moveTo/o/*", move_object),
    ("POST", "/storage/v1/b/*/o/*/compose", compose_object),
    ("POST", "/batch/storage/v1", batch),
)
UPLOAD = re.compile("(?:/resumable)?/upload/storage/v1/b/([^/]+)/o")


def _bucket(buckets: Buckets, call: Call, name: str) -> dict[str, Any]:
    changed = _moment(buckets.folder(name).stat().st_mtime)
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "selfLink": f"{call.base}/storage/v1/b/{name}",
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "etag": "CAE=",
        "timeCreated": changed,
        "updated": changed,
    }


def _described(buckets: Buckets, call: Call, item: Object) -> Response:
    return JSONResponse(_resource(call, item, buckets.checksums(item)))


def _resource(call: Call, item: Object, sums: Checksums | None) -> dict[str, Any]:
    place = f"storage/v1/b/{item.bucket}/o/{quote(item.name, safe='')}"
    moment = _moment(item.modified)
    resource = {
        "kind": "storage#object",
        "id": f"{item.bucket}/{item.name}/{item.generation}",
        "selfLink": f"{call.base}/{place}",
        "mediaLink": f"{call.base}/download/{place}?generation={item.generation}&alt=media",
        "name": item.name,
        "bucket": item.bucket,
        "generation": str(item.generation),
        "metageneration": "1",
        "contentType": _content_type(item),
        "storageClass": "STANDARD",
        "size": str(item.size),
        "etag": str(item.generation),
        "timeCreated": moment,
        "updated": moment,
        "timeStorageClassUpdated": moment,
    }
    return resource | ({"crc32c": sums.crc32c, "md5Hash": sums.md5} if sums else {})


def _media(call: Call, item: Object, file: BinaryIO, sums: Checksums | None) -> Response:
    """The object's bytes, or the range of them that was asked for."""
    headers = {
        "Content-Type": _content_type(item),
        "ETag": f'"{item.generation}"',
        "Last-Modified": formatdate(item.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        # A bucket's HTML is not this service's page: in a browser it runs nothing and reads nothing.
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
        "X-Goog-Generation": str(item.generation),
        "X-Goog-Metageneration": "1",
        "X-Goog-Stored-Content-Length": str(item.size),
    }
    if sums:
        headers["X-Goog-Hash"] = f"crc32c={sums.crc32c},md5={sums.md5}"
    begin, end, status = 0, item.size, 200
    asked = _range(call.headers.get("range", ""), item.size)
    if asked:
        (begin, end), status = asked, 206
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{item.size}"
    if begin >= end and status == 206:
        file.close()
        return Response(status_code=416, headers={"Content-Range": f"bytes */{item.size}"})
    headers["Content-Length"] = str(end - begin)
    return StreamingResponse(_blocks_of(file, begin, end), status, headers)


def _range(text: str, size: int) -> tuple[int, int] | None:
    """Begin and end, not included, of bytes=0-9, bytes=5- or bytes=-5; empty if none of them exist."""
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


def _content_type(item: Object) -> str:
    return mimetypes.guess_type(item.name)[0] or "application/octet-stream"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
