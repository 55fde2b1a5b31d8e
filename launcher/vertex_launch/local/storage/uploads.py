"""Media, multipart, and resumable uploads. A hidden file receives the bytes and then atomically becomes the object."""

import fcntl
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import Call, read_body
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.objects import BLOCK, Checksums, Object, bad_request, check, checksums
from vertex_launch.untrusted.regular_file import locked_elsewhere


async def upload(buckets: Buckets, call: Call, bucket: str) -> Object | Response:
    """Handle one request of an upload. If the upload is complete, return the object. Otherwise, return a response.

    Raises ApiError if the request isn't valid.
    """
    buckets.folder(bucket)
    if "upload_id" in call.query:
        return await _resume(buckets, call, bucket)
    if call.method == "DELETE":
        raise bad_request("upload_id is missing; set upload_id to the ID of the upload to cancel.")
    kind = call.query.get("uploadType", "")
    if kind == "resumable":
        return await run_in_threadpool(_begin, buckets, replace(call, body=await read_body(call)), bucket)
    if kind not in ("media", "multipart"):
        raise bad_request(f'uploadType "{kind}" isn\'t supported; use media, multipart, or resumable.')
    part = buckets.new_part()
    try:
        about = await _receive_multipart(call, part) if kind == "multipart" else {}
        if kind == "media":
            await append(part, call, 0)
        return await run_in_threadpool(_finish, buckets, call, part, bucket, about)
    finally:
        part.unlink(missing_ok=True)


def _begin(buckets: Buckets, call: Call, bucket: str) -> Response:
    """Start an upload session, and return its URL.

    The URL contains the session's entire state, so the session stays valid after the server restarts.
    """
    about: Mapping[str, Any] = call.json()
    name = _name(call, about)
    check(call.query, buckets.find(bucket, name))
    sums = {key: str(about[key]) for key in ("crc32c", "md5Hash") if key in about}
    if wrong := [key for key, value in sums.items() if not re.fullmatch("[A-Za-z0-9+/=]+", value)]:
        raise bad_request(f"The {wrong[0]} checksum isn't base64; send the checksum in base64.")
    part = buckets.new_part()
    session = {**call.query, **sums, "name": name, "upload_id": part.name}
    location = f"{call.base}{call.path}?{urlencode(session)}"
    return _titled(Response(headers={"Location": location, "X-GUploader-UploadID": part.name}))


async def _resume(buckets: Buckets, call: Call, bucket: str) -> Object | Response:
    """Receive the next bytes of an upload session. If bytes are missing, return the range of the received bytes."""
    part = buckets.part(call.query["upload_id"])
    if call.method == "DELETE":
        part.unlink()
        return Response(status_code=499)
    begin, total = _content_range(call)
    size = await append(part, call, begin)
    if total is None or size < total:
        return _titled(Response(status_code=308, headers={"Range": f"bytes=0-{size - 1}"} if size else {}))
    if size > total:
        raise bad_request(f"The upload has {size} bytes instead of {total}; start a new upload.")
    return await run_in_threadpool(_finish, buckets, call, part, bucket, call.query)


def _content_range(call: Call) -> tuple[int, int | None]:
    """Return the position of this request's first byte, and the object's size.

    The size is None if the client doesn't specify it.
    """
    text = call.headers.get("content-range", f"bytes 0-/{call.headers.get('content-length', '*')}")
    match = re.fullmatch(r"bytes (?:([0-9]{1,18})-[0-9]*|\*)/([0-9]{1,18}|\*)", text)
    if not match:
        raise bad_request(f'Content-Range "{text}" isn\'t valid; use a range such as bytes 0-99/200.')
    return int(match[1] or 0), None if match[2] == "*" else int(match[2])


async def append(part: Path, call: Call, begin: int) -> int:
    """Append only the request's new bytes to an upload's file, and return the file's new size.

    `begin` is the position of the request's first byte in the object.
    """
    with part.open("ab") as file:
        if locked_elsewhere(file, fcntl.LOCK_EX):
            raise ApiError("UNAVAILABLE", "Another request is writing to this upload; try again later.")
        size = os.fstat(file.fileno()).st_size
        if begin > size:
            raise bad_request(f"The bytes begin at {begin}, but only {size} have arrived; send the missing bytes.")
        async for block in _blocks(call, skip=size - begin):
            await run_in_threadpool(file.write, block)
        return file.tell()


async def _receive_multipart(call: Call, part: Path) -> Mapping[str, Any]:
    """Write the object's bytes to an upload's file. Return the metadata, which precedes the bytes in the request."""
    blocks = _blocks(call)
    mark, newline, about, data = _parts(await anext(blocks, b""))
    with part.open("w+b") as file:
        file.write(data)
        async for block in blocks:
            await run_in_threadpool(file.write, block)
        end = newline + mark + b"--"
        begin = file.seek(max(file.tell() - len(end) - 4, 0))
        last = file.read()
        if end not in last:
            raise bad_request("The multipart upload is incomplete; send it again.")
        file.truncate(begin + last.rindex(end))
    return await run_in_threadpool(replace(call, body=about).json)


def _parts(first: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the boundary, the line ending, the metadata, and the first bytes of the data.

    Some clients use only \\n as the line ending. The run time is linear in the body's size, because each step searches
    for one delimiter only once. Source: RFC 2046, section 5.1.
    """
    line, _, remainder = first.lstrip().partition(b"\n")
    newline, mark = b"\r\n" if line.endswith(b"\r") else b"\n", line.removesuffix(b"\r")
    _, described, remainder = (newline + remainder).partition(newline * 2)  # a part might have no headers
    about, marked, remainder = remainder.partition(newline + mark + newline)
    _, begun, data = (newline + remainder).partition(newline * 2)
    if not (mark.startswith(b"--") and described and marked and begun):
        raise bad_request("The multipart upload isn't valid; send JSON metadata, then the bytes.")
    return mark, newline, about, data


def _finish(buckets: Buckets, call: Call, part: Path, bucket: str, about: Mapping[str, Any]) -> Object:
    return buckets.keep(part, bucket, _name(call, about), call.query, verified(call, part, about))


def verified(call: Call, part: Path, about: Mapping[str, Any]) -> Checksums:
    """Return the checksums of an upload's file.

    If the client's checksums differ, remove the file and raise ApiError.
    """
    with part.open("rb") as file:
        sums = checksums(file, part.stat().st_size)
    sent = f"{call.headers.get('x-goog-hash', '')},md5={call.headers.get('content-md5', '')}"
    for key, actual in sums.items():
        algorithm = key.removesuffix("Hash")
        header = re.search(f"{algorithm}=([^, ]+)", sent)
        expected = header[1] if header else about.get(key, actual)
        if expected != actual:
            part.unlink()
            raise bad_request(f"The {algorithm} checksum is {actual} instead of {expected}; upload the object again.")
    return sums


def _titled(response: Response) -> Response:
    """Capitalize header names, such as Location, because TensorFlow recognizes only capitalized ones."""
    response.raw_headers = [(name.title(), value) for name, value in response.raw_headers]
    return response


def _name(call: Call, about: Mapping[str, Any]) -> str:
    return call.query.get("name") or str(about.get("name", ""))


async def _blocks(call: Call, skip: int = 0) -> AsyncIterator[bytes]:
    """Yield the request body in large blocks, excluding the first `skip` bytes."""
    gathered = bytearray()
    async for received in call.stream():
        gathered += received[skip:]
        skip -= min(skip, len(received))
        if len(gathered) >= BLOCK:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
