"""Objects as bodies: pickle protocol 5 with out-of-band buffers, and cloudpickle for what pickle cannot name.

The libraries do the serialization; this module chooses between them. `reducers` takes out what the libraries would
leave in the stream: arrays, tensors, tables.
"""

from __future__ import annotations

import io
import linecache
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import CodeType
from typing import IO, Any

import cloudpickle

from meshbook.runtime.errors import MessageLost, PickleError
from meshbook.runtime.wire.definitions import digest_of, find_class, note_digest, own_class
from meshbook.runtime.wire.frames import Body, Buffer, LostBody
from meshbook.runtime.wire.functions import make_code, reduce_function
from meshbook.runtime.wire.module_edits import Followed, find_edits, note_modules
from meshbook.runtime.wire.reducers import (
    reduce_array,
    reduce_arrow,
    reduce_frame,
    reduce_parametrized,
    reduce_series,
    reduce_subclass,
    reduce_tensor,
    reduce_unfinished,
    refuse_dtensor,
    refuse_relation,
)

# Bound here: a program may replace those of the module.
_pickle, unpickle = pickle.dumps, pickle.loads
# Raised by code that (un)pickles a value; not Ctrl-C or the cancellation of a task.
_FAULTS = (Exception, SystemExit)
_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
# By the module that defines a class: nothing is imported, and an object of any other library costs one lookup.
_REDUCERS: Mapping[str, Callable[[Any], Any]] = {
    "numpy": reduce_array,
    "numpy.ma": reduce_array,
    "numpy.ma.core": reduce_array,  # its name before NumPy 2.1
    "pyarrow.lib": reduce_arrow,
    "torch": reduce_tensor,
    "torch.distributed._functional_collectives": reduce_unfinished,
    "torch.distributed.tensor": refuse_dtensor,
    "torch.nn.utils.parametrize": reduce_parametrized,
    "polars.dataframe.frame": reduce_frame,
    "polars.series.series": reduce_series,
    "duckdb._relation": refuse_relation,
    "_duckdb": refuse_relation,  # its names before DuckDB 2.0, and before 1.4
    "duckdb.duckdb": refuse_relation,
}


# The description of a value for errors ("an argument of trainers.step"); a function if making it is expensive.
What = str | Callable[[], str]


def dumps(value: Any, what: What) -> list[Buffer]:
    """Return the body of a message."""
    try:
        if type(value) in _PLAIN or _is_plain(value):
            return [_pickle(Followed(edits, value) if (edits := find_edits()) else value, 5)]
        return _dumps_anything(value)
    except RecursionError as error:
        raise PickleError(f"{_text_of(what)} cannot be pickled: it is nested too deeply, or contains itself") from error
    except _FAULTS as error:
        culprit = _culprit(value)
        raise PickleError(f"{_text_of(what)} cannot be pickled: {culprit}{type(error).__name__}: {error}") from error


def _text_of(what: What) -> str:
    return what if isinstance(what, str) else what()


def dumps_detached(value: Any, what: What) -> list[Buffer]:
    """Return a body with all tensors detached from their graphs."""
    try:
        return _dumps_anything(value, _DetachingPickler)
    except RecursionError as error:
        raise PickleError(f"{_text_of(what)} cannot be pickled: it is nested too deeply, or contains itself") from error
    except Exception as error:
        raise PickleError(f"{_text_of(what)} cannot be pickled: {type(error).__name__}: {error}") from error


def dump_detached(value: Any, stream: IO[bytes], take: Callable[[pickle.PickleBuffer], object] | None = None) -> None:
    """Write the same as one pickle for `pickle.loads`, buffers included unless `take` receives them.

    Raises any error of pickling.
    """
    _DetachingPickler(stream, 5, buffer_callback=take).dump(value)


def pass_main_by_value() -> None:
    """Pickle objects of the main program by value in a child of multiprocessing, as cloudpickle does for `__main__`.

    Such a child has the program under a module name that no other process has. Call this before anything is sent.
    """
    if (program := sys.modules.get("__mp_main__")) is not None:
        cloudpickle.register_pickle_by_value(program)


def loads(body: Body, what: What) -> Any:
    """Return the value of a body: arrays and tensors use the memory of the frame, or a copy if that is read-only."""
    try:
        value = unpickle(body[0], buffers=[part if _is_writable(part) else bytearray(part) for part in body[1:]])
        note_modules()
        return value
    except _FAULTS as error:
        if body and isinstance(body[0], LostBody):
            raise MessageLost(f"{_text_of(what)} could not be read: {body[0].why}") from None
        raise PickleError(f"{_text_of(what)} cannot be unpickled: {type(error).__name__}: {error}") from error


def _is_writable(part: Buffer) -> bool:
    return not memoryview(part).readonly


def dumps_class(cls: type) -> bytes:
    """Pickle a class by value, with what it uses of its module, for `loads([data], ...)`.

    So this very class arrives, and not the one that an earlier state of the module has left in the receiver.
    """
    module = sys.modules.get(cls.__module__)
    with _registering:
        is_passing = module is not None and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
        if is_passing:
            cloudpickle.register_pickle_by_value(module)
        try:
            stream = io.BytesIO()
            _Pickler(stream, 5).dump(cls)
            return stream.getvalue()
        except Exception as error:
            text = f"the class {cls.__qualname__} cannot be pickled: {type(error).__name__}: {error}"
            raise PickleError(text) from error
        finally:
            if is_passing:
                cloudpickle.unregister_pickle_by_value(module)


_registering = threading.Lock()  # guards the modules that `dumps_class` registers with cloudpickle


def _is_plain(value: Any) -> bool:
    """Return whether C pickle alone is enough; a cheap check.

    True for small tuples, lists and dicts of builtin scalars, and for classes that declare it (`_is_plain_on_wire`).
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is tuple or kind is list:
        if len(value) > 8:
            return False
        for part in value:  # noqa: SIM110 - a loop costs less than `all` for the few parts that a call has
            if not (type(part) in _PLAIN or _is_plain(part)):
                return False
        return True
    if kind is dict:
        return not value or (len(value) <= 8 and all(map(_is_plain, value)) and all(map(_is_plain, value.values())))
    is_plain = getattr(kind, "_is_plain_on_wire", None)
    return is_plain is not None and bool(is_plain(value))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle (functions and classes of `__main__` by value), with arrays, tensors and tables out of band."""

    _with_source: frozenset[str] = frozenset()  # files whose source is in the stream

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is CodeType:
            return self._reduce_code(obj)
        find = _REDUCERS.get(type(obj).__module__)
        if find is not None and (found := find(obj)) is not NotImplemented:
            return found
        if (reduce := getattr(type(obj), "_reduce_for_wire", None)) is not None:
            return reduce(obj)
        # Classes of tensors have a metaclass, which is quicker to see. Without torch there can be no tensor.
        if type(type(obj)) is not type and isinstance(obj, getattr(sys.modules.get("torch"), "Tensor", ())):
            return reduce_subclass(obj)
        reduced = super().reducer_override(obj)
        # Only a class or a function by value has six parts: how to make it, and how to fill it.
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        return _reduce_class(obj, reduced) if isinstance(obj, type) else reduce_function(reduced)

    def _reduce_code(self, code: CodeType) -> Any:
        """Add the source of a cell to the first of its code objects, for `inspect.getsource` and tracebacks there."""
        make, arguments = self.dispatch_table[CodeType](code)
        name, entry = code.co_filename, linecache.cache.get(code.co_filename)
        # Of a file, the entry has the time of its last change. An entry of one part is not loaded.
        if entry is None or len(entry) == 1 or entry[1] is not None or name in self._with_source:
            return make, arguments
        self._with_source |= {name}
        return make_code, (name, "".join(entry[2]), arguments)


class _DetachingPickler(_Pickler):
    """Detaches tensors from their graphs."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor or obj.is_leaf:
            return super().reducer_override(obj)
        detached = obj.detach()
        reduced = super().reducer_override(detached)
        return detached.__reduce_ex__(5) if reduced is NotImplemented else reduced


def _dumps_anything(value: Any, pickler: type[_Pickler] = _Pickler) -> list[Buffer]:
    if edits := find_edits():
        value = Followed(edits, value)
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler(stream, 5, buffer_callback=buffers.append).dump(value)
    return [stream.getvalue(), *(buffer.raw() for buffer in buffers)]


# Classes that were pickled by value, and whether they were defined here. cloudpickle finds such a class again, and
# fills it anew each time it arrives: from a rank it would replace this process's globals and class attributes.
_is_ours: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _reduce_class(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    _is_ours.setdefault(cls, True)
    make, arguments, state, _, _, fill = reduced
    digest = digest_of(cls)
    if (slots := vars(cls).get("__slots__")) and arguments[0] is type(cls):  # an enumeration has other arguments
        # Cloudpickle makes the class without slots, which would change the layout of its instances.
        kind, name, bases, members, *rest = arguments
        arguments = (kind, name, bases, members | {"__slots__": slots}, *rest)
    if digest is not None:
        note_digest(cls, digest)
        make, arguments = _make_class, (digest, cls.__qualname__, make, arguments)
    return make, arguments, (fill, state), None, None, _fill_class


def _make_class(digest: bytes, qualname: str, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    if (own := own_class(digest, qualname)) is not None:
        _is_ours.setdefault(own, True)
        return own
    made = find_class(digest) or make(*arguments)
    note_digest(made, digest)
    return made


def _fill_class(cls: type, filling: tuple[Callable[[type, Any], Any], Any]) -> None:
    fill, state = filling
    if not _is_ours.setdefault(cls, False):
        fill(cls, state)


def _culprit(value: Any) -> str:
    """Return the faulty part of a call's arguments, as `args[1] (a generator): `, or the empty string."""
    if not (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict)
    ):
        return ""
    parts = [*((f"argument {index}", part) for index, part in enumerate(value[0])), *value[1].items()]
    for name, part in parts:
        try:
            _dumps_anything(part)
        except _FAULTS:
            return f"{name} ({type(part).__name__}): "
    return ""
