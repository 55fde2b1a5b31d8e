"""Validation of display names and labels. Google breaks down charges by the labels of jobs and other resources.

A resource can have at most 64 labels. Keys and values consist of lowercase letters, digits, hyphens, and underscores.
Each key or value must be shorter than 64 characters and 128 bytes. A key begins with a letter or a digit. Keys and
values can contain international characters.
Source: the service's response in github.com/statmike/vertex-ai-mlops, issue 6, 2022; google-cloud-aiplatform 2.7.0.
"""

import re
from collections.abc import Mapping

from vertex_launch.errors import FaultError, Finding, Findings

LONGEST_NAME = 128  # characters of a display name. Source: google-cloud-aiplatform 2.7.0, types/custom_job.py

MOST = 64  # labels of a resource
LONGEST = 63  # characters
LONGEST_BYTES = 127  # in UTF-8
KEY = re.compile(rf"(?=[^\W_])[\w-]{{1,{LONGEST}}}")
VALUE = re.compile(rf"[\w-]{{0,{LONGEST}}}")
CURE = (
    "use only lowercase letters, digits, hyphens, and underscores, "
    f"up to {LONGEST} characters and {LONGEST_BYTES} bytes"
)
RESERVED = "aiplatform.googleapis.com/"  # the prefix of the service's own keys, which clients send back


def name_findings(name: str) -> Findings:
    """Yield a finding for each reason why the service would reject a resource's display name."""
    if not name:
        yield Finding("displayName", "is missing", "give it a name")
    elif len(name) > LONGEST_NAME:
        yield Finding("displayName", f"has {len(name)} characters", f"shorten it to {LONGEST_NAME}")


def of_all(labels: Mapping[str, str]) -> Findings:
    """Yield a finding for each reason why Google would reject a resource's labels."""
    yield from too_many(labels)
    for key, value in labels.items():
        if not key.startswith(RESERVED):
            yield from of_label(key, value, "labels", f"labels.{key}")


def of_label(key: str, value: str, place: str = "labels", place_of_value: str = "") -> Findings:
    """Yield a finding for each reason why Google would reject this label.

    If `place_of_value` is "", findings about the value use `place`.
    """
    if not (KEY.fullmatch(key) and _is_small(key)):
        yield Finding(place, f'"{key}" isn\'t a valid label key', f"begin with a letter or a digit, and {CURE}")
    if not (VALUE.fullmatch(value) and _is_small(value)):
        yield Finding(place_of_value or place, f'"{value}" isn\'t a valid label value', CURE)


def _is_small(text: str) -> bool:
    return text == text.lower() and len(text.encode(errors="replace")) <= LONGEST_BYTES


def too_many(labels: Mapping[str, object]) -> Findings:
    """Yield a finding if there are more labels than a resource can have."""
    if len(labels) > MOST:
        cure = f"keep at most {MOST} labels, including up to four that the `submit` command sets"
        yield Finding("labels", f"a job can't have {len(labels)} labels", cure)


def typed(words: list[str]) -> dict[str, str]:
    """Parse labels of the form KEY=VALUE. Raises FaultError if a label isn't valid."""
    pairs = [word.partition("=") for word in words]
    findings = [Finding("--label", f"{key} has no =", "write KEY=VALUE") for key, sign, _ in pairs if not sign]
    findings = findings or [finding for key, _, value in pairs for finding in of_label(key, value, "--label")]
    if findings:
        raise FaultError(*findings)
    return {key: value for key, _, value in pairs}
