"""Formatting of times and bytes."""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """Format a duration: `12 ms`, `3.21 s`, `2 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def format_bytes(count: float) -> str:
    """Format bytes in decimal units: `512 kB`, `1.2 GB`, `31 GB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= 999.5 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def format_elapsed(seconds: float) -> str:
    """Format minutes and seconds, `00:12`, and hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
