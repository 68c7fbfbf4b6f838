"""The findings of an examination, and their rendering as text. Pure.

ok       Python         3.11.7
warning  /dev/shm       64 MiB in all: DataLoader workers and large tensors need more
                        -> start the container with --shm-size=8g
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")
WIDTH = 110


@dataclass(frozen=True)
class Finding:
    """A finding about a subject. A `note` costs speed or a feature, a `problem` keeps meshes from working."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


Check: TypeAlias = Callable[[], Iterable[Finding]]


def examine(checks: Iterable[Check]) -> list[Finding]:
    """Return the findings of all checks; a check that raises is a finding itself."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:  # any error: a check that raises must not end the examination
            name = check.__name__.replace("_", " ")
            findings.append(Finding("warning", name, f"the check failed: {type(error).__name__}: {error}"))
    return findings


def worst_of(findings: Iterable[Finding]) -> Level:
    """Return the worst level; `ok` without findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def format_report(findings: Sequence[Finding]) -> str:
    """Return the findings as a text table, with a summary as its last line."""
    wide = max((len(finding.subject) for finding in findings), default=0)
    counts = Counter(finding.level for finding in findings)
    if counts["problem"]:
        summary = f"{_count(counts['problem'], 'problem')} to fix before meshes work"
    elif counts["warning"]:
        summary = f"meshes work; {_count(counts['warning'], 'warning')} above"
    else:
        summary = "no problems found"
    return "\n".join([*(_format_finding(finding, wide) for finding in findings), "", summary])


def _format_finding(finding: Finding, wide: int) -> str:
    start = f"{finding.level:<8} {finding.subject:<{wide}}  "
    room = max(WIDTH - len(start), 40)
    lines = textwrap.wrap(finding.text, room, break_on_hyphens=False) or [""]
    if finding.remedy:
        lines += textwrap.wrap(
            finding.remedy, room, initial_indent="-> ", subsequent_indent="   ", break_on_hyphens=False
        )
    return start + ("\n" + " " * len(start)).join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"
