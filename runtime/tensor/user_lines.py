"""The user's line that issued a command: the first frame that is neither ours nor torch's."""

from __future__ import annotations

import sys
import traceback
from typing import Final

import torch

from meshbook.runtime.traces import Place, SourceLine, is_ours

MOST_FILES: Final = 4096
_TORCH = torch.__path__[0] + "/"


def user_place(depth: int) -> Place | None:
    """Return the instruction of the first frame from `depth` up that is neither ours nor torch's."""
    frame = sys._getframe(depth)
    while _is_inner(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class _Inner(dict[str, bool]):
    def __missing__(self, filename: str) -> bool:
        if len(self) > MOST_FILES:
            self.clear()
        found = self[filename] = is_ours(filename) or filename.startswith(_TORCH)
        return found


_is_inner = _Inner().__getitem__


def frame_of(place: Place) -> traceback.FrameSummary:
    line = SourceLine.of(place)
    return traceback.FrameSummary(line.filename, line.number, line.function)
