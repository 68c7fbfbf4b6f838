"""Bodies: what travels, how arrays and tensors do, and what an error says of what does not."""

from __future__ import annotations

import enum
import gc
import inspect
import linecache
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

from meshbook.runtime import devices
from meshbook.runtime.errors import PickleError
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import pack, unpack
from meshbook.runtime.wire.messages import Reply
from tests.fake_gpus import install_fake

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


class Tagged(torch.Tensor):
    """A subclass of the user's."""


ROWS = {
    "plain": lambda table: table[3],
    "of a graph": lambda table: (table.requires_grad_() * 1)[3],
    "of a leaf": lambda table: table.requires_grad_()[3],
    "conjugate": lambda table: torch.view_as_complex(table.view(-1, 64, 2)).conj()[3],
    "of a subclass": lambda table: table.as_subclass(Tagged)[3],
    "parameter": lambda table: torch.nn.Parameter(table[3]),
    "quantized": lambda table: torch.quantize_per_tensor(table, 0.1, 0, torch.quint8)[3],
    "8 bits": lambda table: table.to(torch.float8_e4m3fn)[3],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_large_tensor_sends_its_own_bytes_only(name: str) -> None:
    row = ROWS[name](torch.ones(1 << 12, 1 << 7))
    came = check_frame_is_small(row)
    assert type(came) is type(row)
    assert came.requires_grad == row.requires_grad
    assert torch.equal(came.dequantize() if row.is_quantized else came, row.dequantize() if row.is_quantized else row)


def test_a_row_of_256_mib_sends_less_than_64_kib() -> None:
    table = torch.empty(1 << 14, 1 << 12)
    table[5] = 7
    assert check_frame_is_small(table[5]).eq(7).all()


def check_frame_is_small(value: Any) -> Any:
    frame = pack(Reply("w.0", 1, "ok"), pickling.dumps(value, "a value"), 1 << 30)
    assert len(frame) < 1 << 16
    return pickling.loads(unpack(frame)[1], "a value")


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_nested_tensors_survive(layout: torch.layout, requires_grad: bool) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=layout, requires_grad=requires_grad)
    came = over_the_wire(nested)
    assert came.layout is layout
    assert came.requires_grad == requires_grad
    assert [each.tolist() for each in came.unbind()] == [[1, 1], [0, 0, 0]]


def test_a_subclass_keeps_its_attributes_and_its_grad() -> None:
    tagged = torch.ones(2).as_subclass(Tagged).requires_grad_()
    tagged.tag = "mine"  # type: ignore[attr-defined]
    came = over_the_wire(tagged)
    assert (type(came), came.tag, came.requires_grad, came.is_leaf) == (Tagged, "mine", True, True)


@pytest.fixture
def one_rank_mesh(tmp_path: Path) -> Iterator[Any]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_dtensor_is_refused(one_rank_mesh: Any) -> None:
    sharded = torch.distributed.tensor.distribute_tensor(torch.ones(4), one_rank_mesh)
    for value in (sharded, torch.nn.Parameter(sharded)):
        with pytest.raises(PickleError, match=r"\.full_tensor\(\)"):
            pickling.dumps(value, "a value")
    assert over_the_wire(sharded.full_tensor()).tolist() == [1] * 4


def test_the_result_of_a_collective_is_waited_for(one_rank_mesh: Any) -> None:
    result = torch.distributed._functional_collectives.all_reduce(torch.ones(2), "sum", one_rank_mesh.get_group())
    came = over_the_wire(result)
    assert (type(came), came.tolist()) == (torch.Tensor, [1, 1])
    assert result.completed


# --- devices: a tensor that says that it is on a GPU, and the meta device as the receiver's GPU ---


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that lets a tensor say that it is on GPU 3 of its process."""
    marked: dict[int, torch.Tensor] = {}
    real = torch.Tensor.device

    def device_of(tensor: torch.Tensor) -> torch.device:
        return torch.device("cuda", 3) if id(tensor) in marked else real.__get__(tensor)

    def mark(tensor: torch.Tensor) -> torch.Tensor:
        return marked.setdefault(id(tensor), tensor)

    monkeypatch.setattr(torch.Tensor, "device", property(device_of), raising=False)
    return mark


def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "arrival_device", lambda kind: "meta" if kind == "cuda" else kind)


GPU_TENSORS = {
    "row": lambda: torch.ones(1 << 16, 8)[3],
    "requires_grad": lambda: torch.ones(2, requires_grad=True),
    "graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "complex": lambda: torch.ones(2, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("name", GPU_TENSORS)
def test_a_tensor_of_a_gpu_arrives_on_the_receivers_own_device(
    name: str, on_gpu: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = on_gpu(GPU_TENSORS[name]())
    came = check_frame_is_small(tensor)
    assert came.device.type == "cpu"
    assert came.requires_grad == tensor.requires_grad
    assert torch.equal(came.to_dense(), tensor.to_dense())
    with_gpu(monkeypatch)
    there = check_frame_is_small([tensor])[0]
    assert (there.device.type, there.requires_grad) == ("meta", tensor.requires_grad)
    assert (there.shape, there.dtype, there.layout) == (tensor.shape, tensor.dtype, tensor.layout)


def test_a_tensor_of_parts_on_a_gpu_arrives_where_its_parts_do(
    on_gpu: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    jagged = on_gpu(torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged))
    came = over_the_wire(jagged)
    assert (came.device.type, came.values().device.type) == ("cpu", "cpu")
    assert [each.tolist() for each in came.unbind()] == [[1, 1], [0, 0, 0]]


def test_modules_and_optimizers_of_a_gpu_arrive_on_the_receivers_own_device(
    on_gpu: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    adam.step()
    real = torch.Tensor.data

    def data_of(parameter: torch.Tensor) -> torch.Tensor:
        return on_gpu(real.__get__(parameter))

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "data", property(data_of, real.__set__), raising=False)
        for state in adam.state.values():
            on_gpu(state["exp_avg"])
        body = pickling.dumps((module, adam), "a value")
    with_gpu(monkeypatch)
    came, optimizer = pickling.loads(body, "a value")
    assert [each.device.type for each in came.parameters()] == ["meta", "meta"]
    assert isinstance(came.weight, torch.nn.Parameter)
    assert optimizer.param_groups[0]["params"][0] is came.weight
    assert optimizer.state[came.weight]["exp_avg"].device.type == "meta"


def test_where_tensors_of_a_gpu_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook whose code has used no GPU begins no CUDA context because of a result."""
    assert devices.arrival_device("cuda") == "cpu"  # no GPU
    gpus = install_fake(monkeypatch)
    assert devices.arrival_device("cuda") == "cuda"  # a rank
    monkeypatch.setattr(devices, "OWN_GPU", devices.OwnGpu())  # any other process
    assert [devices.arrival_device(kind) for kind in ("cuda", "cpu", "meta")] == ["cpu", "cpu", "meta"]
    gpus.use()
    assert devices.arrival_device("cuda") == "cuda"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_tensors_of_a_real_gpu_arrive_on_it() -> None:
    table = torch.ones(1 << 16, 8, device="cuda")
    assert torch.equal(over_the_wire(table * 3), table * 3)  # large: through pinned memory
    jagged = torch.nested.nested_tensor([table[3], table[4]], layout=torch.jagged)
    assert [each.device.type for each in over_the_wire(jagged).unbind()] == ["cuda", "cuda"]
    for value in (table[3], table[3].requires_grad_(), table[3].to_sparse(), torch.nn.Parameter(table[3])):
        came = check_frame_is_small(value)
        assert (came.device, came.requires_grad, type(came)) == (value.device, value.requires_grad, type(value))
        assert torch.equal(came.to_dense(), value.to_dense())


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
    "sparse with grad": torch.eye(3).to_sparse().requires_grad_(),
    "compressed": torch.eye(3).to_sparse_csr(),
    "float8": torch.tensor([1.5, -2.0]).to(torch.float8_e5m2),
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
