"""The metadata and IAM policies of buckets.

The JSON file with a bucket's metadata and policy is stored outside the bucket's folder.

The local Vertex doesn't enforce a bucket's metadata or policy. Every caller has all permissions, each object has only
one version, and lifecycle rules are ignored.
Source: Cloud Storage JSON API, "Buckets" and "Policies", 2026.
"""

import base64
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vertex_launch.job.contract import project_number
from vertex_launch.local import resource_file
from vertex_launch.local.api.errors import ApiError
from vertex_launch.local.storage.buckets import Buckets
from vertex_launch.local.storage.objects import bad_request

Metadata = Mapping[str, Any]

POLICY = "iamPolicy"  # a key in the file; clients read the policy separately
MULTI_REGIONS = ("US", "EU", "ASIA")
# Fields that a client can't change. A bucket's location is fixed at creation.
FIXED = (
    *("kind", "id", "name", "selfLink", "location", "locationType", "timeCreated", "updated"),
    *("projectNumber", "metageneration", "etag", POLICY),
)


class BucketMetadata:
    """The metadata of all buckets. The methods are thread-safe and raise ApiError if a bucket doesn't exist."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._changing = threading.Lock()

    def get(self, bucket: str) -> Metadata:
        """Return a bucket's fields. If the bucket is a folder without metadata, return the default fields."""
        kept = self._read(bucket)
        dual = "customPlacementConfig" in kept or re.fullmatch("[A-Z]+[0-9]", kept["location"])
        kind = "dual-region" if dual else "multi-region" if kept["location"] in MULTI_REGIONS else "region"
        shown = {key: value for key, value in kept.items() if key != POLICY}
        return {"storageClass": "STANDARD", **shown, "locationType": kind, "etag": _etag(kept["metageneration"])}

    def patch(self, bucket: str, body: Metadata, metageneration: str = "") -> None:
        """Merge fields into a bucket's metadata.

        A null value removes a field. Raises ApiError if the bucket's metageneration differs from `metageneration`.
        """
        self._update(bucket, lambda kept: merged(kept, _changeable(body)), _etag(metageneration))

    def replace(self, bucket: str, body: Metadata, metageneration: str = "") -> None:
        """Replace a bucket's fields. Raises ApiError if the bucket's metageneration differs from `metageneration`."""
        new = merged({}, _changeable(body))
        self._update(bucket, lambda kept: new | {key: kept[key] for key in FIXED if key in kept}, _etag(metageneration))

    def policy(self, bucket: str) -> Metadata:
        """Return a bucket's IAM policy. The initial policy contains no bindings."""
        kept = self._read(bucket)
        name = {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}"}
        return {**name, "version": 1, "bindings": [], **kept.get(POLICY, {}), "etag": _etag(kept["metageneration"])}

    def set_policy(self, bucket: str, policy: Metadata) -> None:
        """Store an IAM policy. Raises ApiError if the policy isn't valid or is based on an outdated policy."""
        bindings, version = policy.get("bindings", []), policy.get("version", 1)
        if not (isinstance(bindings, list) and all(map(_is_binding, bindings))):
            cure = 'use bindings such as {"role": "roles/storage.objectViewer", "members": ["user:a@example.com"]}'
            raise bad_request(f"The bindings aren't valid; {cure}.")
        kept_policy = {"version": version, "bindings": bindings}
        self._update(bucket, lambda kept: {**kept, POLICY: kept_policy}, str(policy.get("etag") or ""))

    def write(self, bucket: str, metadata: Metadata) -> None:
        resource_file.write(self._file(bucket), {**metadata, "name": bucket})

    def remove(self, bucket: str) -> None:
        self._file(bucket).unlink(missing_ok=True)

    def _update(self, bucket: str, change: Callable[[Metadata], Metadata], etag: str) -> None:
        with self._changing:
            kept = self._read(bucket)
            if etag not in ("", _etag(kept["metageneration"])):
                raise ApiError(
                    "CONDITION_NOT_MET", f"The bucket {bucket} has changed; read the bucket again and retry."
                )
            number = str(int(kept["metageneration"]) + 1)
            self.write(bucket, {**change(kept), "updated": resource_file.now(), "metageneration": number})

    def _read(self, bucket: str) -> Metadata:
        folder = self._buckets.folder(bucket)
        if kept := resource_file.read(self._file(bucket), bucket):
            return kept
        made = resource_file.moment(folder.stat().st_mtime)
        return {"name": bucket, "location": "US", "timeCreated": made, "updated": made, "metageneration": "1"}

    def _file(self, bucket: str) -> Path:
        return self._buckets.root / ".buckets" / f"{bucket}.json"  # because of the dot, the folder isn't a bucket


def new(body: Metadata, project: str) -> Metadata:
    """Return the metadata for a new bucket that a client requests. Raises ApiError if the request isn't valid."""
    storage = {"location": _word(body, "location", "US"), "storageClass": _word(body, "storageClass", "STANDARD")}
    owner = {"projectNumber": project_number(project)} if project else {}  # the SDK rejects other projects' buckets
    times = dict.fromkeys(("timeCreated", "updated"), resource_file.now())
    return {**merged({}, _changeable(body)), **storage, **owner, **times, "metageneration": "1"}


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch to a JSON value. Objects are merged, and null values remove keys. Source: RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    old = value if isinstance(value, Mapping) else {}
    kept = {key: inner for key, inner in old.items() if key not in patch}
    return kept | {key: merged(old.get(key), inner) for key, inner in patch.items() if inner is not None}


def _changeable(body: Metadata) -> Metadata:
    return {key: value for key, value in body.items() if key not in FIXED}


def _word(body: Metadata, key: str, default: str) -> str:
    """Return a field's value in uppercase, as Cloud Storage does. Raises ApiError if the value isn't a single word."""
    value = body.get(key) or default
    if not isinstance(value, str) or not re.fullmatch(r"[\w-]+", value):
        raise bad_request(f"{key} isn't a single word; use a word such as {default}.")
    return value.upper()


def _is_binding(binding: Any) -> bool:
    members = binding.get("members") if isinstance(binding, dict) else None
    return isinstance(members, list) and isinstance(binding.get("role"), str)


def _etag(metageneration: str) -> str:
    """Return the etag for a metageneration.

    If the metageneration is "", return "". The etag is base64-encoded, as gcloud requires.
    """
    return base64.b64encode(metageneration.encode()).decode()
