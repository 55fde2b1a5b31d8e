"""Cloud Storage's XML API, built on the JSON API's methods, for clients such as curl and Rust's object_store.

Source: Cloud Storage documentation, "XML API" and "XML API multipart uploads", 2026; apache/arrow-rs-object-store,
src/gcp/client.rs, 2026; google-cloud-storage 3.17.1, _media/_upload.py.
"""

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.responses import Response, StreamingResponse

from vertex_launch.job.job_resource import Resource
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.api.http import XML_API, Call, Route
from vertex_launch.local.storage import uploads
from vertex_launch.local.storage.objects import BLOCK, bad_request, checksums, number

OBJECT = f"{XML_API}/{{bucket}}/{{name:rest}}"
# The XML API's parameters -> the JSON API's parameters.
LISTING = {"prefix": "prefix", "delimiter": "delimiter", "max-keys": "maxResults", "continuation-token": "pageToken"}
CONDITIONS = {f"x-goog-if-{kind}-match": f"if{kind.title()}Match" for kind in ("generation", "metageneration")}
PART = re.compile(rb"<PartNumber>([0-9]{1,5})</PartNumber>")
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MOST_PARTS, SMALLEST_PART = 10_000, 5 * 2**20  # bytes; the last part can be smaller
PUBLIC_SECONDS = 60  # the time limit for each response about a public object
PUBLIC_HEADERS = ("content-type", "content-length", "content-range", "etag", "x-goog-hash")


class XmlApi:
    """The methods of the XML API. An upload's parts are hidden files next to the upload's file, such as ID.00001."""

    def __init__(self, api: Any) -> None:
        self._api, self._buckets = api, api.buckets

    def routes(self) -> list[Route]:
        """Return the XML API's routes. A GET request never changes a bucket."""
        methods = {"GET": self.read, "PUT": self.write, "POST": self.write_in_parts, "DELETE": self.delete}
        listing = ("GET", f"{XML_API}/{{bucket}}/?", self.list_objects)
        return [listing, *((method, OBJECT, act) for method, act in methods.items())]

    def list_objects(self, call: Call, bucket: str) -> Response:
        """List the objects in a bucket, as version 2 of the list method does."""
        query = {LISTING[key]: value for key, value in call.query.items() if key in LISTING}
        query = {"pageToken": base64.urlsafe_b64encode(call.query.get("start-after", "").encode()).decode(), **query}
        listed = self._api.list_objects(replace(call, query=QueryParams(query)), bucket)
        inside = [_listed(item) for item in listed.get("items", ())]
        inside += [_xml("CommonPrefixes", Prefix=prefix) for prefix in listed.get("prefixes", ())]
        more = {"NextContinuationToken": listed["nextPageToken"]} if "nextPageToken" in listed else {}
        about = {"Name": bucket, "Prefix": query.get("prefix", ""), "IsTruncated": str(bool(more)).lower()}
        return _answer(_xml("ListBucketResult", *inside, **about, **more))

    def read(self, call: Call, bucket: str, name: str) -> Any:
        """Return an object or the list of an upload's parts.

        If a call doesn't include credentials, the object can be in a public bucket in the real Cloud Storage.
        """
        if "uploadId" in call.query:
            return _answer(_xml("ListPartsResult", *map(_part, self._parts(call)), Bucket=bucket, Key=name))
        if bucket not in self._buckets.names() and "authorization" not in call.headers:
            return _public(bucket, name, call.headers.get("range", ""))
        answer = self._api.get_object(_asked(call, alt="media"), bucket, name)
        etag = answer.headers.get("etag")
        if call.headers.get("if-match", etag) not in (etag, "*"):
            raise ApiError("CONDITION_NOT_MET", f"The object {bucket}/{name} has a different ETag: {etag}.")
        return Response(status_code=304) if call.headers.get("if-none-match") == etag else answer

    async def write(self, call: Call, bucket: str, name: str) -> Response:
        """Write an object, a copy of an object, or a part of a multipart upload."""
        if "uploadId" in call.query:
            return await self._write_part(call)
        source = unquote(call.headers.get("x-goog-copy-source", "")).lstrip("/")
        if not source:
            return _answer("", await self._api.upload(_asked(call, uploadType="media", name=name), bucket))
        of, _, item = source.partition("/")
        done = await run_in_threadpool(self._api.copy_object, _asked(call), of, item, bucket, name)
        return _answer(_xml("CopyObjectResult", ETag=_etag(done), LastModified=done["updated"]), done)

    async def _write_part(self, call: Call) -> Response:
        upload, count = self._buckets.part(call.query["uploadId"]), number(call.query, "partNumber")
        if not 1 <= count <= MOST_PARTS:
            raise bad_request(f"partNumber {count} isn't valid; use a number from 1 to {MOST_PARTS}.")
        part = upload.with_name(f"{upload.name}.{count:05}")
        part.unlink(missing_ok=True)  # from an earlier attempt
        await uploads.append(part, call, 0)
        sums = await run_in_threadpool(uploads.verified, call, part, {})
        return _answer("", {**sums, "etag": base64.b64decode(sums["md5Hash"]).hex()})

    def write_in_parts(self, call: Call, bucket: str, name: str) -> Response:
        """Start a multipart upload, or create an object from the parts that the client lists."""
        self._buckets.folder(bucket)
        if "uploads" in call.query:
            upload = self._buckets.new_part().name
            return _answer(_xml("InitiateMultipartUploadResult", Bucket=bucket, Key=name, UploadId=upload))
        there = {file.suffix[1:].encode(): file for file in self._parts(call)}
        named = [count.zfill(5) for count in PART.findall(call.body)]
        if not named or named != sorted({*named} & there.keys()):
            raise bad_request("The request must list uploaded parts in ascending order; correct the list.")
        if any(there[count].stat().st_size < SMALLEST_PART for count in named[:-1]):
            raise bad_request(f"Only the last part can have fewer than {SMALLEST_PART} bytes; send larger parts.")
        item = self._buckets.combine(_opened(there[count] for count in named), bucket, name, _asked(call).query)
        self._end(call)
        done = self._api.described(call, item)
        return _answer(_xml("CompleteMultipartUploadResult", Bucket=bucket, Key=name, ETag=_etag(done)), done)

    def delete(self, call: Call, bucket: str, name: str) -> Response:
        """Delete an object, or cancel a multipart upload."""
        if "uploadId" not in call.query:
            self._api.delete_object(_asked(call), bucket, name)
        else:
            self._end(call)
        return Response(status_code=204)

    def _parts(self, call: Call) -> list[Path]:
        upload = self._buckets.part(call.query.get("uploadId", ""))
        return sorted(upload.parent.glob(f"{upload.name}.*"))

    def _end(self, call: Call) -> None:
        for file in (*self._parts(call), self._buckets.part(call.query["uploadId"])):
            file.unlink(missing_ok=True)


def _public(bucket: str, name: str, byte_range: str) -> Response:
    """Return a public object from the real Cloud Storage. Raises ApiError if the object isn't public."""
    url = f"https://storage.googleapis.com/{bucket}/{quote(name)}"
    request = urllib.request.Request(url, headers={"Range": byte_range} if byte_range else {})
    try:
        answer = cast(HTTPResponse, urllib.request.urlopen(request, timeout=PUBLIC_SECONDS))
    except urllib.error.HTTPError as error:
        raise ApiError("NOT_FOUND", f"gs://{bucket} isn't local, and {url} isn't public (HTTP {error.code}).") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ApiError("NOT_FOUND", f"gs://{bucket} isn't local, and {url} can't be reached: {reason}.") from None
    headers = {key: value for key in PUBLIC_HEADERS if (value := answer.headers.get(key))}
    return StreamingResponse(iter(lambda: answer.read(BLOCK), b""), answer.status, headers)  # its end closes `answer`


def _opened(files: Iterable[Path]) -> Iterator[BinaryIO]:
    """Open the files one after another. Yield each open file, and close it before opening the next one."""
    for path in files:
        with path.open("rb") as file:
            yield file


def _asked(call: Call, **more: str) -> Call:
    """Convert an XML API call to a JSON API call with the same preconditions, and add the parameters in `more`."""
    sent = {name: call.headers[header] for header, name in CONDITIONS.items() if header in call.headers}
    sent |= {"generation": call.query["generation"]} if "generation" in call.query else {}
    return replace(call, query=QueryParams({**sent, **more}))


def _answer(body: str, written: Resource | None = None) -> Response:
    """Return a response in the XML API's namespace.

    If the call wrote an object or a part, add headers that describe the written data.
    """
    body, headers = body.replace(">", f' xmlns="{NAMESPACE}">', 1), {"ETag": _etag(written)} if written else {}
    if written and "generation" in written:
        headers["X-Goog-Generation"] = written["generation"]
    if written and "crc32c" in written:
        headers["X-Goog-Hash"] = f"crc32c={written['crc32c']},md5={written['md5Hash']}"
    return Response(body, headers=headers, media_type="application/xml")


def _etag(item: Resource) -> str:
    return f'"{item["etag"]}"'


def _listed(item: Resource) -> str:
    return _xml("Contents", Key=item["name"], Size=item["size"], LastModified=item["updated"], ETag=_etag(item))


def _part(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as part:
        etag = base64.b64decode(checksums(part, size)["md5Hash"]).hex()
    return _xml("Part", PartNumber=int(file.suffix[1:]), Size=size, ETag=f'"{etag}"')


def _xml(tag: str, *inside: str, **values: object) -> str:
    """Return an XML element that contains one element for each value, followed by the elements in `inside`."""
    texts = (f"<{key}>{escape(str(value))}</{key}>" for key, value in values.items())
    return f"<{tag}>{''.join((*texts, *inside))}</{tag}>"
