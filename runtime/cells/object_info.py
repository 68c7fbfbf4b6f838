"""IPython's inspection of an object on a rank, and a summary with which ranks are compared.

For tensors, arrays and tables only shape, type and device, never the content, since printing a tensor waits for its
GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.oinspect import Inspector

from meshbook.runtime.cells.tables import summarize_table
from meshbook.runtime.formats import format_bytes
from meshbook.runtime.traces import short_name

MOST_CHARACTERS = 60  # of a summary
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_GPU = re.compile(r"\bcuda:\d+")


@dataclass(frozen=True, slots=True)
class Inspected:
    """The object under a name on a rank: `mark` is equal if the objects of ranks are, `summary` is a few words.

    `data` is the full inspection by MIME type, if requested. A rank without an object of that name has no mark.
    """

    mark: str = ""
    summary: str = ""
    data: Mapping[str, str] | None = None


class CellInspector(Inspector):
    """Reports `cell 9` as the file of an object made by a cell, instead of a file that does not exist."""

    def info(self, obj: Any, oname: str = "", info: Any = None, detail_level: int = 0) -> Any:
        found = super().info(obj, oname, info=info, detail_level=detail_level)
        name = Path(found.get("file") or "").name
        if name.startswith("<cell"):
            found["file"] = short_name(name)
        return found


def inspect_name(shell: Any, name: str, detail: int, omitted: Collection[str], *, whole: bool) -> Inspected:
    """Inspect a name, which may have dots; `detail` 1 shows the source."""
    # Not `shell.object_inspect_mime`: around it IPython adds names to builtins and removes them by a nesting counter,
    # which the main thread uses as well.
    info = shell._object_find(name)
    if not info.found:
        return Inspected()
    held = _fields_of(info.obj)
    if held is not None:
        bundle: Any = {"text/plain": [(field, content) for field, content in held], "text/html": []}
        text = str(shell.inspector.format_mime(bundle)["text/plain"])
        data = {"text/plain": text}
    else:
        data = dict(shell.inspector._get_info(info.obj, name, None, info, detail, omit_sections=list(omitted)))
        text = data["text/plain"]
    mark = _GPU.sub("cuda", _ADDRESS.sub("0x", text))
    return Inspected(mark, _summarize(info.obj, held), data if whole else None)


def _fields_of(value: Any) -> Sequence[tuple[str, str]] | None:
    """The fields of a tensor, array or table, or of a container of tensors; None for any other value."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        fields = [("Type", type(value).__name__), ("Shape", str(tuple(value.shape))), ("Dtype", str(value.dtype))]
        return [*fields, ("Device", str(value.device)), ("Requires grad", str(value.requires_grad))]
    if numpy is not None and isinstance(value, numpy.ndarray):
        return [("Type", type(value).__name__), ("Shape", str(value.shape)), ("Dtype", str(value.dtype))]
    if (table := summarize_table(value)) is not None:
        fields = [("Type", type(value).__name__), ("Shape", str(table.shape)), ("Size", format_bytes(table.size))]
        return [*fields, ("Dtype" if len(table.shape) == 1 else "Columns", table.kinds)]
    if type(value) in (list, tuple, dict, set) and torch is not None:
        parts = list(value.values() if type(value) is dict else value)[:100]
        if any(isinstance(part, torch.Tensor) for part in parts):
            keys = [("Keys", ", ".join(map(str, list(value)[:20])))] if type(value) is dict else []
            return [("Type", type(value).__name__), ("Length", str(len(value))), *keys]
    return None


def _summarize(value: Any, held: Sequence[tuple[str, str]] | None) -> str:
    if held is not None:
        return " ".join(text for name, text in held if name in ("Type", "Shape", "Dtype", "Length"))
    if not isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
