"""Labels of jobs, by which Google breaks down a bill.

Source: Resource Manager, "Labels overview", section "Requirements for labels", 2026-11-20.
"""

import re
from collections.abc import Mapping

from vertex_launch.errors import FaultError, Finding, Findings

MOST = 64  # of a resource
LONGEST = 63  # characters
KEY = re.compile(rf"(?=[^\W\d_])[\w-]{{1,{LONGEST}}}")
VALUE = re.compile(rf"[\w-]{{0,{LONGEST}}}")
CURE = f"use lower-case letters, digits, - and _, {LONGEST} characters at most"


def of_label(key: str, value: str, place: str = "labels") -> Findings:
    """Yield what Google would refuse of a label."""
    if not KEY.fullmatch(key) or key != key.lower():
        yield Finding(place, f'"{key}" cannot be the key of a label', f"begin with a letter and {CURE}")
    if not VALUE.fullmatch(value) or value != value.lower():
        yield Finding(place, f'"{value}" cannot be the value of a label', CURE)


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
