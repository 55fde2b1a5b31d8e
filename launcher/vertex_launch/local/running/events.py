"""Events: what a trainer tells the launcher, in fields of the JSON lines that it prints. launcher/docs/events.md has
all fields. Nothing is read from the words of a message.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from vertex_launch.untrusted.printable import printable

Fields = Mapping[str, Any]  # of one line

MOST = 10**12  # steps
GOES_ON = {"step", "saved", "resumed"}
# What becomes of a replica, by the field of its last event.
FATES = {
    "told_to_end": "saved the same step",
    "differs": "stopped at the same step",
    "stuck": "waited for it",
    "lost_peer": "connection lost",
    "absent": "connection lost",
}
BLAMES = FATES.keys() - {"told_to_end"}  # the fields that name replicas as the cause
LONGEST = 40  # characters of a metric


@dataclass(frozen=True)
class Steps:
    """Progress of a run: finished steps, of how many, and a metric such as `train loss 0.1234`, "" without one."""

    done: int
    total: int
    metric: str


def steps(fields: Fields) -> Steps | None:
    """Return how far a run is; None if the line doesn't say it."""
    done, total, name = (fields.get(key) for key in ("step", "steps", "metric"))
    if not (_is_number(done) and _is_number(total) and 0 <= done <= MOST and 0 <= total <= MOST):
        return None
    name, value = str(name), fields.get(str(name))
    shown = f"{value:.4g}" if _is_number(value) else value  # text for a NaN, which JSON lacks
    metric = f"{name.replace('/', ' ')} {shown}" if isinstance(shown, str) else ""
    return Steps(int(done), int(total), printable(metric[:LONGEST]))


def last(before: Fields, fields: Fields) -> Fields:
    """Return the last event that says why a replica ends: that of a line or, while it has not gone on, the one before.

    A line that says that the replica goes on takes back what was said before.
    """
    if FATES.keys() & fields.keys():
        return fields
    return {} if GOES_ON & fields.keys() else before


def accused(event: Fields) -> Iterator[str]:
    """Yield the names of the replicas that an event blames."""
    for value in (event[field] for field in BLAMES if field in event):
        yield from (name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str) and name)


def stuck(event: Fields) -> dict[str, str]:
    """Return `is stuck in ...` by the name of the replica of which an event says where it hangs."""
    place = printable(str(event.get("place", "its program")))
    return {
        name: f"is stuck in {place}. The others wait for it" for name in [event.get("stuck")] if isinstance(name, str)
    }


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
