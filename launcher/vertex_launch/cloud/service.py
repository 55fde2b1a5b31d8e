"""A REST client for Vertex AI, Cloud Logging, and Cloud Storage, in Google Cloud or in the local Vertex."""

import ipaddress
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

import google.auth
from google.api_core.exceptions import from_http_response
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession
from requests import Response

from vertex_launch.errors import FaultError
from vertex_launch.job.job_resource import Resource, id_of
from vertex_launch.settings import Settings

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
PAGE_SIZE = 100
MOST_PAGES = 20  # maximum number of pages to read; an empty page may not be the last page
LOG_PAGE_SIZE = 1000
LOG_SECONDS = 1.1  # between pages: Cloud Logging allows 60 requests per minute. Source: its "Quotas and limits", 2026


class NoAnswerError(Exception):
    """A missing or unusable response from the service."""


@dataclass(frozen=True)
class Service:
    """A service client for one project and region.

    Methods raise google.api_core.exceptions.GoogleAPICallError if the service rejects the request. Methods raise
    NoAnswerError if the response is missing or unusable, and google.auth.exceptions.GoogleAuthError if the
    credentials aren't valid.
    """

    settings: Settings  # with a project and a region
    endpoint: str  # of the local Vertex; "" for Google Cloud
    session: AuthorizedSession = field(repr=False)
    seconds: float = 60.0  # request timeout

    def get(self, name: str) -> Resource:
        return self._call("GET", self._address(name))

    def list(self, collection: str, expression: str = "", most: int = PAGE_SIZE) -> Iterator[Resource]:
        """Yield up to `most` resources that match a filter, newest first."""
        query = {"pageSize": str(min(most, PAGE_SIZE)), "filter": expression or None}
        address = self._address(f"{self.settings.parent}/{collection}")
        return islice(self._items("GET", address, collection, query, sys.maxsize), most)

    def create(self, collection: str, resource: Resource) -> Resource:
        return self._call("POST", self._address(f"{self.settings.parent}/{collection}"), json=resource)

    def cancel(self, name: str) -> None:
        self._call("POST", self._address(f"{name}:cancel"), json={})

    def log_entries(self, expression: str, order: str) -> Iterator[Resource]:
        query = {"resourceNames": [f"projects/{self.settings.project}"], "filter": expression, "orderBy": order}
        address, pause = f"{self._at('logging.googleapis.com')}/v2/entries:list", 0 if self.endpoint else LOG_SECONDS
        return self._items("POST", address, "entries", {**query, "pageSize": LOG_PAGE_SIZE}, sys.maxsize, pause)

    def bucket(self, name: str) -> Resource:
        return self._call("GET", f"{self._at('storage.googleapis.com')}/storage/v1/b/{quote(name, safe='')}")

    def objects(self, bucket: str, **query: str) -> Iterator[Resource]:
        """Yield the objects in a bucket, ordered by name. Read at most MOST_PAGES pages of results.

        Source: Cloud Storage JSON API, Objects: list.
        """
        return self._items("GET", self._objects_at(bucket), "items", query, MOST_PAGES)

    def content(self, bucket: str, name: str, most: int) -> bytes:
        """Return the first `most` bytes of an object. Source: Cloud Storage JSON API, Objects: get."""
        address = f"{self._objects_at(bucket)}/{quote(name, safe='')}?alt=media"
        return self.fetch(address, {"Range": f"bytes=0-{most - 1}"})

    def quotas(self) -> Iterator[Resource]:
        """Yield the project's Vertex AI quotas. Each quota includes its regions."""
        address = f"https://cloudquotas.googleapis.com/v1/projects/{self.settings.project}/locations/global"
        infos = f"{address}/services/aiplatform.googleapis.com/quotaInfos"
        return self._items("GET", infos, "quotaInfos", {"pageSize": "1000"}, MOST_PAGES)

    def fetch(self, address: str, headers: Mapping[str, str] | None = None) -> bytes:
        return bytes(self._answer("GET", address, headers=dict(headers or {})).content)

    @property
    def place(self) -> str:
        """The project and region as shown in messages. If the service is a local Vertex, its URL is included."""
        parent = self.settings.parent
        return f"{parent} of the local Vertex at {self.endpoint}" if self.endpoint else parent

    def page(self, name: str) -> str:
        """Return the URL of a job's page in the local Vertex or in the Google Cloud console.

        Source of the console URL: google-cloud-aiplatform 2.7.0, `_dashboard_uri`.
        """
        if self.endpoint:
            return f"{self.endpoint}/#{id_of(name)}"
        _, project, _, region, _, id = name.split("/")
        return f"https://console.cloud.google.com/agent-platform/locations/{region}/training/{id}?project={project}"

    def _address(self, name: str) -> str:
        return f"{self._at(self.settings.host)}/v1/{name}"

    def _objects_at(self, bucket: str) -> str:
        return f"{self._at('storage.googleapis.com')}/storage/v1/b/{quote(bucket, safe='')}/o"

    def _at(self, host: str) -> str:
        return self.endpoint or f"https://{host}"

    def _items(self, method: str, url: str, key: str, query: Resource, pages: int, pause: float = 0) -> Iterator[Any]:
        """Yield the items of a paginated list. Wait `pause` seconds between pages."""
        where, token = "params" if method == "GET" else "json", None
        for _ in range(pages):
            page = self._call(method, url, **{where: {**query, "pageToken": token} if token else query})
            yield from page.get(key, ())
            if not (token := page.get("nextPageToken")):
                return
            time.sleep(pause)

    def _call(self, method: str, address: str, **content: Any) -> Resource:
        answer = self._answer(method, address, **content)
        try:
            return dict(answer.json())
        except (OSError, TypeError, ValueError) as error:  # not JSON (an OSError of requests), or not a JSON object
            raise _no_answer(address, error) from None

    def _answer(self, method: str, address: str, **content: Any) -> Response:
        try:
            answer: Response = self.session.request(method, address, timeout=self.seconds, **content)
        except (OSError, TransportError) as error:
            raise _no_answer(address, error) from None
        except RefreshError as error:
            raise NoAnswerError(f"the credentials can't be refreshed ({error})") if error.retryable else error from None
        if answer.status_code >= 400:
            raise from_http_response(answer)
        return answer


def _no_answer(address: str, error: BaseException) -> NoAnswerError:
    """Return an error with the host and the innermost cause. Omit the outer errors, which only repeat the URL."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return NoAnswerError(f"{'/'.join(address.split('/')[:3])} doesn't respond ({reason})")


def connect(settings: Settings, endpoint: str = "") -> Service:
    """Return a client for the project and region in the settings.

    If `endpoint` is a URL such as http://127.0.0.1:8911, return a client for the local Vertex, which doesn't require
    credentials. Raises DefaultCredentialsError if Google Cloud credentials are missing.
    """
    if not endpoint:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        return Service(settings, "", AuthorizedSession(credentials))
    session = AuthorizedSession(AnonymousCredentials())
    session.trust_env = False  # a proxy would resolve this address to its own machine
    return Service(settings, endpoint, session)


def require_local(endpoint: str) -> None:
    """Raise FaultError if `endpoint`, the value of VERTEX_ENDPOINT, isn't an HTTP or HTTPS URL on this machine."""
    try:
        url = urlsplit(endpoint)
        at_home = url.hostname == "localhost" or ipaddress.ip_address(url.hostname or "").is_loopback
        local = at_home and url.scheme in ("http", "https") and url.port != 0 and not url.path.strip("/")
    except ValueError:
        local = False
    if not local:
        cure = (
            "use the URL that `emulate` prints, such as http://127.0.0.1:8911."
            " To use Google Cloud instead, unset VERTEX_ENDPOINT"
        )
        raise FaultError(f'VERTEX_ENDPOINT: "{endpoint}" is not an HTTP(S) URL on this machine; {cure}')
