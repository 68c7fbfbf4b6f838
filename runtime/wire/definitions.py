"""One class for each definition, wherever it travels: classes of `__main__` are recognized by their content.

Each rank that runs a cell makes classes of its own, and a process that gets one of them by value makes one more.
Members of enumerations and dataclasses are equal only within one class. So a class by value brings a digest of its
content. The receiver takes its own class of that name if the digest is equal, else the one that it has made for an
equal one before.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

from meshbook.runtime.wire.functions import namespace_here

# Members that Python makes by itself, or that are not part of the definition.
_IGNORED = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__"),
        *("__classdictcell__", "__slotnames__"),
        *("__annotate__", "__annotate_func__", "__annotations_cache__", "_abc_impl", "_generate_next_value_"),
        *("_member_map_", "_member_names_", "_value2member_map_", "_sort_order_"),
        *("_hashable_values_", "_unhashable_values_", "_unhashable_values_map_"),
    }
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OF_PYTHON = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType),
)
_CHANGEABLE = (list, dict, set, type)
_SHOWN = frozenset({"typing", "types", "dataclasses"})  # modules of objects whose repr is complete
_CODE = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)


class _UnknownContentError(Exception):
    """A member that has no description, such as an array."""


_known: weakref.WeakValueDictionary[bytes, type] = weakref.WeakValueDictionary()  # by digest
# The digest that was computed last, and of which members: the identity of each, and the value of a plain one.
Members = tuple[tuple[int, Any], ...]
_computed: weakref.WeakKeyDictionary[type, tuple[Members, bytes | None]] = weakref.WeakKeyDictionary()
_digests: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()  # the last ones of these


def digest_of(cls: type) -> bytes | None:
    """Return a digest of the content of a class of `__main__`; None for one that has another identity.

    That is a class of a function, which makes a new one with each call, or one with members of an unknown kind.
    """
    if cls.__module__ != "__main__" or "<locals>" in cls.__qualname__:
        return None
    members = _members_of(cls)
    computed, digest = _computed.get(cls, ((), None))
    if members is not None and computed == members:
        return digest
    try:
        content = repr(_describe_class(cls, {})).encode(errors="surrogatepass")
        digest = hashlib.blake2b(content, digest_size=16).digest()
    except (_UnknownContentError, RecursionError):
        digest = None
    if members is not None:
        _computed[cls] = members, digest
    return digest


def _members_of(cls: type) -> Members | None:
    """Return what identifies its members; None if one of them may change itself, such as a list."""
    members = [pair for each in cls.__mro__ if each.__module__ == "__main__" for pair in vars(each).items()]
    if any(isinstance(value, _CHANGEABLE) and not _is_of_python(name) for name, value in members):
        return None
    # A plain value is kept with its identity: a later one could get the memory, and so the identity, of one that has
    # been dropped. A function is not kept, since it may refer to its class.
    return tuple((id(value), value if type(value) in _PLAIN else None) for _, value in members)


def _is_of_python(name: str) -> bool:
    return name in _IGNORED or (name.startswith("__") and name.endswith("__"))


def note_digest(cls: type, digest: bytes) -> None:
    """Note the present digest of a class that is sent, or was received."""
    _digests[cls] = digest
    if find_class(digest) is None:
        _known[digest] = cls


def find_class(digest: bytes) -> type | None:
    """Return the class with that content that was sent or received before."""
    known = _known.get(digest)
    # Its content may have changed since, by a later message of its sender.
    return known if known is not None and _digests.get(known) == digest else None


def own_class(digest: bytes, qualname: str) -> type | None:
    """Return the class of that name and content that the program has defined, or on a rank its cells."""
    names = namespace_here()
    first, *rest = qualname.split(".")
    found = None if names is None else names.get(first)
    for name in rest:
        found = vars(found).get(name) if isinstance(found, type) else None
    return found if isinstance(found, type) and digest_of(found) == digest else None


def _describe_class(cls: type, seen: dict[int, int]) -> Any:
    seen[id(cls)] = len(seen)
    members = {name: value for name, value in vars(cls).items() if name not in _IGNORED}
    if isinstance(cls, enum.EnumMeta):
        # Its members, and not what the enumeration derives from them.
        items: Mapping[str, Any] = cls.__members__
        values = [(name, _describe(member.value, seen)) for name, member in items.items()]
        members = {name: value for name, value in members.items() if name not in items}
    else:
        values = []
    described = [
        (name, _describe(members[name], seen))
        for name in sorted(members)
        if not isinstance(members[name], _DESCRIPTORS)
    ]
    bases = [_describe(base, seen) for base in cls.__bases__]
    return "class", cls.__qualname__, _describe(type(cls), seen), bases, values, described


def _describe(value: Any, seen: dict[int, int]) -> Any:
    """Return the content of a member as tuples whose repr is equal in all processes."""
    kind = type(value)
    if kind in _PLAIN:
        return kind.__name__, repr(value)
    if kind is tuple or kind is list:
        return kind.__name__, [_describe(each, seen) for each in value]
    if kind is dict or kind is types.MappingProxyType:
        return "dict", [(_describe(key, seen), _describe(each, seen)) for key, each in value.items()]
    if kind is set or kind is frozenset:
        return kind.__name__, sorted(repr(_describe(each, seen)) for each in value)
    if id(value) in seen:
        return "seen", seen[id(value)]
    if isinstance(value, type):
        return _describe_class(value, seen) if value.__module__ == "__main__" else _name_of(value)
    if kind is types.CodeType:
        return "code", [repr(getattr(value, name, None)) for name in _CODE], _describe(value.co_consts, seen)
    if kind is types.FunctionType:
        return _name_of(value) if _is_of_module(value) else _describe_function(value, seen)
    if kind is staticmethod or kind is classmethod:
        return kind.__name__, _describe(value.__func__, seen)
    if kind is property:
        return "property", [_describe(each, seen) for each in (value.fget, value.fset, value.fdel, value.__doc__)]
    if kind is functools.cached_property:
        return "cached_property", _describe(value.func, seen)
    if kind is dataclasses.Field:
        return "field", [_describe(getattr(value, name), seen) for name in dataclasses.Field.__slots__]
    if kind is types.ModuleType:
        return "module", value.__name__
    if kind in _OF_PYTHON:
        return kind.__name__, value.__qualname__
    if isinstance(value, enum.Enum):
        return "member", _describe(kind, seen), value.name
    if kind.__module__ in _SHOWN or kind.__qualname__ == "_tuplegetter":
        shown = repr(value)
        if " at 0x" not in shown:
            return kind.__name__, shown
        if kind.__module__ == "dataclasses":  # MISSING and its like
            return "name", kind.__qualname__
    raise _UnknownContentError


def _describe_function(function: types.FunctionType, seen: dict[int, int]) -> Any:
    seen[id(function)] = len(seen)
    cells = [_content_of(cell, seen) for cell in function.__closure__ or ()]
    # Without its attributes: libraries mark functions, such as torch for its compiler.
    parts = function.__code__, function.__defaults__, function.__kwdefaults__, function.__annotations__
    return "function", [_describe(part, seen) for part in parts], cells


def _content_of(cell: types.CellType, seen: dict[int, int]) -> Any:
    try:
        return _describe(cell.cell_contents, seen)
    except ValueError:
        return "empty"


def _is_of_module(function: types.FunctionType) -> bool:
    found: Any = sys.modules.get(function.__module__ or "") if function.__module__ != "__main__" else None
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _name_of(value: Any) -> tuple[str, str, str]:
    return "name", value.__module__, value.__qualname__
