"""Uploads of all three types: the bytes gather in a hidden file, which becomes the object at once and whole."""

import fcntl
import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from vertex_launch import jsons
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.objects import BLOCK, Object, StorageError, checksums

LARGEST_BODY = 10 * 10**6  # bytes of what is read into memory; an object is not


async def upload(buckets: Buckets, request: Request, bucket: str) -> Object | Response:
    """One request of an upload: the object if that completes it, else what to answer.

    Raises:
        StorageError: it is refused.
    """
    buckets.folder(bucket)
    kind = request.query_params.get("uploadType", "")
    if "upload_id" in request.query_params:
        return await _resume(buckets, request, bucket)
    if request.method == "DELETE":
        raise StorageError(400, "upload_id is missing; name the upload that is to be given up.")
    if kind == "resumable":
        return await run_in_threadpool(_begin, buckets, request, bucket, await body(request))
    if kind not in ("media", "multipart"):
        raise StorageError(400, f'uploadType "{kind}" is not known; use media, multipart or resumable.')
    part = buckets.new_part()
    try:
        receive = _receive_multipart if kind == "multipart" else _receive_media
        about = await receive(request, part)
        return await run_in_threadpool(_finish, buckets, request, part, bucket, about)
    finally:
        part.unlink(missing_ok=True)


def _begin(buckets: Buckets, request: Request, bucket: str, text: bytes) -> Response:
    """A session. All that it has to know is in its address, so it outlives the service."""
    about = parsed(text)
    name = _name(request, about)
    buckets.expect(bucket, name, request.query_params)
    sums: dict[str, str] = {key: str(about[key]) for key in ("crc32c", "md5Hash") if key in about}
    part = buckets.new_part()
    session = {**request.query_params, **sums, "name": name, "upload_id": part.name}
    address = f"http://{request.headers['host']}{raw_path(request)}?{urlencode(session)}"
    return Response(headers={"Location": address, "X-GUploader-UploadID": part.name})


async def _resume(buckets: Buckets, request: Request, bucket: str) -> Object | Response:
    """Some more bytes of a session, or the question how many there are."""
    part = buckets.part(request.query_params["upload_id"])
    if request.method == "DELETE":
        part.unlink()
        return Response(status_code=499)
    begin, total = _content_range(request)
    size = await _append(part, request, begin)
    if total is None or size < total:
        return Response(status_code=308, headers={"Range": f"bytes=0-{size - 1}"} if size else {})
    if size > total:
        raise StorageError(400, f"{size} bytes came, but the upload was to have {total}; begin a new one.")
    return await run_in_threadpool(_finish, buckets, request, part, bucket, request.query_params)


def _content_range(request: Request) -> tuple[int, int | None]:
    """Where the bytes of this request begin, and how many there will be in all, None if that is not known yet."""
    text = request.headers.get("content-range", f"bytes 0-/{request.headers.get('content-length', '*')}")
    match = re.fullmatch(r"bytes (?:([0-9]{1,18})-[0-9]*|\*)/([0-9]{1,18}|\*)", text)
    if not match:
        raise StorageError(400, f'Content-Range "{text}" cannot be read; write such as bytes 0-99/200.')
    return int(match[1] or 0), None if match[2] == "*" else int(match[2])


async def _append(part: Path, request: Request, begin: int) -> int:
    """Write what the part does not have yet of bytes that begin there; returns how many it has then."""
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(503, "Another request writes to this upload; try again when it has ended.") from None
        size = os.fstat(file.fileno()).st_size
        if begin > size:
            raise StorageError(400, f"The bytes begin at {begin}, but only {size} are here; send those between first.")
        async for block in _blocks(request, skip=size - begin):
            await run_in_threadpool(file.write, block)
        return file.tell()


async def _receive_media(request: Request, part: Path) -> Mapping[str, Any]:
    await _append(part, request, 0)
    return {}


async def _receive_multipart(request: Request, part: Path) -> Mapping[str, Any]:
    """The object's bytes into the part; returns its metadata, which come first."""
    blocks = _blocks(request)
    mark, newline, about, data = _parts(await anext(blocks, b""))
    with part.open("w+b") as file:
        file.write(data)
        async for block in blocks:
            await run_in_threadpool(file.write, block)
        end = newline + mark + b"--"
        begin = file.seek(max(file.tell() - len(end) - 4, 0))
        last = file.read()
        if end not in last:
            raise StorageError(400, "The multipart upload ends early; send it again.")
        file.truncate(begin + last.rindex(end))
    return await run_in_threadpool(parsed, about)


def _parts(first: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The mark between two parts, the end of a line (some clients write \\n alone), the metadata, the first data.

    Each step looks once for one text, so the time grows no faster than the body. Source: RFC 2046, section 5.1.
    """
    line, _, rest = first.lstrip().partition(b"\n")
    newline, mark = b"\r\n" if line.endswith(b"\r") else b"\n", line.removesuffix(b"\r")
    _, described, rest = (newline + rest).partition(newline * 2)  # a part may have no headers
    about, marked, rest = rest.partition(newline + mark + newline)
    _, begun, data = (newline + rest).partition(newline * 2)
    if not (mark.startswith(b"--") and described and marked and begun):
        raise StorageError(400, "The multipart upload cannot be read; send metadata as JSON, then the bytes.")
    return mark, newline, about, data


def _finish(buckets: Buckets, request: Request, part: Path, bucket: str, about: Mapping[str, Any]) -> Object:
    """Make an object of a part that is complete, if its checksums are those that the client sent."""
    with part.open("rb") as file:
        sums = checksums(file, part.stat().st_size)
    sent = request.headers.get("x-goog-hash", "")
    for what, given, actual in (("crc32c", "crc32c", sums.crc32c), ("md5", "md5Hash", sums.md5)):
        header = re.search(f"{what}=([^, ]+)", sent)
        expected = header[1] if header else about.get(given, actual)
        if expected != actual:
            part.unlink()
            raise StorageError(400, f"The {what} {expected} was sent, but the bytes have {actual}; upload again.")
    return buckets.keep(part, bucket, _name(request, about), request.query_params, sums)


def _name(request: Request, about: Mapping[str, Any]) -> str:
    return request.query_params.get("name") or str(about.get("name", ""))


async def _blocks(request: Request, skip: int = 0) -> AsyncIterator[bytes]:
    """The body in few large pieces, without its first `skip` bytes."""
    gathered = bytearray()
    async for received in request.stream():
        gathered += received[skip:]
        skip -= min(skip, len(received))
        if len(gathered) >= BLOCK:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


async def body(request: Request) -> bytes:
    """A body that is no object; raises StorageError if it is too large for that."""
    read = b""
    async for block in _blocks(request):
        read += block
        if len(read) > LARGEST_BODY:
            raise StorageError(413, f"The body is larger than {LARGEST_BODY} bytes; send less at once.")
    return read


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; nothing is an empty one."""
    try:
        value = jsons.loads(text or b"{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StorageError(400, "The body is no JSON object; send one, or none.")
    return value


def raw_path(request: Request) -> str:
    """As sent, so that %2F in an object's name is not a slash yet."""
    return str(request.scope["raw_path"].decode("ascii", "replace").partition("?")[0])
