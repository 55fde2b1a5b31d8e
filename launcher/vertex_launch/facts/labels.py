"""Labels of jobs and other resources, by which Google breaks down a bill, and their display names.

Source: the service's own answer, github.com/statmike/vertex-ai-mlops, issue 6, of 2022: at most 64 labels; keys and
values of lower-case letters, digits, - and _, of less than 64 characters and less than 128 bytes; a key begins with a
letter or a digit. google-cloud-aiplatform 2.7.0 adds that international letters are allowed.
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
CURE = f"use lower-case letters, digits, - and _, {LONGEST} characters and {LONGEST_BYTES} bytes at most"
RESERVED = "aiplatform.googleapis.com/"  # begins the service's own keys, which clients send back


def name_findings(name: str) -> Findings:
    """Yield why the service would refuse a resource's display name."""
    if not name:
        yield Finding("displayName", "is missing", "give it a name")
    elif len(name) > LONGEST_NAME:
        yield Finding("displayName", f"has {len(name)} characters", f"shorten it to {LONGEST_NAME}")


def of_all(labels: Mapping[str, str]) -> Findings:
    """Yield what Google would refuse of a resource's labels."""
    yield from too_many(labels)
    for key, value in labels.items():
        if not key.startswith(RESERVED):
            yield from of_label(key, value, "labels", f"labels.{key}")


def of_label(key: str, value: str, place: str = "labels", place_of_value: str = "") -> Findings:
    """Yield what Google would refuse of a label; its value has the same place, if no other is given."""
    if not (KEY.fullmatch(key) and _is_small(key)):
        yield Finding(place, f'"{key}" cannot be the key of a label', f"begin with a letter or a digit and {CURE}")
    if not (VALUE.fullmatch(value) and _is_small(value)):
        yield Finding(place_of_value or place, f'"{value}" cannot be the value of a label', CURE)


def _is_small(text: str) -> bool:
    return text == text.lower() and len(text.encode(errors="replace")) <= LONGEST_BYTES


def too_many(labels: Mapping[str, object]) -> Findings:
    """Yield that these are more labels than a resource may have."""
    if len(labels) > MOST:
        cure = f"keep at most {MOST}, of which submit itself sets up to four"
        yield Finding("labels", f"a job cannot have {len(labels)} labels", cure)


def typed(words: list[str]) -> dict[str, str]:
    """Read labels that are written KEY=VALUE; raises FaultError for one that is not, or that Google would refuse."""
    pairs = [word.partition("=") for word in words]
    findings = [Finding("--label", f"{key} has no =", "write KEY=VALUE") for key, sign, _ in pairs if not sign]
    findings = findings or [finding for key, _, value in pairs for finding in of_label(key, value, "--label")]
    if findings:
        raise FaultError(*findings)
    return {key: value for key, _, value in pairs}
