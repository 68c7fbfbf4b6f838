"""Digests of a variable's parts, with which ranks compare it without sending it.

A value is split into parts (the entries of a dict, the attributes of an object, the parameters of a model, the columns
of a table), each with a hash of its content. The device does not count: equal numbers on cuda:0 and cuda:1 are the
same.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import math
import numbers
import pickle
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.cells.inventory import entry_of
from meshbook.runtime.cells.packed_values import PackedValues, pack
from meshbook.runtime.cells.tables import columns_of, content_of, library_of, numbers_of
from meshbook.runtime.cells.values import summarize_tensor
from meshbook.runtime.cells.variables import Namespace, RequestError, VariableRequest

MOST_PARTS = 20_000  # of one variable; the rest is one part
DEEPEST = 20
BLOCK = 4 << 20  # bytes of a tensor that have a digest of their own, and are moved together
_FEW = 64  # elements of a list of numbers that are parts each; a longer list is one part, like an array
_EXACT = {int, float, complex, str, bool, bytes, bytearray, type(None), range}  # types that their text represents fully
_SPARSE = {
    "torch.sparse_coo": ("indices", "values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class NumberDigests:
    """Numbers that can be compared one by one: their shape, the size of each, and a digest for each block of them."""

    shape: tuple[int, ...]
    item_size: int
    blocks: tuple[bytes, ...]

    @property
    def block_length(self) -> int:
        """The number of elements in a block; the last block may have fewer."""
        return max(1, BLOCK // self.item_size)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a distributed tensor that a rank has.

    `layout` is the shape and the placements of the whole. Ranks with the same `position` have replicas of one of the
    `count` shards. A rank outside the tensor's mesh has no position.
    """

    layout: str
    position: tuple[int, ...] | None
    count: int


@dataclass(frozen=True, slots=True)
class DigestPart:
    """A part without parts: `path` leads to it (`['model'].lr`), `kind` is its type without its content."""

    path: str
    kind: str
    text: str
    digest: bytes
    numbers: NumberDigests | None = None
    shard: Shard | None = None


@dataclass(frozen=True, slots=True)
class VariableDigest:
    """The parts of a variable. A variable that is a single value has one part, with an empty path."""

    type_name: str
    parts: tuple[DigestPart, ...]


@dataclass(frozen=True)
class DigestRequest(VariableRequest):
    """Request the digest of a variable; None if there is none of this name."""

    name: str

    def handle(self, namespace: Namespace) -> VariableDigest | RequestError | None:
        if self.name not in namespace.values:
            return None
        value = namespace.values[self.name]
        try:
            return VariableDigest(type(value).__name__, tuple(_folded([part_of(*part) for part in _parts(value)])))
        except Exception as error:  # of the user's own code
            return RequestError(f"{self.name} cannot be compared: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class FetchBlocks(VariableRequest):
    """Request numbers of a variable, flattened: these blocks of each path. Paths that no longer exist are left out."""

    name: str
    blocks: Mapping[str, tuple[int, ...]]

    def handle(self, namespace: Namespace) -> PackedValues:
        found = _parts(namespace.values.get(self.name))
        wanted = ((path, value) for path, value, _ in found if path in self.blocks)
        return pack({path: _take(value, self.blocks[path]) for path, value in wanted if _has_numbers(value)})


def _folded(parts: list[DigestPart]) -> list[DigestPart]:
    """Merge the parts beyond the maximum into one."""
    if len(parts) <= MOST_PARTS:
        return parts
    rest = parts[MOST_PARTS:]
    digest = _hash(piece for part in rest for piece in (part.path.encode(), part.digest))
    return [*parts[:MOST_PARTS], DigestPart(f"from {rest[0].path} on", "parts", f"{len(rest):,} parts", digest)]


def _parts(
    value: Any, path: str = "", above: frozenset[int] = frozenset(), shard: Shard | None = None
) -> Iterator[tuple[str, Any, Shard | None]]:
    inner = None if id(value) in above or len(above) >= DEEPEST else _inner(value)
    if inner is None:
        yield path, numbers_of(value), shard
        return
    shard = _shard_of(value) or shard
    for key, part in inner:
        yield from _parts(part, path + key, above | {id(value)}, shard)


def _shard_of(value: Any) -> Shard | None:
    """The shard of a distributed tensor on this rank; None for other values."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or not hasattr(value, "to_local"):
        return None
    mesh, placements = value.device_mesh, value.placements
    divided = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    coordinate = mesh.get_coordinate()
    return Shard(
        layout=f"of {tuple(value.shape)}, {', '.join(map(repr, placements))}",
        position=None if coordinate is None else tuple(coordinate[dim] for dim in divided),
        count=math.prod(mesh.size(dim) for dim in divided),
    )


def _inner(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The parts of a value, each with its path; None if the value has none."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value] or None
    if isinstance(value, list | tuple):
        return None if _are_many_numbers(value) else [(f"[{index}]", each) for index, each in enumerate(value)] or None
    if isinstance(value, type | types.ModuleType) or _is_numeric(value):
        return None
    if library_of(value):
        return columns_of(value) or None
    if (tensors := _tensors_in(value)) is not None:
        return tensors
    if callable(save := getattr(value, "state_dict", None)):
        state = save()
        return [(f".{key}", state[key]) for key in state] or None
    attributes = getattr(value, "__dict__", None)
    if callable(value) or not attributes:
        return None
    return [(f".{name}", attributes[name]) for name in attributes]


def _tensors_in(value: Any) -> list[tuple[str, Any]] | None:
    """The plain tensors that make up another tensor; of a distributed tensor, its local part."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "to_local"):
        return [(".to_local()", value.to_local())]
    if hasattr(value, "__tensor_flatten__"):  # a class of tensors that consist of others, such as nested ones
        return [(f".{name}", getattr(value, name)) for name in value.__tensor_flatten__()[0]]
    if value.layout is torch.sparse_coo:
        value = value.coalesce()
    if names := _SPARSE.get(str(value.layout)):
        whole = [(f".{name}()", getattr(value, name)()) for name in names]
        return [*whole, (".shape", str(tuple(value.shape)))]
    return [(".dequantize()", value.dequantize())] if value.is_quantized else None


def _are_many_numbers(values: Sequence[Any]) -> bool:
    return len(values) > _FEW and all(isinstance(value, numbers.Real) for value in values)


def _is_numeric(value: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"
        return is_plain and not hasattr(value, "__tensor_flatten__")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def part_of(path: str, value: Any, shard: Shard | None = None) -> DigestPart:
    """Return the digest of a part."""
    kind = type(value).__name__
    if not _has_numbers(value):
        content = content_of(value) if library_of(value) else None
        return DigestPart(
            path, kind, _short(value), _hash([kind.encode(), *(content or [_content_of(value)])]), None, shard
        )
    if not _is_numeric(value):
        kind, text = f"{kind} of {len(value)} numbers", _short(value)
    else:
        kind, text = _look_at(value)
    blocks = tuple(_hash([block]) for block in _blocks_of(value))
    item_size = int(value.itemsize) if _is_numeric(value) else 8
    shape = tuple(value.shape) if _is_numeric(value) else (len(value),)
    numbers_of = NumberDigests(shape, item_size, blocks)
    return DigestPart(path, kind, text, _hash([kind.encode(), *blocks]), numbers_of, shard)


def _has_numbers(value: Any) -> bool:
    return _is_numeric(value) or (isinstance(value, list | tuple) and _are_many_numbers(value))


def _look_at(value: Any) -> tuple[str, str]:
    """Return its kind and its statistics."""
    summary = summarize_tensor(value)
    assert summary is not None
    kind = f"{summary.type_name} {summary.shape} {summary.dtype} {summary.device.partition(':')[0]}"
    statistics = (("min", summary.minimum), ("mean", summary.mean), ("max", summary.maximum))
    return kind, "  ".join(f"{name} {number:.6g}" for name, number in statistics if number is not None)


def _short(value: Any) -> str:
    return entry_of("", value).text


def _content_of(value: Any) -> bytes:
    if type(value) in _EXACT:
        return repr(value).encode("utf-8", "replace")
    if isinstance(value, types.FunctionType):
        constants = [each for each in value.__code__.co_consts if not isinstance(each, types.CodeType)]
        return value.__code__.co_code + repr((constants, value.__defaults__, str(inspect.signature(value)))).encode()
    if isinstance(value, set | frozenset):
        return b"".join(sorted(_hash([type(each).__name__.encode(), _content_of(each)]) for each in value))
    return _pickled(value) or _ADDRESS.sub("", repr(value)).encode("utf-8", "replace")


def _pickled(value: Any) -> bytes:
    """The whole content of a value, since the text of arrays and tables leaves out most. Empty if it has no pickle.

    Without pickle's memo, which distinguishes equal objects from identical ones.
    """
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 5)
    pickler.fast = True
    try:
        pickler.dump(value)
    except Exception:
        return b""
    return stream.getvalue()


def _blocks_of(value: Any) -> Iterator[Any]:
    """The content in pieces, from any device."""
    if not _is_numeric(value):
        yield repr(value).encode()
        return
    flat, length = _flat(value), max(1, BLOCK // int(value.itemsize))
    for start in range(0, len(flat), length):
        piece = flat[start : start + length]
        yield memoryview(
            piece.cpu().view(sys.modules["torch"].uint8).numpy() if hasattr(piece, "cpu") else piece.view("uint8")
        )


def _take(value: Any, blocks: Sequence[int]) -> Any:
    if not _is_numeric(value):
        return value
    flat, length = _flat(value), max(1, BLOCK // int(value.itemsize))
    pieces = [flat[index * length : (index + 1) * length] for index in blocks]
    return sys.modules["torch"].cat(pieces) if hasattr(flat, "cpu") else sys.modules["numpy"].concatenate(pieces)


def _flat(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return sys.modules["numpy"].ascontiguousarray(value).reshape(-1)


def _hash(pieces: Iterable[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
