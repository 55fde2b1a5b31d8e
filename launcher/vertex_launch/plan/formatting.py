"""Formats quantities with three significant digits and a unit, and formats times in the local time zone."""

import math
from datetime import datetime


def seconds(value: float) -> str:
    """Format a time in seconds. Examples: 0.000012 -> "0.012 ms", 0.25 -> "250 ms", 12.3 -> "12.3 s"."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(value: float) -> str:
    """Format a number of bytes. Units are powers of ten. Example: 1.36e9 -> "1.36 GB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} bytes"


def usd(value: float) -> str:
    """Format an amount in US dollars. Examples: 12.3456 -> "$12.35", 0.00123 -> "$0.0012"."""
    decimals = 1 - math.floor(math.log10(value)) if 0 < value < 0.1 else 2
    return f"${value:,.{decimals}f}"


def clock(time: datetime | None) -> str:
    """Format a time in the local time zone. Examples: "08:29:50" today, "2026-11-23 08:29:50" on another day.

    If `time` is None, return "".
    """
    if time is None:
        return ""
    local, today = time.astimezone(), datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def duration(value: float) -> str:
    """Format a duration, rounded to seconds. Examples: 54 -> "54 s", 305 -> "5 min 5 s", 7500 -> "2 h 5 min"."""
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
