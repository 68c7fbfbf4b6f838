"""What a mesh tensor holds and can do, apart from running operators: its place, values, comparisons."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from meshbook.runtime.mesh.tensors import ValuesOnRanks
from meshbook.runtime.tensor.collectives import Collectives
from meshbook.runtime.tensor.lanes import Lane, Ref
from meshbook.runtime.tensor.metadata import Meta, names_here
from meshbook.runtime.tensor.sharding import Sharding
from meshbook.runtime.tensor.streams import MAIN, Stream
from meshbook.runtime.tensor.summaries import HeatMap, draw_tensor, summarize_shards

if TYPE_CHECKING:
    from meshbook.runtime.tensor.device_mesh import DeviceMesh


class Place:
    """Where tensors are: a mesh, and a stream of it. Tensors of one place have the same object."""

    __slots__ = ("engine", "is_global", "lane", "mesh", "state", "stream")

    def __init__(self, mesh: DeviceMesh, stream: Stream, lane: Lane, state: str = "") -> None:
        self.mesh = mesh
        self.stream = stream
        self.lane = lane
        self.engine = lane.engine
        self.is_global = lane.engine.layout is not None  # whether its tensors are of the global view
        self.state = state  # "" or why its tensors cannot be used: "dropped", "borrowed"

    def in_state(self, state: str) -> Place:
        """Return a place for a tensor that cannot be used."""
        return Place(self.mesh, self.stream, self.lane, state)


class Constant:
    """The value of a number that the controller shares with all ranks. Views share the flag that says it is valid."""

    __slots__ = ("valid", "value")

    def __init__(self, value: torch.Tensor, valid: list[bool]) -> None:
        self.value = value
        self.valid = valid


class MeshValue(Collectives, Sharding, torch.Tensor):
    """The attributes and methods of `MeshTensor`, which is the only subclass."""

    __slots__ = ("_constant", "_meta", "_place", "_ref")
    __torch_function__ = torch._C._disabled_torch_function_impl

    _ref: Ref
    _meta: Meta
    _place: Place
    _constant: Constant | None

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh that this tensor is on."""
        return self._place.mesh

    @property
    def stream(self) -> Stream:
        """The stream of this tensor."""
        return self._place.stream

    @property
    def dropped(self) -> bool:
        """Whether this borrowed tensor was given back."""
        return self._place.state == "dropped"

    def drop(self) -> None:
        """Give the memory on the ranks back now; the tensor cannot be used any more."""
        self._ref = Ref(0, _ignore)
        self._place = self._place.in_state("dropped")

    def fetch_first(self) -> torch.Tensor:
        """Return the value of the first rank, or the whole one of a tensor of the global view; waits."""
        engine = self._place.engine
        value: torch.Tensor
        if self._place.is_global:
            value = engine.fetch_whole(lambda: self._issue_for("whole"))
        else:
            value = engine.fetch_now(self._place.lane.ranks[0], [self._ref.id], self._place.stream)[0]
        return value

    def numpy(self, *, force: bool = False) -> Any:
        """Return the value that `fetch_first` returns as an array; waits."""
        return self.fetch_first().numpy(force=force)

    def tolist(self) -> Any:
        """Return the value that `fetch_first` returns as lists; waits."""
        return self.fetch_first().tolist()

    @property
    def device(self) -> torch.device:
        """The device on the ranks. `is_cuda` is about this process: torch and libraries then call CUDA here."""
        return self._meta.device

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Convert the dtype or the device, as `torch.Tensor.to` does."""
        if Meta.has_stand_in:
            args, kwargs = names_here(args, kwargs)
        return super().to(*args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        """Return this tensor on the GPUs of the ranks."""
        return self.to(torch.device("cuda"), *args[1:], **kwargs)

    def requires_grad_(self, requires_grad: bool = True) -> MeshValue:
        """Change whether autograd records operations on this tensor."""
        torch.Tensor.requires_grad_(self, requires_grad)
        self._align_gradient()
        return self

    @property
    def data(self) -> torch.Tensor:
        """The same tensor outside of autograd."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, MeshValue) or value._place is not self._place:
            raise TypeError(f"x.data = y needs a tensor of the same mesh and stream, not {value!r}")
        if self.__dict__.get("_is_hosted"):  # a module on the ranks has this memory
            if (value.shape, value.dtype) != (self.shape, self.dtype):
                raise TypeError(
                    "x.data = y needs the same shape and dtype if x is of a module on a mesh, not "
                    f"{list(value.shape)} {value.dtype} for {list(self.shape)} {self.dtype}"
                )
            with torch.no_grad():
                self.detach().copy_(value.detach())
            return
        _set_data(self, value)
        self._ref, self._meta, self._constant = value._ref, value._meta, value._constant

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshValue:
        if not self.is_leaf:
            raise RuntimeError("deepcopy() supports only leaves of a graph: call detach() on the tensor first")
        twin: MeshValue = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        dims = ", ".join(f"{name}={size}" for name, size in self._place.mesh.sizes.items())
        parts = [f"shape={tuple(self.shape)}", f"dtype={self.dtype}", f"mesh=({dims})"]
        if self._place.stream is not MAIN:
            parts.append(f"stream={self._place.stream.name!r}")
        if self.grad_fn is not None:
            parts.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        if self._place.state:
            parts.append(self._place.state)
        head = f"MeshTensor({', '.join(parts)})"
        if not self._place.is_global or self._place.state:
            return head
        return "\n  ".join([head, *summarize_shards(self)])

    def __str__(self) -> str:
        if not self._place.is_global or self._place.state:
            return repr(self)
        return str(self.fetch_first().requires_grad_(self.requires_grad))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 and spec else super().__format__(spec)

    def show(self) -> HeatMap:
        """Return a heat map, which a notebook displays; for 1 and 2 dimensions. Waits for the values.

        Of a tensor of the global view it shows the whole value and the borders of the shards, in the per-rank view the
        value of each rank. Raises ValueError for other dimensions, and ImportError without matplotlib.
        """
        return draw_tensor(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ValuesOnRanks(
            "a MeshTensor cannot be pickled: its values are on the ranks; send fetch_shard(x).get() instead"
        )


def _compare(method: Any) -> Any:
    """Return a comparison that leaves anything but tensors and numbers to Python."""

    def compare(self: MeshValue, other: Any) -> Any:
        return method(self, other) if isinstance(other, (torch.Tensor, int, float, complex)) else NotImplemented

    return compare


# torch's own operators make NotImplemented of a TypeError, so that `x == y` of two meshes would be False, and `x + y`
# would raise Python's text instead of ours. The methods do not.
for _names, _method in {
    ("add", "radd"): "add",
    ("iadd",): "add_",
    ("sub",): "sub",
    ("isub",): "sub_",
    ("mul", "rmul"): "mul",
    ("imul",): "mul_",
    ("truediv",): "div",
    ("itruediv",): "div_",
    ("floordiv",): "floor_divide",
    ("mod",): "remainder",
    ("pow",): "pow",
    ("matmul",): "matmul",
    ("and",): "bitwise_and",
    ("or",): "bitwise_or",
    ("xor",): "bitwise_xor",
    ("lt",): "lt",
    ("le",): "le",
    ("gt",): "gt",
    ("ge",): "ge",
}.items():
    for _name in _names:
        setattr(MeshValue, f"__{_name}__", getattr(torch.Tensor, _method))
MeshValue.__eq__ = _compare(torch.Tensor.eq)  # type: ignore[method-assign]
MeshValue.__ne__ = _compare(torch.Tensor.ne)  # type: ignore[method-assign]
MeshValue.__hash__ = torch.Tensor.__hash__  # type: ignore[method-assign]

_set_data = torch.Tensor.data.__set__


def _ignore(number: int) -> None:
    pass
