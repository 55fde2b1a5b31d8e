"""Public objects of Cloud Storage, such as data sets that libraries download: read without any login."""

import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import cast
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.storage.objects import BLOCK

SECONDS = 60  # for each answer
KEPT_HEADERS = ("content-type", "content-length", "content-range", "etag", "x-goog-hash")


def fetch(bucket: str, name: str, byte_range: str) -> Response:
    """Return an object of the real Cloud Storage, which all the world may read; raises ApiError for any other."""
    url = f"https://storage.googleapis.com/{bucket}/{quote(name)}"
    request = urllib.request.Request(url, headers={"Range": byte_range} if byte_range else {})
    try:
        answer = cast(HTTPResponse, urllib.request.urlopen(request, timeout=SECONDS))
    except urllib.error.HTTPError as error:
        raise ApiError("NOT_FOUND", f"gs://{bucket} is not here, and {url} is not public ({error.code}).") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ApiError("NOT_FOUND", f"gs://{bucket} is not here, and {url} cannot be reached: {reason}.") from None
    headers = {key: value for key in KEPT_HEADERS if (value := answer.headers.get(key))}
    return StreamingResponse(iter(lambda: answer.read(BLOCK), b""), answer.status, headers)  # its end closes `answer`
