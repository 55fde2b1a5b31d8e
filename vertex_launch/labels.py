"""Labels of jobs, by which Google breaks down a bill.

Source: Resource Manager, "Labels overview", section "Requirements for labels", 2026-11-20.
"""

import re
from collections.abc import Mapping

from vertex_launch.errors import FaultError, Finding

MOST = 64  # of a resource
LONGEST = 63  # characters
KEY = re.compile(rf"(?=[^\W\d_])[\w-]{{1,{LONGEST}}}")
VALUE = re.compile(rf"[\w-]{{0,{LONGEST}}}")
CURE = f"use lower-case letters, digits, - and _, {LONGEST} characters at most"


def key(text: str) -> str:
    """Return a label's key; raises FaultError where Google would refuse it."""
    if KEY.fullmatch(text) and text == text.lower():
        return text
    raise FaultError(Finding("", f'"{text}" cannot be the key of a label', f"begin with a letter and {CURE}"))


def value(text: str) -> str:
    """Return a label's value; raises FaultError where Google would refuse it."""
    if VALUE.fullmatch(text) and text == text.lower():
        return text
    raise FaultError(Finding("", f'"{text}" cannot be the value of a label', CURE))


def counted(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels; raises FaultError where they are more than a resource may have."""
    if len(labels) > MOST:
        cure = f"keep at most {MOST}, of which submit itself sets up to four"
        raise FaultError(Finding("", f"a job cannot have {len(labels)} labels", cure))
    return labels
