"""The errors of the local Vertex, in the format of Google's APIs."""

import traceback
from collections.abc import Iterable
from typing import Any

from vertex_launch.errors import Finding, first
from vertex_launch.local.rpc_status import STATUSES, rpc_status

STORAGE = ("/upload/", "/storage/", "/resumable/", "/download/", "/batch/")  # the path prefixes of Cloud Storage

# HTTP status -> the reason in a Cloud Storage error. Source: Cloud Storage JSON API, "HTTP status and error codes".
REASONS = {400: "invalid", 403: "forbidden", 404: "notFound", 409: "conflict", 412: "conditionNotMet"}


class ApiError(Exception):
    """An error response to a request. Each finding in `findings` describes one invalid field."""

    def __init__(self, status: str, message: str, findings: Iterable[Finding] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.findings = tuple(findings)
        self.http_status = STATUSES[status][0]
        self.rpc = rpc_status(status, message)

    def as_json(self) -> dict[str, Any]:
        """Return the error as a Vertex AI response body. Source: google/rpc/status.proto and error_details.proto."""
        error: dict[str, Any] = {"code": self.http_status, "message": self.message, "status": self.status}
        if self.findings:
            violations = [{"field": finding.place, "description": finding.sentence} for finding in self.findings]
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return {"error": error}

    def for_storage(self) -> dict[str, Any]:
        """Return the error as a Cloud Storage response body, which contains a reason instead of a status."""
        reason = {"message": self.message, "domain": "global", "reason": REASONS.get(self.http_status, "invalid")}
        return {"error": {"code": self.http_status, "message": self.message, "errors": [reason]}}


def invalid(findings: Iterable[Finding]) -> ApiError:
    """Return an INVALID_ARGUMENT error whose message and details contain the first few findings."""
    shown = tuple(first(findings))
    return ApiError("INVALID_ARGUMENT", "\n".join(map(str, shown)), shown)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise ApiError INVALID_ARGUMENT if there are findings."""
    if findings := tuple(findings):
        raise invalid(findings)


def our_fault(error: Exception) -> ApiError:
    """Return an INTERNAL error for a bug in the local Vertex or a problem on this machine."""
    return ApiError("INTERNAL", f"the local Vertex failed: {traceback.format_exception_only(error)[-1].strip()}")
