"""Bodies: what travels, how arrays and tensors do, and what an error says of what does not."""

from __future__ import annotations

import enum
import gc
import inspect
import linecache
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

from meshbook.runtime.errors import PickleError
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import pack, unpack
from meshbook.runtime.wire.messages import Reply

LARGE = 1 << 20


def over_the_wire(value: Any) -> Any:
    frame = pack(Reply("w.0", 1, "ok"), pickling.dumps(value, "a value"), 1 << 30)
    return pickling.loads(unpack(frame)[1], "a value")


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __repr__(self) -> str:
        return f"Point({self.x})"

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "text",
        b"bytes",
        (1, "a", None),
        ((1, 2), {}),
        ((), {"a": [1, (2.0, {"b": b"c"})]}),
        list(range(100)),
        {n: str(n) for n in range(100)},
        {1, 2},
        Point(3),
        [Point(1), {"p": Point(2)}],
        bytearray(b"abc"),
    ],
    ids=repr,
)
def test_values_survive(value: Any) -> None:
    assert over_the_wire(value) == value


def test_functions_and_classes_of_main_travel_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec("offset = 5\ndef shift(x): return x + offset\nclass Local:\n    y = 2", main)
    monkeypatch.setattr(sys.modules["__main__"], "shift", main["shift"], raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "Local", main["Local"], raising=False)
    shift, local, closure = over_the_wire((main["shift"], main["Local"], lambda: main["offset"]))
    assert shift is not main["shift"]
    assert (shift(1), local.y, closure()) == (6, 2, 5)


def test_functions_of_cells_bring_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all functions of a cell; a file that exists is read where the function arrives."""
    source = "def outer(x):\n    return [inner(y) for y in x]\n\ndef inner(x):\n    return x\n"
    name = "/tmp/ipykernel_1/source_of_a_cell.py"
    monkeypatch.setattr(linecache, "cache", {name: (len(source), None, source.splitlines(keepends=True), name)})
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), main)
    body = pickling.dumps(main["outer"], "a function")
    assert b"".join(map(bytes, body)).count(b"return [inner(y)") == 1
    linecache.cache.clear()
    came = pickling.loads(body, "a function")
    assert inspect.getsource(came) == "def outer(x):\n    return [inner(y) for y in x]\n"
    assert inspect.getsource(came.__globals__["inner"]) == "def inner(x):\n    return x\n"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10, dtype=np.float32),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.empty((0, 3)),
        np.array(5.0),
        np.array(["a", None], dtype=object),
        np.zeros(LARGE // 8),
    ],
    ids=["plain", "strided", "fortran", "empty", "scalar", "objects", "large"],
)
def test_arrays_survive(array: np.ndarray[Any, Any]) -> None:
    came = over_the_wire(array)
    assert came.dtype == array.dtype
    np.testing.assert_array_equal(came, array)


@pytest.mark.parametrize("read_only", [False, True], ids=["bytearray", "bytes"])
@pytest.mark.parametrize("size", [3, 3000, LARGE])
def test_what_arrives_can_be_written_to(size: int, read_only: bool) -> None:
    """In a frame of its own, or in `bytes`, as small frames are received."""
    sparse = pytest.importorskip("scipy.sparse")
    values = {
        "array": np.zeros(size),
        "strided": np.zeros(2 * size)[::2],
        "broadcast": np.broadcast_to(np.zeros(1), (size,)),
        "dates": np.zeros(size, "datetime64[s]"),
        "frame": pandas.DataFrame({"a": np.zeros(size), "b": np.zeros(size)}),
        "sparse": sparse.csr_matrix(np.ones((2, size))),
        "tensor": torch.zeros(size),
        "tensor of numpy": torch.from_numpy(np.zeros(size)),
    }
    frame = pack(Reply("w.0", 1, "ok"), pickling.dumps(values, "values"), 1 << 30)
    came = pickling.loads(unpack(bytes(frame) if read_only else frame)[1], "values")
    for name in ("array", "strided", "broadcast", "tensor", "tensor of numpy"):
        came[name][0] += 5
        assert float(came[name].max()) == 5, name
    came["dates"].sort()
    came["frame"].loc[0, "a"] = 5
    came["sparse"].data *= 2
    assert came["sparse"].sum() == 4 * size


def test_buffers_within_a_message_arrive_writable() -> None:
    """As the items of maps have them: a pickle within a pickle."""
    inner = pickling.dumps(np.zeros(3000), "a value")
    parts = over_the_wire([bytes(inner[0]), *(pickle.PickleBuffer(bytes(part)) for part in inner[1:])])
    came = pickling.loads([memoryview(part) for part in parts], "a value")
    came += 1


TENSORS = {
    "plain": torch.arange(6).view(2, 3),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
    "non-contiguous": torch.arange(12).view(3, 4).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "expanded to one element": torch.tensor(3.0).expand(1, 1),
    "slice of a large one": torch.zeros(LARGE)[5:7],
    "requires_grad": torch.ones(2, requires_grad=True),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "large": torch.zeros(LARGE // 4),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_survive(name: str) -> None:
    tensor = TENSORS[name]
    came = over_the_wire([tensor])[0]
    assert came.dtype == tensor.dtype
    assert came.requires_grad == tensor.requires_grad
    assert came.layout == tensor.layout
    assert torch.equal(came.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())


@pytest.mark.parametrize(
    "norm", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_a_module_with_parametrizations_arrives_with_them(norm):
    module = torch.nn.Sequential(norm(torch.nn.Linear(3, 3))).eval()
    came = over_the_wire(module)
    assert isinstance(came[0], torch.nn.Linear)
    assert parametrize.is_parametrized(came[0], "weight")
    assert list(came.state_dict()) == list(module.state_dict())
    assert torch.equal(came(torch.ones(2, 3)), module(torch.ones(2, 3)))
    again = over_the_wire(came)
    parametrize.remove_parametrizations(again[0], "weight")
    assert torch.equal(again(torch.ones(2, 3)), module(torch.ones(2, 3)))


def test_a_parameter_stays_a_parameter() -> None:
    came = over_the_wire(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(came, torch.nn.Parameter)


def test_a_received_tensor_can_be_written_to() -> None:
    came = over_the_wire(torch.zeros(3))
    came += 1
    assert came.tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [np.zeros(LARGE), torch.zeros(LARGE)], ids=["numpy", "torch"])
def test_bulk_stays_out_of_the_pickle_stream(value: Any) -> None:
    stream, buffer = pickling.dumps({"x": value}, "a value")
    assert len(stream) < 1000
    assert memoryview(buffer).nbytes == value.nbytes


def test_a_slice_of_a_large_tensor_sends_only_itself() -> None:
    _, buffer = pickling.dumps(torch.zeros(LARGE)[:2], "a value")
    assert memoryview(buffer).nbytes == 8


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (threading.Lock(), "an argument of a.step cannot be pickled: TypeError"),
        (((1, threading.Lock()), {}), r"argument 1 \(lock\): TypeError"),
        (((), {"guard": threading.Lock()}), r"guard \(lock\): TypeError"),
        ((n for n in ()), "cannot be pickled: TypeError.*generator"),
        (nested(100_000), "nested too deeply"),
    ],
    ids=["lock", "positional", "keyword", "generator", "deep"],
)
def test_what_cannot_be_pickled_is_named(value: Any, said: str) -> None:
    with pytest.raises(PickleError, match=said):
        pickling.dumps(value, "an argument of a.step")


class Refuses:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("not here")


def test_what_cannot_be_unpickled_is_named() -> None:
    body = pickling.dumps(Refuses(), "x")
    with pytest.raises(PickleError, match=r"an argument of a\.step cannot be unpickled: ValueError: not here"):
        pickling.loads(body, "an argument of a.step")


def test_a_class_that_comes_back_is_left_as_it_was_defined_here() -> None:
    """Or its methods would read copies of the globals from then on, and class attributes become those of a rank."""
    main: dict[str, Any] = {"__name__": "__main__", "RATE": 1}
    source = "class Layer:\n    made = 0\n    def rate(self):\n        return RATE, self.made"
    exec(source, main)
    layer = over_the_wire(main["Layer"]())
    main["RATE"], main["Layer"].made = 2, 3
    assert over_the_wire(layer).rate() == main["Layer"]().rate() == (2, 3)
    assert type(layer) is main["Layer"]


@pytest.mark.parametrize(
    ("source", "has_dict"),
    [
        ("class Point:\n    __slots__ = ('x', 'y')", False),
        ("class Point:\n    __slots__ = 'x'", False),
        ("class Base: pass\nclass Point(Base):\n    __slots__ = ('x',)", True),
        ("class Point:\n    x = None", True),
        ("import dataclasses\n@dataclasses.dataclass(slots=True)\nclass Point:\n    x: int = 1", False),
        ("import typing\nclass Point(typing.NamedTuple):\n    x: int = 1", False),
        ("import enum\nclass Point(enum.Enum):\n    __slots__ = ()\n    x = None", True),
    ],
)
def test_a_class_by_value_keeps_its_slots(source: str, has_dict: bool) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(source, main)
    body = pickling.dumps(main["Point"], "a class")
    main.clear()
    gc.collect()  # nothing here knows the class any more, as in another process
    point = pickling.loads(body, "a class")
    made = point.x if issubclass(point, enum.Enum) else point()
    assert hasattr(made, "__dict__") == has_dict
    if not isinstance(made, tuple | enum.Enum):
        made.x = 2
        assert over_the_wire(made).x == 2


def test_a_class_of_another_process_is_renewed_each_time_it_comes() -> None:
    """A change where it was defined reaches processes that have it already."""
    main: dict[str, Any] = {"__name__": "__main__"}
    exec("class Layer:\n    made = 0", main)
    first = pickling.dumps(main["Layer"], "a class")
    main["Layer"].made = 1
    second = pickling.dumps(main["Layer"], "a class")
    del main["Layer"]
    gc.collect()  # nothing here knows the class any more, as in another process
    layer = pickling.loads(first, "a class")
    assert layer.made == 0
    assert pickling.loads(second, "a class") is layer
    assert layer.made == 1
    assert over_the_wire(layer) is layer
