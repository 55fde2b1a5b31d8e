"""The statuses of failed requests and jobs, named as in google.rpc.Code."""

from typing import Any

# Status -> HTTP status and number in google.rpc.Code. Source: googleapis, google/rpc/code.proto.
STATUSES = {
    "CANCELLED": (499, 1),
    "INVALID_ARGUMENT": (400, 3),
    "DEADLINE_EXCEEDED": (504, 4),
    "NOT_FOUND": (404, 5),
    "ALREADY_EXISTS": (409, 6),
    "PERMISSION_DENIED": (403, 7),
    "RESOURCE_EXHAUSTED": (429, 8),
    "FAILED_PRECONDITION": (400, 9),
    "ABORTED": (409, 10),
    "UNIMPLEMENTED": (501, 12),
    "INTERNAL": (500, 13),
    "UNAVAILABLE": (503, 14),
    "CONDITION_NOT_MET": (412, 9),  # only Cloud Storage has this status
}


def rpc_status(status: str, message: str) -> dict[str, Any]:
    """Return a google.rpc.Status for the `error` field of a resource."""
    return {"code": STATUSES[status][1], "message": message}
