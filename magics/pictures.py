"""Rich output of ranks: held back a moment, so that the same figure of many ranks appears once, with their label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from meshbook.magics.area import HEADER_STYLE
from meshbook.magics.publications import Display
from meshbook.runtime.geometry.ranges import format_label


@dataclass(frozen=True, slots=True)
class Picture:
    """A rich output as its rank sent it."""

    rank: int
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


class Pictures:
    """Rich output that waits for its like from the other ranks, so that the same figure appears once."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: list[Picture] = []
        self._since: float | None = None

    def add(self, picture: Picture) -> None:
        self._waiting.append(picture)

    def take_ready(self, now: float, running: Set[int]) -> list[Display]:
        """All that wait, once every running rank is among them or the first has waited long enough."""
        if not self._waiting:
            return []
        self._since = now if self._since is None else self._since
        is_complete = running <= {picture.rank for picture in self._waiting}
        return self.take_all() if is_complete or now - self._since >= self._patience else []

    def take_all(self) -> list[Display]:
        waiting, self._waiting, self._since = self._waiting, [], None
        return group_pictures(waiting)


def group_pictures(pictures: Iterable[Picture]) -> list[Display]:
    """The first picture of each rank, then the second of each and so on; equal ones once, with ranks."""
    counts: Counter[int] = Counter()
    alike: dict[tuple[int, str], list[Picture]] = {}
    for picture in pictures:
        alike.setdefault((counts[picture.rank], _content_of(picture.data)), []).append(picture)
        counts[picture.rank] += 1
    ordered = sorted(alike.items(), key=lambda item: (item[0][0], min(picture.rank for picture in item[1])))
    return [display for _, same in ordered for display in _label_picture(same)]


def _content_of(data: Mapping[str, Any]) -> str:
    # The text of a figure may hold an address; where there is anything richer, that decides what is the same.
    rich = {mime: content for mime, content in data.items() if mime != "text/plain"}
    return repr(sorted((rich or data).items()))


def _label_picture(same: Sequence[Picture]) -> list[Display]:
    label = format_label(picture.rank for picture in same)
    heading = {"text/plain": label, "text/html": f'<div style="{HEADER_STYLE}">{label}</div>'}
    data, metadata = same[0].data, same[0].metadata
    if not data.keys() <= heading.keys():
        return [Display(heading, {}), Display(data, metadata)]
    # Text and HTML have room for their label, which spares an output: JupyterLab shows 50 a cell.
    parts = {"text/plain": f"{label} {data.get('text/plain', '')}"}
    if "text/html" in data:
        parts["text/html"] = heading["text/html"] + data["text/html"]
    return [Display(parts, metadata)]
