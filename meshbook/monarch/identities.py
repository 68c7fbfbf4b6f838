"""`ProcId` and `Uid`: the identities that Monarch's programs show in logs. meshbook identifies processes by name."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Self

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # base 58, without 0, I, O and l
_UID = re.compile(rf"(?P<label>[^<>]*)(?:<(?P<value>[{_DIGITS}]+)>)?")


@dataclass(frozen=True, slots=True)
class Uid:
    """An identity: `label` alone is unique; `label<value>` and `<value>` exist any number of times."""

    label: str | None = None
    instance_value: int | None = None  # 64 bits

    @classmethod
    def anonymous(cls) -> Self:
        """Return a new identity without a label."""
        return cls(None, secrets.randbits(64))

    @classmethod
    def instance(cls, label: str | None = None) -> Self:
        """Return a new identity with this label."""
        return cls(label, secrets.randbits(64))

    @classmethod
    def instance_from_value(cls, value: int, label: str | None = None) -> Self:
        """Return the identity with this value and label."""
        return cls(label, value)

    @classmethod
    def singleton(cls, label: str) -> Self:
        """Return the only identity that is this label alone."""
        return cls(label)

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse the result of `str`; ValueError for anything else."""
        found = _UID.fullmatch(text)
        if not text or found is None:
            raise ValueError(f"invalid uid: {text!r} is neither a label nor label<value>")
        value = found["value"]
        return cls(found["label"] or None, None if value is None else _read(value))

    @property
    def is_instance(self) -> bool:
        """Return whether it has a value."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Return whether it is a label alone."""
        return self.instance_value is None

    def __str__(self) -> str:
        value = "" if self.instance_value is None else f"<{_write(self.instance_value)}>"
        return f"{self.label or ''}{value}"


@dataclass(frozen=True, slots=True)
class ProcId:
    """The identity of a process."""

    uid: Uid

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse the text of its uid; ValueError for anything else."""
        return cls(Uid.from_string(text))

    @property
    def label(self) -> str | None:
        """The label of its uid."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)


def _read(text: str) -> int:
    value = 0
    for digit in text:
        value = value * len(_DIGITS) + _DIGITS.index(digit)
    return value


def _write(value: int) -> str:
    text = ""
    while value or not text:
        value, digit = divmod(value, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text
