"""The kernel's side of a dashboard, as far as panels ask: a mesh of a few ranks, lines of a log, and spans."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshbook.widgets.sections import LogsRequest

Content = dict[str, Any]
Line = tuple[int, float, int, str, int | None, str]
COLOURS = re.compile("\x1b\\[[0-9;]*m")
BEGAN = 1_700_000_000.0


@dataclass
class PanelKernel:
    """Answers what a view asks. `lines` may be added to; sections of the next full state are in `sections`."""

    ranks: int = 4
    lines: list[Line] = field(default_factory=list)
    live: list[tuple[int, str, int | None, str]] = field(default_factory=list)
    sections: Content = field(default_factory=dict)
    replies: dict[str, Content] = field(default_factory=dict)  # to requests of other kinds than those known here
    dropped: int = 0
    seq: int = 0

    def print(self, rank: int, text: str, *, stream: str = "stdout", cell: int | None = 9) -> None:
        """A rank prints a line."""
        serial = len(self.lines) + 1
        self.lines.append((serial, BEGAN + serial / 100, rank, stream, cell, text))

    def __call__(self, content: Content, buffers: list[bytes]) -> list[Any]:
        if content["kind"] == "open":
            return [self.state()]
        if "id" not in content:
            return []
        try:
            reply = {"ok": True, **getattr(self, f"_{content['kind']}", self._other)(content)}
        except re.error as error:
            reply = {"ok": False, "error": f"not a regular expression: {error}"}
        extra = [self.state(full=False, selected=self.sections["selected"])] if content["kind"] == "select" else []
        return [{"kind": "reply", "id": content["id"], **reply}, *extra]

    def state(self, *, full: bool = True, **sections: Any) -> Any:
        """A state with these sections; in a full one all ranks are idle."""
        self.seq += 1
        head: Content = {"kind": "state", "seq": self.seq, "full": full}
        if not full:
            return head | sections
        mesh = {"name": "trainers", "dims": [["gpus", self.ranks]], "hosts": ["node1"], "alive": True}
        head |= {"mesh": mesh | {"host_of": [0] * self.ranks}, "buffers": ["states"], "counts": {"idle": self.ranks}}
        return head | {"cell": None} | self.sections | sections, [bytes(self.ranks)]

    def _other(self, content: Content) -> Content:
        return self.replies[content["kind"]]

    def _select(self, content: Content) -> Content:
        ranks = content["sel"].replace("all", f"0-{self.ranks - 1}")
        first, _, end = ranks.partition(":")
        text = f"{first}-{int(end) - 1}" if end else first
        count = int(end) - int(first) if end else len(text.split(",")) if text else 0
        self.sections["selected"] = {"sel": content["sel"], "ranks": text, "count": count}
        return {"ranks": text, "count": count}

    def _logs(self, content: Content) -> Content:
        msgspec.convert(content, LogsRequest)  # what the kernel would not understand fails the test
        found = [line for line in self.lines if self._is_wanted(line, content)]
        limit = content["limit"]
        if content["before"] is not None:
            shown = [line for line in found if line[0] < content["before"]][-limit:]
        elif content["after"]:
            shown = [line for line in found if line[0] >= content["after"]][:limit]
        else:
            shown = found[-limit:]
        end = len(self.lines) + 1
        is_cut = bool(content["after"]) and len(shown) == limit
        heads: Content = {"first": self.dropped + 1, "next": shown[-1][0] + 1 if is_cut else end, "end": end}
        looked_at = [line for line in found if line[0] >= content["after"]]
        rest: Content = {"dropped": self.dropped, "matches": len(looked_at), "partial": False, "live": self.live}
        return heads | rest | {"lines": shown}

    def _is_wanted(self, line: Line, content: Content) -> bool:
        query = content["query"]
        pattern = query["text"] if query["regex"] else re.escape(query["text"])
        return (
            (content["sel"] in ("", "all") or str(line[2]) in content["sel"].split(","))
            and query["stream"] in ("", line[3])
            and query["cell"] in (None, line[4])
            and re.search(pattern, COLOURS.sub("", line[5]), 0 if query["case"] else re.IGNORECASE) is not None
        )
