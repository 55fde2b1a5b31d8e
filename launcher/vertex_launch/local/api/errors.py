"""The errors of the local Vertex, in the form of Google's APIs."""

import traceback
from collections.abc import Iterable
from typing import Any

from vertex_launch.errors import Finding, first
from vertex_launch.local.rpc_status import STATUSES, rpc_status

STORAGE = ("/upload/", "/storage/", "/resumable/", "/download/", "/batch/")  # where Cloud Storage's addresses begin

# HTTP status -> the reason in an error of Cloud Storage. Source: Cloud Storage JSON API, "HTTP status and error codes".
REASONS = {400: "invalid", 403: "forbidden", 404: "notFound", 409: "conflict", 412: "conditionNotMet"}


class ApiError(Exception):
    """A refused request; `findings` say what is wrong in which of its fields."""

    def __init__(self, status: str, message: str, findings: Iterable[Finding] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.findings = tuple(findings)
        self.http_status = STATUSES[status][0]
        self.rpc = rpc_status(status, message)

    def as_json(self) -> dict[str, Any]:
        """Return the body of Vertex AI's answer. Source: google/rpc/status.proto, error_details.proto (BadRequest)."""
        error: dict[str, Any] = {"code": self.http_status, "message": self.message, "status": self.status}
        if self.findings:
            violations = [{"field": finding.place, "description": finding.sentence} for finding in self.findings]
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
        return {"error": error}

    def for_storage(self) -> dict[str, Any]:
        """Return the body of Cloud Storage's answer, which has a reason in place of a status."""
        reason = {"message": self.message, "domain": "global", "reason": REASONS.get(self.http_status, "invalid")}
        return {"error": {"code": self.http_status, "message": self.message, "errors": [reason]}}


def invalid(findings: Iterable[Finding]) -> ApiError:
    """Return INVALID_ARGUMENT for the first of these findings; the message has them, too."""
    shown = tuple(first(findings))
    return ApiError("INVALID_ARGUMENT", "\n".join(map(str, shown)), shown)


def refuse(findings: Iterable[Finding]) -> None:
    """Raises ApiError INVALID_ARGUMENT if there is any finding."""
    if findings := tuple(findings):
        raise invalid(findings)


def our_fault(error: Exception) -> ApiError:
    """Return INTERNAL, for a fault of the local Vertex or of this machine."""
    return ApiError("INTERNAL", f"the local Vertex failed: {traceback.format_exception_only(error)[-1].strip()}")
