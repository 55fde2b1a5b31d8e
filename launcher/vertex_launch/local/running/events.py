"""Reads the events that a trainer reports to the launcher in fields of its JSON output lines.

launcher/docs/events.md documents all fields. This module never parses the text of a message.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from vertex_launch.untrusted.printable import printable

Fields = Mapping[str, Any]  # the fields of one line

MOST = 10**12  # the maximum number of steps
GOES_ON = {"step", "saved", "resumed", "gone", "back"}
# Maps a field of a replica's last event to a phrase about how the replica reacted.
FATES = {
    "asked_to_stop": "saved the same step",
    "diverged": "stopped at the same step",
    "stuck": "waited for it",
    "lost_peer": "lost a connection",
    "absent": "lost a connection",
}
BLAMES = FATES.keys() - {"asked_to_stop"}  # the fields that name replicas as the cause
LONGEST = 40  # the maximum number of characters of a metric


@dataclass(frozen=True)
class Steps:
    """A run's progress: its finished steps, its total steps, and a metric such as `train loss 0.1234`.

    The metric can be "".
    """

    done: int
    total: int
    metric: str


def steps(fields: Fields) -> Steps | None:
    """Return the progress that a printed line reports, or None if it doesn't report any."""
    done, total, name = (fields.get(key) for key in ("step", "steps", "metric"))
    if not (_is_number(done) and _is_number(total) and 0 <= done <= MOST and 0 <= total <= MOST):
        return None
    name, value = str(name), fields.get(str(name))
    shown = f"{value:.4g}" if _is_number(value) else value  # JSON has no NaN, so a NaN is text
    metric = f"{name.replace('/', ' ')} {shown}" if isinstance(shown, str) else ""
    return Steps(int(done), int(total), printable(metric[:LONGEST]))


def last(before: Fields, fields: Fields) -> Fields:
    """Return the latest event, from a new line or an earlier one, that explains a replica's exit.

    If the new line reports that training continues, discard the earlier event.
    """
    if FATES.keys() & fields.keys():
        return fields
    return {} if GOES_ON & fields.keys() else before


def accused(event: Fields) -> Iterator[str]:
    """Yield the names of the replicas that an event blames."""
    for value in (event[field] for field in BLAMES if field in event):
        yield from (name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str) and name)


def stuck(event: Fields) -> dict[str, str]:
    """If an event reports a replica as stuck, map the replica's name to the phrase `is stuck in PLACE`."""
    place = printable(str(event.get("place", "its program")))
    return {name: f"is stuck in {place}" for name in [event.get("stuck")] if isinstance(name, str)}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
