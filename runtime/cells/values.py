"""The value of a cell's last expression in a reply: its representations, a tensor summary, and itself if small."""

from __future__ import annotations

import io
import sys
from typing import Any

from IPython.core.formatters import BaseFormatter

from meshbook.runtime.cells.displays import without_widgets
from meshbook.runtime.cells.outcome import CellValue, TensorSummary
from meshbook.runtime.wire.pickling import dump_detached

TRAVEL_BYTES = 1 << 20
SHOWN_CHARACTERS = 20_000
SHOWN_RICH_CHARACTERS = 1 << 20
STATISTICS_ELEMENTS = 50_000_000
# Classes without methods such as `_repr_html_`, and their base, for which formatters may have a printer.
_BUILTIN = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, object})


def describe(value: Any, formatter: Any) -> CellValue:
    """Describe a value, and include it if it is small. `formatter` is an IPython DisplayFormatter."""
    mime, tensor = _represent(value, formatter)
    pickled, note = pack(value)
    return CellValue(mime=mime, type_name=type(value).__name__, tensor=tensor, pickled=pickled, note=note)


def describe_text(value: Any, formatter: Any) -> CellValue:
    """Describe a value by its representations only."""
    mime, tensor = _represent(value, formatter)
    return CellValue(mime=mime, type_name=type(value).__name__, tensor=tensor, note="only its text was fetched")


def _represent(value: Any, formatter: Any) -> tuple[dict[str, Any], TensorSummary | None]:
    tensor = summarize_tensor(value)
    if _has_only_text(value, formatter):
        mime = {"text/plain": formatter.formatters["text/plain"](value)}
    else:
        mime = without_widgets(formatter.format(value)[0])
    mime = {
        kind: data
        for kind, data in mime.items()
        if kind == "text/plain" or not isinstance(data, str | bytes) or len(data) <= SHOWN_RICH_CHARACTERS
    }
    text = mime.get("text/plain") or repr(value)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}… ({len(text):,} characters)"
    mime["text/plain"] = text
    return mime, tensor


def _has_only_text(value: Any, formatter: Any) -> bool:
    """Whether formatters have only text for it. To call each formatter, as IPython does, costs more than the cell."""
    if type(value) not in _BUILTIN:
        return False
    others = [each for kind, each in formatter.formatters.items() if kind != "text/plain"]
    return all(type(each).__call__ is BaseFormatter.__call__ for each in others) and not any(
        each.singleton_printers or each.deferred_printers or not each.type_printers.keys().isdisjoint(_BUILTIN)
        for each in (*others, formatter.mimebundle_formatter, formatter.ipython_display_formatter)
    )


def pack(value: Any, limit: int = TRAVEL_BYTES) -> tuple[bytes | None, str]:
    """Return the pickled value; or None and the reason."""
    torch = sys.modules.get("torch")
    # A large tensor on a GPU is not copied only to be rejected.
    if torch is not None and type(value) is torch.Tensor and value.numel() * value.element_size() > limit:
        return None, f"tensors of more than {limit >> 20} MiB stay on their rank"
    value = without_graph(value)
    stream = BoundedStream(limit)
    try:
        dump_detached(value, stream)
    except TooLargeError:
        return None, f"values of more than {limit >> 20} MiB stay on their rank"
    except Exception as error:  # of the value's own code, such as `__reduce__`
        return None, f"cannot be pickled ({type(error).__name__}: {error})"
    return stream.getvalue(), ""


def without_graph(value: Any) -> Any:
    """Detach a tensor from its graph; return anything else unchanged."""
    torch = sys.modules.get("torch")
    return value.detach() if torch is not None and type(value) is torch.Tensor else value


class TooLargeError(Exception):
    """A value is over the limit of what is copied or sent."""


class BoundedStream(io.BytesIO):
    """A stream that stops a pickle above the limit, before it costs more time and memory."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._limit:
            raise TooLargeError
        return super().write(data)


def summarize_tensor(value: Any) -> TensorSummary | None:
    """Summarize a torch tensor or a NumPy array; None for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _summary(value, str(value.dtype).removeprefix("torch."), str(value.device), _torch_statistics)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _summary(value, str(value.dtype), "cpu", _numpy_statistics)
    return None


def _summary(value: Any, dtype: str, device: str, statistics: Any) -> TensorSummary:
    try:
        least, mean, most = statistics(value)
    except Exception:
        least = mean = most = None  # no order (complex, strings), or no elements: the shape is still useful
    return TensorSummary(type(value).__name__, tuple(value.shape), dtype, device, least, mean, most)


def _torch_statistics(tensor: Any) -> tuple[float | None, ...]:
    if not 0 < tensor.numel() <= STATISTICS_ELEMENTS:
        return None, None, None
    plain = tensor.detach()
    return float(plain.min()), float(plain.double().mean()), float(plain.max())


def _numpy_statistics(array: Any) -> tuple[float | None, ...]:
    if not 0 < array.size <= STATISTICS_ELEMENTS:
        return None, None, None
    return float(array.min()), float(array.mean(dtype="float64")), float(array.max())
